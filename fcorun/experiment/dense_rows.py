"""Refusals of what needs dense rows, where rows are sparse."""

from fcorun.base.errors import UserError
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.objectives.objective import is_linear_model


def check_dense_rows(experiment: PreparedExperiment, why_not_dense: str) -> None:
    """Raise UserError for what needs dense rows, unless ``why_not_dense`` of the rows is empty."""
    names = experiment.names
    if not why_not_dense:
        return
    if not is_linear_model(type(experiment.objective)):
        reason = f"`objective={names['objective']}` is no linear model: give one, such as `objective=logistic`"
    elif experiment.algo.reads_columns:
        reason = f"`algo={names['algo']}` reads single columns of each client: choose another `algo`"
    elif experiment.settings.relax is not None:
        reason = "relax fits the selected features of a dense table: leave relax out"
    elif experiment.objective.has_client_losses and experiment.needs_curvature_bounds:
        numbers = " and ".join(getattr(experiment.algo, "curvature_alternatives", ()))
        reason = f"auto of `algo={names['algo']}` takes bounds on losses that compare a client's rows: give {numbers}"
    else:
        return
    raise UserError(f"{reason}; the rows of `data={names['data']}` {why_not_dense}")
