"""The server of a selection: the study of ``fcorun select``, whose fits are runs over sites."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.system.machine import use_precision
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.datasets.sites import Sites
from fcorun.data.datasets.subset import suggest_folds
from fcorun.data.rows.rows import sum_in_order
from fcorun.data.rows.site_rows import SiteRows
from fcorun.data.tables.scaling import Scaling
from fcorun.engine.engine import CompiledPrograms
from fcorun.experiment.build import build_engine, resolve_auto
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.threshold_rule import DEFAULT_THRESHOLD
from fcorun.sites.plan.planned_study import REFIT, PlannedSelection
from fcorun.sites.server.server import stack_sums
from fcorun.sites.tables.fold_encoding import FoldCounts, count_shapes, fit_fold, learnt_columns
from fcorun.sites.transport.connections import ALL_SITES, Connections
from fcorun.sites.transport.messages import OTHER_VERSION, Message, describing_damage
from fcorun.studies.selection.fitting import PathFit, fit_batch, point_at
from fcorun.studies.selection.folds import SubsetMasks, check_subset_clients, name_held_out_clients
from fcorun.studies.selection.path import build_path
from fcorun.studies.selection.select import SelectionPlan
from fcorun.studies.selection.selection_result import ALL_ROWS
from fcorun.studies.selection.study import Study, describe_study, prepare_study

_NO_ROWS = SubsetMasks(np.zeros(0, bool), np.zeros(0, bool))  # the server's own


@dataclass(frozen=True)
class SiteStudy(Study):
    """A study whose fits are computed with the sites, one after the other in the order of the plan.

    A restart computes all fits again, from the answers that the transport has stored.

    Attributes:
        select: the selection of the plan.
        connections: the way to the sites.
        counts: the rows of all clients in the folds.
        programs: the compiled programs of the server by their key.
    """

    select: PlannedSelection
    connections: Connections
    counts: FoldCounts
    programs: dict[str, CompiledPrograms] = field(default_factory=dict)

    @property
    def keeps_held_out(self) -> bool:
        """False: outputs for single rows stay at their sites."""
        return False

    def load_fits(self) -> dict[str, PathFit]:
        """Return no fit: a site answers requests in one order alone, which includes those of all fits."""
        return {}

    def fit_subsets(self, names: Sequence[str]) -> Generator[PathFit, None, None]:
        """Run the path on these subsets with the sites, and yield the fit of each in their order."""
        for name in names:
            with use_precision(self.experiment.settings.precision):
                data = self._begin(name)
                experiment = resolve_auto(self.experiment, data)[0]
                engine = build_engine(experiment, data)
                engine = engine.share_programs(lambda key: self.programs.setdefault(key, CompiledPrograms()))
                points = [point_at(experiment, self.path.param_name, value) for value in self.path.values]
                fit = fit_batch(experiment, engine, points)
            yield fit

    def begin_refit(self) -> None:
        """Tell the sites that the run on all rows begins."""
        self._begin(REFIT)

    @property
    def _rows(self) -> SiteRows:
        """Return what the server knows of all training rows."""
        rows = self.data.train
        assert isinstance(rows, SiteRows)
        return rows

    def _begin(self, name: str) -> FederatedData:
        """Have the sites take a subset of their rows, and return what the server knows of it."""
        k = self.select.folds_by_name.get(name)
        if k is None:
            self.connections.ask("subset", about={"subset": name})
            whole = replace(self.data, train=replace(self._rows, curvature={}))  # bounds on other rows are forgotten
            return whole if name == REFIT else replace(whole, validation=None, test=None)
        data = self._describe_fold(k)
        fits = self._fit_columns(name)
        arrays = self.counts.to_arrays() | fits
        if self.data.features.standardized_by == "pooled":
            sums = self._ask_for_sums(name, data, **fits)
            mean = sum_in_order(sums) / data.train.n_rows
            squares = self._ask_for_sums(name, data, around=mean, **fits)
            scaling = Scaling.from_squares(mean, squares, data.train.n_rows)
            arrays |= {"mean": scaling.mean, "deviation": scaling.deviation}
        self.connections.ask("subset", arrays, {"subset": name})
        return data

    def _fit_columns(self, name: str) -> dict[str, np.ndarray]:
        """Return the fills and levels of a fold as arrays of requests; empty without columns to learn."""
        options = self.experiment.data
        encoding = self.data.features.encoding
        train = self._rows
        assert isinstance(options, Sites)
        columns = () if encoding is None else learnt_columns(encoding)
        if not columns:
            return {}
        total: dict[str, np.ndarray] = {}
        for site, answer in self.connections.ask("fold_values", about={"subset": name}).items():
            clients = np.flatnonzero(np.array(train.site_of_client) == site)
            of_all = site == ALL_SITES
            shapes = count_shapes(columns, 1 if of_all else len(clients))
            dtypes = {key: np.float64 if key == "sums" else np.int64 for key in shapes}
            sent = {key: (array.shape, array.dtype) for key, array in answer.arrays.items()}
            are_counts = all((array >= 0).all() for key, array in answer.arrays.items() if key != "sums")
            if sent != {key: (shapes[key], np.dtype(dtypes[key])) for key in shapes} or not are_counts:
                raise UserError(f"site '{site}' sent no counts of the values of a fold: {OTHER_VERSION}")
            for key, array in answer.arrays.items():
                if key in ("sums", "values") and not of_all:
                    by_client = total.setdefault(key, np.zeros((train.n_clients, array.shape[1]), array.dtype))
                    by_client[clients] = array
                else:
                    total[key] = total.get(key, 0) + array
        return fit_fold(columns, options.missing, total)

    def _describe_fold(self, k: int) -> FederatedData:
        """Return what the server knows of the rows that the fold ``k`` leaves, with its held-out rows to validate."""
        train = self._rows
        order, rows, weights = self.counts.split(k)
        n_clients = int((rows[:, 0] > 0).sum())
        names = [self.data.clients[m] for m in order]
        sites = tuple(train.site_of_client[m] for m in order)

        def described(split: int, known: int) -> SiteRows:
            of_split = replace(train, all_sizes=rows[:known, split], site_of_client=sites[:known], curvature={})
            return replace(of_split, all_weights=None if train.all_weights is None else weights[:known, split])

        return replace(
            self.data,
            train=described(0, n_clients),
            validation=described(1, len(names)),
            test=None,
            clients=tuple(names[:n_clients]),
            held_out_clients=tuple(names[n_clients:]),
        )

    def _ask_for_sums(self, name: str, data: FederatedData, **arrays: np.ndarray) -> np.ndarray:
        """Return the sums of the features over each client's training rows of a fit, (M, d), or over all together."""
        answers = self.connections.ask("fold_sums", arrays, {"subset": name})
        train = data.train
        assert isinstance(train, SiteRows)
        return stack_sums(answers, train.site_of_client, data.features.names)


