"""Histograms of a column's values over the rows that a fold leaves, for medians, without cells of few rows of a fold.

The server has the histogram of all training rows. The difference of that one and the histogram of the rows that a fold
leaves counts the rows of the fold. Therefore the cells of all rows are joined, until each has no row or ``min_cell``
rows in every fold, and outside of it.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from fcorun.sites.tables.table_description import merge_small_cells


@dataclass(frozen=True, eq=False)
class FoldHistogram:
    """The joined cells of a column of N training rows, in B bins.

    Attributes:
        all_rows: the histogram of all rows, with small cells merged, as the description of the table has it, (B,).
        cell_of_bin: the number of the joined cell of each bin, (B,); -1 where there is none.
        cell_of_row: the number of the joined cell of each row, (N,); -1 of a row without a value.
    """

    all_rows: Int[np.ndarray, " B"]
    cell_of_bin: Int[np.ndarray, " B"]
    cell_of_row: Int[np.ndarray, " N"]

    @classmethod
    def join(
        cls, bins: Int[np.ndarray, " N"], fold: Int[np.ndarray, " N"], n_bins: int, min_cell: int
    ) -> "FoldHistogram":
        """Join the cells of rows in these bins, -1 of a row without a value, for the folds that hold them out."""
        has_value = bins >= 0
        all_rows = merge_small_cells(np.bincount(bins[has_value], minlength=n_bins), min_cell)
        ends = np.flatnonzero(all_rows)  # the last bins of the cells of all rows
        if not len(ends):
            return cls(all_rows, np.full(n_bins, -1), np.full(len(bins), -1))
        described = np.minimum(np.searchsorted(ends, np.arange(n_bins)), len(ends) - 1)
        by_fold = np.zeros((len(ends), int(fold.max(initial=0)) + 1), int)
        np.add.at(by_fold, (described[bins[has_value]], fold[has_value]), 1)
        cell_of_bin = _join_cells(by_fold, min_cell)[described]
        return cls(all_rows, cell_of_bin, np.where(has_value, cell_of_bin[bins], -1))

    def count(self, selected: Bool[np.ndarray, " N"]) -> Int[np.ndarray, " B"]:
        """Return the counts of selected rows: those of a joined cell are spread over its bins as all rows are."""
        counts, cells = np.zeros(len(self.all_rows), np.int64), self.cell_of_row[selected]
        for cell in np.unique(cells[cells >= 0]).tolist():
            of_cell = self.cell_of_bin == cell
            running = np.cumsum(self.all_rows[of_cell])
            counts[of_cell] = np.diff(running * int((cells == cell).sum()) // running[-1], prepend=0)
        return counts


def _join_cells(by_fold: Int[np.ndarray, "C K"], min_cell: int) -> Int[np.ndarray, " C"]:
    """Return the number of the joined cell of each of C cells with these rows in each fold, (C,); -1 without any.

    Neighbours are joined until there are enough rows; what is left at the end joins the cells before.
    """
    joined: list[np.ndarray] = []
    lengths: list[int] = []
    waiting, length = np.zeros(by_fold.shape[1], int), 0
    for counts in by_fold:
        waiting, length = waiting + counts, length + 1
        if _has_enough(waiting, min_cell):
            joined.append(waiting)
            lengths.append(length)
            waiting, length = np.zeros_like(waiting), 0
    while length:
        if not joined:
            return np.full(len(by_fold), -1)
        waiting, length = waiting + joined.pop(), length + lengths.pop()
        if _has_enough(waiting, min_cell):
            joined.append(waiting)
            lengths.append(length)
            length = 0
    return np.repeat(np.arange(len(lengths)), lengths)


def _has_enough(by_fold: Int[np.ndarray, " K"], min_cell: int) -> bool:
    """Return whether each fold, and all rows outside of it, have no row or at least ``min_cell``."""
    counts = np.concatenate([by_fold, by_fold.sum() - by_fold])
    return bool(((counts == 0) | (counts >= min_cell)).all())
