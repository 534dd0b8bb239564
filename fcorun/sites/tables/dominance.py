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
from fcorun.sites.tables.table_rows import ROWS, SiteTable

_BOUNDED = (Huber, Quantile)  # losses whose derivatives do not grow with the target


def check_dominance(plan: Plan, table: SiteTable) -> None:
    """Raise UserError for numbers that few rows dominate, ObstaclesError for several such columns.

    Of held-out rows, whose losses alone leave, targets and weights are looked at. The rows of a fold are not: ordinary
    counts have few values above 0 in a dozen rows.
    """
    obstacles = Obstacles()
    columns = _list_numbers(plan, table)
    in_losses = {table.options.target, table.options.weight}
    for split, (rows, mask) in enumerate(zip(ROWS, table.masks, strict=True)):
        for name, (numbers, cure) in columns.items():
            if split == 0 or name in in_losses:
                values = numbers[mask & np.isfinite(numbers)]  # others are gaps, or refused
                cure = cure if split == 0 else "hold out more rows or none (data.validation=0, data.test=0)"
                with obstacles.noting():
                    _check_column(name, values, rows, cure, table)
    with obstacles.noting():
        _check_three_values(plan, table)
    obstacles.raise_any()


def _list_numbers(plan: Plan, table: SiteTable) -> dict[str, tuple[np.ndarray, str]]:
    """Return the numbers that a plan multiplies by features, (N,) with NaN for gaps, and a cure, by column."""
    options = table.options
    columns = {}
    for name in table.number_columns:
        columns[name] = coerce_numbers(table.columns[name])[0], f"add '{name}' to data.ignore of the plan"
    if options.target_task.is_quantity and not isinstance(plan.experiment.objective, _BOUNDED):
        columns[options.target] = table.rows.y, "objective=huber bounds what a row counts"
    for role in ("weight", "offset"):
        if role in table.weight_and_offset:
            columns[str(getattr(options, role))] = table.weight_and_offset[role], f"plan without data.{role}"
    return {name: (numbers.astype(np.float64), cure) for name, (numbers, cure) in columns.items()}


def _check_column(name: str, values: np.ndarray, rows: str, cure: str, table: SiteTable) -> None:
    """Raise UserError if few rows dominate the values of a column. Fewer than ``policy.min_rows`` have another rule."""
    least = table.policy.min_cell
    if len(values) >= table.policy.min_rows and least_effective_number(values) < least:
        raise UserError(f"few {rows} rows outweigh all others in the column '{name}': their numbers differ from the "
                        f"others like fewer than {least} equal rows, the least that policy.min_cell of this site "
                        f"allows: {cure}, or mend outliers in the file")  # fmt: skip


def _check_three_values(plan: Plan, table: SiteTable) -> None:
    """Raise UserError for a target of three numbers, one of which few training rows have, where intervals are planned.

    At a model of 0, the Hessian, the gradient and the squared scores are three sums of features, weighted by 1, r and
    r^2 for residuals r: they tell the sums over the rows of each of three values.
    """
    if plan.infer is None or not table.options.target_task.is_quantity:
        return
    counts = np.unique(table.rows.y[table.masks[0]], return_counts=True)[1]
    least = table.policy.min_cell
    if len(counts) == 3 and counts.min() < least:
        raise UserError(f"'{table.options.target}' has three values, and one of them in fewer than {least} training "
                        "rows, the least that policy.min_cell of this site allows, which intervals would tell: plan "
                        "without --infer, or leave the site out")  # fmt: skip