def plan_site_selection(
    select: PlannedSelection, experiment: PreparedExperiment, connections: Connections, out: Path
) -> SelectionPlan:
    """Have connected sites divide their rows, and return the selection, ready to run. Raises UserError.

    ``experiment`` is that of the refit, but for the strength; its data set is the connected sites.
    """
    refit_experiment = experiment
    prepared = prepare_study(refit_experiment, "select")
    experiment = prepared.experiment
    data = prepared.data
    path = build_path(experiment, data, select.points, select.range)
    fold_names = sorted(getattr(experiment.data, "fold_names", None) or ())
    counts = _ask_for_folds(select, connections, data, are_marked=bool(fold_names))
    grouped = data.train.group is not None
    select = replace(select, **vars(select.resolve(data.n_clients, fold_names, grouped)))
    for name, k in select.folds_by_name.items():
        weights = None
        if data.train.weight is not None:
            weights = counts.train_weights[:, k], counts.held_out_weights[:, k]
        sizes = counts.train[:, k]
        held_out = counts.held_out[:, k]
        check_subset_clients(
            experiment,
            data.client_names,
            name,
            by=select.by,
            sizes=sizes,
            held_out=held_out,
            weights=weights,
            are_marked=bool(fold_names),
        )
    study = Study.create(
        prepared,
        path,
        dict.fromkeys([*select.folds_by_name, ALL_ROWS], _NO_ROWS),
        dependencies={name: getattr(select, name) for name in ("folds", "points", "by", "range")},
        row_arrays=counts.to_arrays().values(),
        out=out,
    )
    by = "data.fold" if fold_names else select.by
    held_out_clients = None
    if select.by == "clients":
        held_out_clients = name_held_out_clients(data.client_names, counts.held_out.argmax(axis=1))
    fold_weights = counts.held_out_weights.sum(axis=0) if select.fold_weights == "rows" else np.ones(select.n_folds)
    return SelectionPlan(
        experiment=refit_experiment,
        options=select,
        study=SiteStudy(**vars(study), select=select, connections=connections, counts=counts),
        metric=select.metric,
        fold_weights=fold_weights,
        threshold=DEFAULT_THRESHOLD,
        held_out_clients=held_out_clients,
        messages=describe_study(study, f"{select.n_folds} folds", by, "score the refit", []),
    )


def _ask_for_folds(
    select: PlannedSelection, connections: Connections, data: FederatedData, are_marked: bool
) -> FoldCounts:
    """Ask the sites for the numbers of rows in the folds. Raises UserError, which names a site, for other answers."""
    rows = data.train
    assert isinstance(rows, SiteRows)
    arrays: dict[str, np.ndarray] = {}
    has_events = data.target_task.has_events
    names = ("event",) if has_events else data.classes
    has_class = np.zeros((select.n_folds, len(names)), bool)
    answers: Mapping[str, Message] = connections.ask("folds")
    for site, answer in answers.items():
        clients = np.flatnonzero(np.array(rows.site_of_client) == site)
        with describing_damage(f"site '{site}' sent no counts of folds"):
            counts = FoldCounts.from_arrays(answer.arrays, rows.sizes[clients], select.n_folds)
            classes = answer.arrays["classes"]
            if classes.shape != has_class.shape or classes.dtype != bool:
                raise ValueError("classes of another shape")
        has_class |= classes
        for name, values in counts.to_arrays().items():
            total = arrays.setdefault(name, np.zeros((rows.n_clients, select.n_folds), values.dtype))
            total[clients] = values
    cure = suggest_folds(are_marked, select.by, verb="plan")
    for k in range(select.n_folds):
        missing = np.flatnonzero(~np.delete(has_class, k, axis=0).any(axis=0))
        if has_events and (len(missing) or not has_class[k, 0]):
            where = "leaves" if len(missing) else "holds out"
            raise UserError(f"no event is among the rows that fold {k + 1} {where}: {cure}")
        if len(missing):
            raise UserError(f"class '{data.classes[missing[0]]}' is missing among the rows that fold {k + 1} leaves: "
                            f"{cure}, or leave out classes with so few rows")  # fmt: skip
    return FoldCounts(**arrays)
