"""Refusals of studies: settings with which no rows can be held out, and targets that cannot be permuted."""

from fcorun.base.errors import UserError
from fcorun.base.metrics import PERSONAL_PREFIX
from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.results.scores.score import scores_of_task
from fcorun.studies.selection.folds import check_global_model


def check_settings(experiment: PreparedExperiment, command: str) -> None:
    """Raise UserError for settings with which no rows can be held out."""
    settings = experiment.settings
    if settings.imputations and command != "select":
        raise UserError(f"`imputations={settings.imputations}`: {command} imputes nothing, and fills gaps once by the "
                        "rows of each half: leave imputations out")  # fmt: skip
    if study := settings.strength_study:
        raise UserError(f"`study.strength={study.strength}` chooses in each run of a sweep, and {command} has a path "
                        "of strengths itself: leave it out")  # fmt: skip
    if settings.relax is not None:
        raise UserError(f"`relax={settings.relax:g}`: {command} has no relaxed coefficients: leave relax out")
    if experiment.privacy.acts:
        raise UserError(f"`privacy={experiment.names['privacy']}` counts what one run costs, and {command} makes many "
                        "on the same rows: leave privacy out")  # fmt: skip
    if settings.start:
        raise UserError(f"`start={settings.start}` may have seen rows that {command} holds out: leave it out")
    for name in settings.stop or {}:
        reason = ""
        if name.removeprefix(PERSONAL_PREFIX).startswith("val_"):
            reason = f"is not measured where {command} trains on all rows, or on halves"
        elif name == "suboptimality":
            reason = f"is the gap to one optimum, and {command} has many problems"
        if reason:
            raise UserError(f"`stop.{name}` {reason}: give `stop={{change:1e-5}}`, or `null`")


def check_permutable(experiment: PreparedExperiment, data: FederatedData) -> None:
    """Raise UserError for a model and rows whose targets ``fcorun permute`` does not permute."""
    for name in ("offset", "weight"):
        if getattr(data.train, name) is not None:
            raise UserError(f"`data.{name}` may follow from the target of its row, and does not go with it where "
                            f"targets are permuted: leave `data.{name}` out")  # fmt: skip
    check_global_model(experiment, "fcorun permute scores one model of all: choose another `algo`")
    if not any(score.is_permuted for score in scores_of_task(data.target_task)):
        raise UserError(f"`data.task={data.target_task.name}` has neither accuracy nor R2, which fcorun permute "
                        "compares: give data of classes or numbers")  # fmt: skip
