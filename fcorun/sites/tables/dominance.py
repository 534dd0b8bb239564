"""The dominance rule on numbers: few rows must not outweigh all others in a column, less any constant.

A sum of products with a column in which one row has another number than all others is that row: X'X, the sums of
features times targets, and the difference of weighted and plain sums, less a multiple of the plain sum.
"""

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.tables.cells import coerce_numbers
from fcorun.methods.objectives.huber import Huber
from fcorun.methods.objectives.quantile import Quantile
from fcorun.sites.plan.obstacles import Obstacles
from fcorun.sites.plan.plan import Plan
from fcorun.sites.tables.effective_rows import least_effective_number
from fcorun.sites.tables.table_rows import SiteTable

_BOUNDED = (Huber, Quantile)  # losses whose derivatives do not grow with the target


def check_dominance(plan: Plan, table: SiteTable) -> None:
    """Raise UserError for numbers of training rows that few rows dominate, ObstaclesError for several such columns.

    The rows of a fold are not looked at: ordinary counts have few values above 0 in a dozen rows.
    """
    obstacles = Obstacles()
    for name, (numbers, cure) in _list_numbers(plan, table).items():
        values = numbers[table.masks[0] & np.isfinite(numbers)]  # others are gaps, or refused
        with obstacles.noting():
            _check_column(name, values, cure, table)
    obstacles.raise_any()


def _list_numbers(plan: Plan, table: SiteTable) -> dict[str, tuple[np.ndarray, str]]:
    """Return the numbers that a plan multiplies by features, (N,) with NaN for gaps, and a cure, by column."""
    options = table.options
    columns = {}
    for name, kind in table.kinds.items():
        if kind == "number":
            columns[name] = coerce_numbers(table.columns[name])[0], f"data.ignore=[{name}] leaves it out"
    if options.task == "regression" and not isinstance(plan.experiment.objective, _BOUNDED):
        columns[options.target] = table.rows.y, "objective=huber bounds what a row counts"
    for role in ("weight", "offset"):
        if role in table.weight_and_offset:
            columns[str(getattr(options, role))] = table.weight_and_offset[role], f"plan without data.{role}"
    return {name: (numbers.astype(np.float64), cure) for name, (numbers, cure) in columns.items()}


def _check_column(name: str, values: np.ndarray, cure: str, table: SiteTable) -> None:
    """Raise UserError if few rows dominate the values of a column. Fewer than ``policy.min_rows`` have another rule."""
    least = table.policy.min_cell
    if len(values) >= table.policy.min_rows and least_effective_number(values) < least:
        raise UserError(f"few training rows outweigh all others in the column '{name}': their numbers differ from the "
                        f"others like fewer than {least} equal rows, the least that policy.min_cell of this site "
                        f"allows: {cure}, or mend outliers in the file")  # fmt: skip
