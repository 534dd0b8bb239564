"""The metric that chooses a strength: one that is measured on held-out rows."""

from dataclasses import replace

from fcorun.base.errors import UserError, suggest_name
from fcorun.base.metrics import PERSONAL_PREFIX, TEST_METRIC_REFUSAL, TEST_PREFIX
from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.build import explain_unmeasured
from fcorun.experiment.experiment import PreparedExperiment


def choose_metric(name: str | None, experiment: PreparedExperiment, data: FederatedData, by: str) -> str:
    """Return the metric ``name``, or else the loss, as the folds measure it: metric=loss is val_loss.

    Personal models are scored, unless folds consist of clients, which have no personal models when they are held
    out.

    Raises:
        UserError: the metric is unknown, belongs to the test rows, or is not measured on held-out rows.
    """
    has_personal_models = experiment.algo.has_personal_models
    scores_personal = has_personal_models and by == "rows"
    fold_data = replace(data, validation=replace(data.train, client=None))  # with validation rows, as in a fold

    def list_choices() -> list[str]:
        """Return the metrics that can choose, without the prefix val_."""
        names = [name for name in experiment.metrics.comparable if not explain_unmeasured(name, experiment, fold_data)]
        choices = [name.removeprefix("val_") for name in names if name.startswith("val_")]
        if scores_personal:
            choices += [name for name in names if name.startswith(f"{PERSONAL_PREFIX}val_")]
        return choices

    if name is None:
        name = f"{PERSONAL_PREFIX}val_loss" if scores_personal else "val_loss"
    if name.removeprefix(PERSONAL_PREFIX).startswith(TEST_PREFIX):
        raise UserError(f"metric={name} is refused: {TEST_METRIC_REFUSAL}")
    if name not in experiment.metrics.comparable:
        choices = list_choices()
        if name not in choices:
            raise UserError(f"metric={name} is not a choice: {suggest_name(name, choices)}")
        return f"val_{name}"
    if not name.removeprefix(PERSONAL_PREFIX).startswith("val_"):
        raise UserError(
            f"metric={name} is not measured on rows that are held out: {suggest_name(name, list_choices())}"
        )
    if name.startswith(PERSONAL_PREFIX) and not scores_personal:
        reason = f"algo={experiment.names['algo']} has no personal models"
        if has_personal_models:
            reason = "by=clients leaves held-out clients without personal models"
        raise UserError(
            f"metric={name}: {reason}; give metric={name.removeprefix(PERSONAL_PREFIX).removeprefix('val_')}"
        )
    if reason := explain_unmeasured(name, experiment, fold_data):
        raise UserError(f"metric={name} would not be measured: {reason}; {suggest_name(name, list_choices())}")
    return name
