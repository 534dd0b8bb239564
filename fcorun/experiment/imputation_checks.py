"""Checks that refuse ``imputations``, the average of fits to several completed tables.

They refuse problems and rows that do not allow it.
"""

from typing import Any

from fcorun.base.config import Settings
from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import FederatedData
from fcorun.methods.objectives.objective import is_linear_model


def check_imputations(plugins: dict[str, Any], names: dict[str, str], settings: Settings) -> None:
    """Refuse ``imputations`` for models that cannot be averaged, or with options that refer to a single problem.

    Raises UserError.
    """
    option, algo, objective = f"`imputations={settings.imputations}`", plugins["algo"], plugins["objective"]
    if settings.imputations == 1:
        raise UserError(f"{option} is one completed table, which hides what is not known: give 5 or more")
    for key, is_given in {"relax": settings.relax is not None, "`reference=true`": settings.reference,
                          "`gap=true`": settings.gap, "stop": settings.stop is not None}.items():  # fmt: skip
        if is_given:
            raise UserError(f"{key} refers to a single problem, and {option} has one for each completed table: leave "
                            f"{key} out")  # fmt: skip
    if algo.has_personal_models or algo.picks_client or not algo.trains_shared_model:
        raise UserError(f"{option} averages one model of all clients, and `algo={names['algo']}` trains others: leave "
                        "imputations out")  # fmt: skip
    if not is_linear_model(type(objective)) or objective.has_client_losses:
        raise UserError(f"{option} averages the coefficients of linear models of single rows, and objective="
                        f"{names['objective']} is none: leave imputations out")  # fmt: skip
    from fcorun.data.datasets.sites import Sites

    for key, value, reason in (
        ("standardize", "per_client", "makes the scale depend on imputed values: give pooled or none"),
        ("missing", "indicator", "makes a feature of each gap, of which imputed values have none: give mean or median"),
    ):
        if getattr(plugins["data"], key, None) == value:
            raise UserError(f"{option}: `data.{key}={value}` {reason}")
    if isinstance(plugins["data"], Sites):
        raise UserError(f"{option} imputes all rows in one place, and these stay at their sites: leave imputations out")


def check_imputed_rows(imputations: int, data: FederatedData, one_output: bool) -> None:
    """Refuse ``imputations`` for rows that are not in memory or have no gaps, or several outputs. Raises UserError."""
    option = f"`imputations={imputations}`"
    if reason := data.train.why_not_in_memory:
        raise UserError(f"{option} needs all training rows in memory, and these {reason}; or leave imputations out")
    if not one_output:
        raise UserError(f"{option} is for one coefficient a feature: leave imputations out")
    if not has_gaps(data):
        raise UserError(f"{option}: no column has gaps in the training rows that `data.missing=mean` or median fills: "
                        "leave imputations out")  # fmt: skip


def has_gaps(data: FederatedData) -> bool:
    """Return whether gaps in the training rows have been filled."""
    cells = data.features.cells
    return cells is not None and any(cells.find_gaps(column).any() for column in cells.columns)
