"""The rows of each client in each fold with a value, a gap or a level: none, or as many as the policy says.

The sums over the rows of a fold are differences of two answers. A column whose gaps are filled by one number adds to
such a difference the values of the measured rows alone, and a level its count.
"""

from collections.abc import Iterator

import numpy as np

from fcorun.rows.rows import Rows
from fcorun.sites.table_options import OTHER, OwnTableError
from fcorun.sites.table_rows import SiteTable
from fcorun.tables.cells import is_missing, to_level_names
from fcorun.tables.encoding import Column, Encoding

_Cell = tuple[str, str, np.ndarray, str]  # what the rows have, the same for the owner, the mask of the rows, the rule


def check_fold_cells(table: SiteTable, encoding: Encoding, rows: Rows, fold: np.ndarray, n_folds: int) -> None:
    """Raise OwnTableError where a fold, or all others, have too few rows of a client in a cell of a column, but some.

    Args:
        rows: the training rows, with their places in the table.
        fold: the fold, from 0, that holds out each of them, (N,).
    """
    assert rows.client is not None
    assert rows.row is not None
    for column in encoding.columns:
        for cell, cell_for_owner, of_table, rule in _cells(table, column):
            selected = of_table[rows.row]
            counts = np.zeros((len(table.clients), n_folds), int)
            np.add.at(counts, (rows.client[selected], fold[selected]), 1)
            least = getattr(table.policy, rule)
            for where, numbers in (("in", counts), ("outside", counts.sum(axis=1, keepdims=True) - counts)):
                few = np.argwhere((numbers > 0) & (numbers < least))
                if len(few):
                    sentence = (f"column '{column.name}' has {cell} in fewer than {least} training rows of a client "
                                f"{where} fold {few[0][1] + 1}, the least that policy.{rule} of this site allows: plan "
                                f"fewer folds, another data.missing, or data.ignore=[{column.name}]")  # fmt: skip
                    raise OwnTableError(f"{sentence} ({cell_for_owner})", sentence)


def _cells(table: SiteTable, column: Column) -> Iterator[_Cell]:
    """Yield the cells of a column, with masks over the rows of the table, and the rule of the policy for each."""
    values = table.columns[column.name]
    has_gap = is_missing(values)
    if column.kind == "number" or column.indicator:
        yield "values", "rows with a value", ~has_gap, "min_rows"
    if column.indicator:
        yield "gaps", "rows with a gap", has_gap, "min_rows"
    if column.kind == "number":
        return
    levels = to_level_names(values)
    if column.name in table.level_counts:
        levels[np.isin(levels, list(table.rare_levels(column.name)))] = OTHER
    levels[has_gap] = column.fill
    for level in column.levels:
        yield "a level", f"level '{level}'", levels == level, "min_cell"
