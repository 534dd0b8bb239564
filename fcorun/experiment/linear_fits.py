"""Refusals of ``relax``, the relaxed lasso, and ``imputations``, the average of fits to several completed tables."""

from typing import Any

from fcorun.base.config import Settings
from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.requirements import has_gaps
from fcorun.methods.algorithms.algorithm import Baseline
from fcorun.methods.objectives.objective import is_linear_model
from fcorun.methods.problem.penalized_quadratic import MAX_PARAMETERS
from fcorun.methods.regularizers.l1 import L1
from fcorun.methods.regularizers.l2 import ElasticNet


def check_linear_fit(plugins: dict[str, Any], names: dict[str, str], settings: Settings) -> None:
    """Refuse ``relax`` and ``imputations`` but for one linear model of all rows in one place. Raises UserError.

    The relaxed lasso also needs a solution that selects features. Several tables need options that do not refer to a
    single problem.
    """
    option, leave_out = _name_linear_fit(settings)
    objective, algo, data = plugins["objective"], plugins["algo"], plugins["data"]
    if algo.has_personal_models or algo.picks_client or not algo.trains_shared_model:
        raise UserError(
            f"{option} is for one model of all clients, and `algo={names['algo']}` trains others: {leave_out}"
        )
    if objective.client_intercepts:
        raise UserError(f"{option} is for one intercept of all clients, and `objective.client_intercepts=true` gives "
                        f"each its own: {leave_out}")  # fmt: skip
    if not is_linear_model(type(objective)) or objective.has_client_losses:
        raise UserError(f"{option} is for linear models of single rows, and `objective={names['objective']}` is none: "
                        f"{leave_out}")  # fmt: skip
    from fcorun.data.datasets.sites import Sites

    if isinstance(data, Sites):
        raise UserError(f"{option} fits all rows in one place, and these stay at their sites: {leave_out}")
    if not settings.imputations:
        if type(plugins["reg"]) not in (L1, ElasticNet):
            raise UserError(f"{option} fits the features that a lasso selects without a penalty: give `reg=l1` or "
                            f"elastic_net, or {leave_out}")  # fmt: skip
        if not objective.has_hessian:
            raise UserError(f"{option} fits a model whose loss has a positive second derivative, and that of "
                            f"`objective={names['objective']}` has none: {leave_out}")  # fmt: skip
        if not (isinstance(algo, Baseline) or algo.traits.psi_sides):
            raise UserError(f"{option} is of a fit with the penalty, which `algo={names['algo']}` ignores: {leave_out}")
        return
    if settings.imputations == 1:
        raise UserError(f"{option} is one completed table, which hides what is not known: give 5 or more")
    for key, is_given in {"relax": settings.relax is not None, "`reference=true`": settings.reference,
                          "`gap=true`": settings.gap, "stop": settings.stop is not None}.items():  # fmt: skip
        if is_given:
            raise UserError(f"{key} refers to a single problem, and {option} has one for each completed table: leave "
                            f"{key} out")  # fmt: skip
    for key, value, reason in (
        ("standardize", "per_client", "makes the scale depend on imputed values: give pooled or none"),
        ("missing", "indicator", "makes a feature of each gap, of which imputed values have none: give mean or median"),
    ):
        if getattr(data, key, None) == value:
            raise UserError(f"{option}: `data.{key}={value}` {reason}")


def check_rows_of_linear_fit(settings: Settings, data: FederatedData, one_output: bool) -> None:
    """Refuse ``relax`` and ``imputations`` for rows that are not in memory, and for several outputs. Raises UserError.

    The relaxed lasso refuses too many features, and imputations refuse rows without gaps.
    """
    option, leave_out = _name_linear_fit(settings)
    if reason := data.train.why_not_in_memory:
        raise UserError(f"{option} needs all training rows in memory, and these {reason}; or {leave_out}")
    if not one_output:
        raise UserError(f"{option} is for models with one coefficient a feature and at most one intercept, and not for "
                        f"several classes: {leave_out}")  # fmt: skip
    n_features = data.train.x.shape[1]
    if settings.imputations and not has_gaps(data):
        raise UserError(f"{option}: no column has gaps in the training rows that `data.missing=mean` or median fills: "
                        f"{leave_out}")  # fmt: skip
    if not settings.imputations and n_features > MAX_PARAMETERS:
        raise UserError(f"{option} takes a matrix of all features, at most {MAX_PARAMETERS:,}, and there are "
                        f"{n_features:,}: {leave_out}")  # fmt: skip


def _name_linear_fit(settings: Settings) -> tuple[str, str]:
    """Return the option that is given, imputations or relax, and how to take it back."""
    if settings.imputations:
        return f"`imputations={settings.imputations}`", "leave imputations out"
    return f"`relax={settings.relax:g}`", "leave relax out"
