"""The messages of scores.csv: sums and counts over the rows of each split at the last models of a run."""

from typing import TYPE_CHECKING

from fcorun.base.errors import UserError
from fcorun.data.tables.column_roles import SPLITS
from fcorun.experiment.threshold_rule import ThresholdRule
from fcorun.results.scores.calibration import MAX_REQUESTS, N_SUMS
from fcorun.results.scores.ranking import N_BINS
from fcorun.sites.plan.messages.message_kind import SUMS, MessageKind, Quantity, Stage
from fcorun.sites.plan.planned_study import PlannedStudy
from fcorun.sites.transport.messages import NEW_RUN, Message

if TYPE_CHECKING:
    from fcorun.sites.site.site import Site

_BIN_COUNTS = f"{2 * N_BINS} counts, if masked {4 * N_BINS}"


class _ScoreMessage(MessageKind):
    """A message about the last models of a run, of which the fits of a selection have none."""

    stage = Stage.SCORES
    bound = SUMS
    splits_at_model = SPLITS

    def describe_in_fits(self, quantity: Quantity, study: PlannedStudy) -> None:
        return None


def _describe_models(study: PlannedStudy) -> tuple[str, str]:
    """Return which models are scored, and on which sets of rows, in words."""
    if not study.algorithm.has_personal_models:
        return "the last model", "each split"
    if study.experiment.has_shared_model:
        return "the last model, and of each client's last model", "each split and kind of model"
    return "each client's last model", "each split"


def _describe_purpose(study: PlannedStudy) -> str:
    if study.shared_options.by_site:
        return "scores.csv, of all sites together and of each site by itself"
    return "scores.csv, of all sites together"


class ScoreCounts(_ScoreMessage):
    """The counts of the shared model's scores by which a rule chooses the threshold between two classes."""

    name = "score_counts"
    absence = "threshold chosen without the rows of site {site}"

    def list_quantities(self, study: PlannedStudy) -> list[Quantity]:
        rule = ThresholdRule.parse(study.experiment.settings.threshold)
        if not rule.needs_rows:
            return []
        content = "counts of the scores of the last model over the validation rows in bins, by class"
        return [self.quantity(_BIN_COUNTS, "once", content, f"threshold={rule.text}")]

    def answer(self, site: "Site", request: Message) -> Message:
        site.check_last_model(request.arrays)
        return Message(self.name, {}, site.score_sums(request).count_scores())


class Scores(_ScoreMessage):
    """The sums of losses and scores."""

    name = "scores"
    keys = frozenset({"edge"})
    is_kept = True
    absence = "scores.csv without the rows of site {site}"

    def list_quantities(self, study: PlannedStudy) -> list[Quantity]:
        models, sets = _describe_models(study)
        task = study.shared_options.target_task
        content = f"sums of losses and scores of {models} over the rows of each split"
        size = f"a few for {sets}"
        if task.has_events:
            content += ", and counts of events, of comparable pairs of rows of a client, and of concordant ones"
        if task.has_classes:
            size = f"3 for each class and a few more for {sets}"
        if task.has_two_classes:
            content += ", and counts of these scores in bins, by class"
            size = f"{_BIN_COUNTS}, and a few sums for {sets}"
        return [self.quantity(size, "once", content, _describe_purpose(study))]

    def answer(self, site: "Site", request: Message) -> Message:
        site.check_last_model(request.arrays)
        return Message(self.name, {}, site.score_sums(request).sum_scores())


class Calibration(_ScoreMessage):
    """The sums of a calibration of the models whose scores were sent."""

    name = "calibration"
    absence = "no calibration in scores.csv without site {site}"

    def list_quantities(self, study: PlannedStudy) -> list[Quantity]:
        models, sets = _describe_models(study)
        if study.shared_options.target_task.is_quantity:
            content = f"sums of squares of the targets and of the predictions of {models}, around their means"
            return [self.quantity(f"3 for {sets}", "once", content, _describe_purpose(study))]
        if study.shared_options.target_task.has_two_classes:
            content = f"sums of losses and their derivatives of a line through the scores of {models}"
            size = f"{2 * N_SUMS} for {sets}"
            times = f"at most {MAX_REQUESTS} times"
            return [self.quantity(size, times, content, _describe_purpose(study))]
        return []

    def limits_of_run(self, study: PlannedStudy) -> dict[str, int]:
        return {self.name: 1 if study.shared_options.target_task.is_quantity else MAX_REQUESTS}

    def answer(self, site: "Site", request: Message) -> Message:
        scored = site.requests.get(Scores.name)
        if scored is None:
            raise UserError(f"the server asked for a calibration before the scores: {NEW_RUN}")
        n_points = 1 + site.plan.shared_options.by_site
        return Message(self.name, {}, site.score_sums(scored).sum_calibration(request.arrays, n_points))
