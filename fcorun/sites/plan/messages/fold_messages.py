"""The messages of a selection: the folds of the rows, what their training rows teach, and the fits, one by one."""

from typing import TYPE_CHECKING, Any

from fcorun.sites.plan.messages.message_kind import SQUARES, MessageKind, Notice, Quantity, Stage
from fcorun.sites.plan.messages.table_messages import check_same_encoding, describe_fills
from fcorun.sites.plan.planned_study import PlannedStudy
from fcorun.sites.plan.site_options import FILLS, INFORMATIVE
from fcorun.sites.transport.messages import Message

if TYPE_CHECKING:
    from fcorun.sites.site.site import Site

_SUBSET = "subset"  # the key of the name of a subset


def _read_fold(request: Message) -> list[Any]:
    """Return the fills and the features of a fold in a request; [] where nothing is learnt in folds."""
    return [request.arrays[name].tolist() for name in (FILLS, INFORMATIVE) if name in request.arrays]


class Folds(MessageKind):
    """The folds, which a site draws from its own rows."""

    name = "folds"
    stage = Stage.FOLDS

    def list_quantities(self, study: PlannedStudy) -> list[Quantity]:
        if study.select is None:
            return []
        content = "numbers of the rows of each client in each fold, sums of their weights, and which classes a fold has"
        size = f"{3 * study.select.n_folds} for each client, and one bit for each class and fold"
        return [self.quantity(size, "once", content, "the clients' weights in each fit")]

    def answer(self, site: "Site", request: Message) -> Message:
        return Message(self.name, arrays=site.folds.describe())


class _FoldMessage(MessageKind):
    """A message about the rows that a fold leaves."""

    stage = Stage.FOLDS
    keys = frozenset({_SUBSET})
    bound = SQUARES
    names_subset = True


class FoldValues(_FoldMessage):
    """The counts and sums of a fold's training rows that determine known levels, and fills beside indicators."""

    name = "fold_values"

    def list_quantities(self, study: PlannedStudy) -> list[Quantity]:
        if study.select is None:
            return []
        size = "1 for each level and each column"
        content = "over the training rows of each fold, counts of the levels of columns, and of gaps"
        if study.shared_options.missing == "indicator":
            fill_size, fill_content = describe_fills("indicator", by_client=not study.is_masked)
            size += f", and {fill_size}"
            content += f"; {fill_content}"
        times = f"once for each of {study.select.n_folds} folds, if a column has levels or an indicator of gaps"
        return [self.quantity(size, times, content, "levels, and fills beside indicators, by training rows alone")]

    def answer(self, site: "Site", request: Message) -> Message:
        return Message(self.name, arrays=site.folds.count_values(request))


class FoldSums(_FoldMessage):
    """The sums of features over a fold's training rows, by which all sites scale them alike."""

    name = "fold_sums"
    is_kept = True

    def list_quantities(self, study: PlannedStudy) -> list[Quantity]:
        if study.select is None or study.shared_options.standardize != "pooled":
            return []
        content = "sums of features, and of their squares around the mean, over the training rows of each fold"
        size = "d" if study.is_masked else "d for each client"
        times = f"twice for each of {study.select.n_folds} folds"
        return [self.quantity(size, times, content, "data.standardize=pooled, by training rows alone")]

    def limits_of_run(self, study: PlannedStudy) -> dict[str, int]:
        return {self.name: 2}

    def answer(self, site: "Site", request: Message) -> Message:
        check_same_encoding(request, site.list_requests(FoldSums.name), _read_fold)
        return Message(self.name, arrays=site.folds.sum_features(request))


class Subset(Notice):
    """The beginning of the runs on a subset of the rows."""

    name = "subset"
    stage = Stage.FOLDS
    keys = frozenset({_SUBSET})
    names_subset = True
    is_kept = True

    def is_asked(self, study: PlannedStudy) -> bool:
        return study.select is not None

    def limits_of_run(self, study: PlannedStudy) -> dict[str, int]:
        return {self.name: len(study.selection.subsets)}

    def resume(self, site: "Site", request: Message) -> None:
        check_same_encoding(request, site.list_requests(FoldSums.name), _read_fold)
        site.begin_subset(request)
