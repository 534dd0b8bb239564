"""The file ``data.truth``: the known coefficients of a simulated table, with which metrics compare solutions."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from fcorun.base.errors import UserError, abbreviate, suggest_name
from fcorun.data.tables.readers import find_file, read_named_columns

_COLUMNS = ("name", "coefficient")
_INTERCEPT = "(intercept)"  # as in coefficients.csv; no metric compares intercepts


def check_truth_units(path: str | None, standardize: str) -> None:
    """Raise UserError if known coefficients, of one unit for each feature, meet features of several scales."""
    if path is not None and standardize == "per_client":
        raise UserError(f"`data.truth={path}` is in the units of the table, and `data.standardize=per_client` gives "
                        "each client its own: give pooled, or none")  # fmt: skip


def check_truth_classes(path: str, n_classes: int) -> None:
    """Raise UserError if a model of several classes has several coefficients for each feature."""
    if n_classes > 2:
        raise UserError(f"`data.truth={path}` has one coefficient for each feature, and a model of {n_classes} classes "
                        "has one for each class: leave `data.truth` out")  # fmt: skip


def read_truth(path: str) -> dict[str, float]:
    """Return the coefficients of a CSV with the columns ``name`` and ``coefficient``, without that of the intercept.

    Raises UserError for a file that is missing, for other columns, for a name that is listed twice, and for a
    coefficient that is no finite number.
    """
    where = f"`data.truth={path}`"
    file = find_file(path, "data.truth=", (".csv",))
    frame = read_named_columns(file, ".csv", None, _COLUMNS, where=where).frame
    if {*frame} != {*_COLUMNS}:
        raise UserError(f"{where} has the columns {', '.join(frame)}: give name and coefficient")
    truth: dict[str, float] = {}
    for row in frame.dropna(how="all").to_dict("records"):
        name = str(row["name"]).strip()
        if name in truth:
            raise UserError(f"{where} lists '{name}' twice: leave one line out")
        try:
            truth[name] = float(row["coefficient"])
        except ValueError:
            truth[name] = np.nan
        if not np.isfinite(truth[name]):
            raise UserError(f"{where}: the coefficient of '{name}' is {row['coefficient']}: give a number")
    truth.pop(_INTERCEPT, None)
    return truth


def order_truth(truth: dict[str, float], names: Sequence[str], path: str, table: str) -> Float[np.ndarray, " d"]:
    """Return the coefficients in the order of the features (d,) of a table. Raises UserError for other features."""
    where = f"`data.truth={path}`"
    for name in truth:
        if name not in names:
            raise UserError(f"{where} names '{name}', which is no feature of `data.path={table}`: "
                            f"{suggest_name(name, list(names))}")  # fmt: skip
    missing = [f"'{name}'" for name in names if name not in truth]
    if missing:
        raise UserError(f"{where} lacks {abbreviate(missing)} of `data.path={table}`: give each feature a line, with 0 "
                        "for one without an effect")  # fmt: skip
    return np.array([truth[name] for name in names])
