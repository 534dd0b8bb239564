"""Columns of two values, one of which few rows of a site have: sums over the rows tell these rows from all others.

Such a column is taken as constant at the site. Its mended cells take the place of the cells of the file right after the
file is read, so that no answer depends on the rare cells.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcorun.data.tables.cells import has_numpy_numbers, is_missing
from fcorun.data.tables.columns import Column

_GAP = -1
_FIRST_ROWS = 100  # which usually show that a column has more than two values


@dataclass(frozen=True)
class SummedRows:
    """The rows of a site that leave in sums.

    Attributes:
        masks: the masks of the training, validation and test rows, each (N,).
        client: the number of each row's client, (N,); all 0 where no sums of single clients leave.
        fold: the fold that holds out each training row in a selection, (N,), below 0 of other rows; None: no folds.
        weight: the weight of each row, (N,), or None.
    """

    masks: Sequence[np.ndarray]
    client: np.ndarray
    fold: np.ndarray | None = None
    weight: np.ndarray | None = None

    def count(self, selected: np.ndarray) -> np.ndarray:
        """Return the selected rows of each set of training rows: of the site and of each client, all rows, those of
        each fold and those outside of it. Sums with weights are over the rows of a weight above 0.
        """
        training = self.masks[0]
        counts = [self._count_cells(selected & training)]
        if self.weight is not None:
            counts.append(self._count_cells(selected & training & (self.weight > 0)))
        by_fold = np.concatenate([*counts, *(cells.sum(axis=0, keepdims=True) for cells in counts)])
        total = by_fold.sum(axis=1, keepdims=True)
        return np.concatenate([total, by_fold, total - by_fold], axis=1)

    def _count_cells(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of rows of each client in each fold, (M, K)."""
        fold = np.zeros(len(self.client), np.int64) if self.fold is None else self.fold
        shape = int(self.client.max(initial=0)) + 1, int(fold.max(initial=0)) + 1
        cells = np.bincount(self.client[rows] * shape[1] + fold[rows], minlength=shape[0] * shape[1])
        return cells.reshape(shape)


def hide_rare_values(
    frame: Any, kinds: Mapping[str, Column | None], rows: SummedRows, min_cell: int
) -> tuple[Any, dict[str, int], frozenset[str]]:
    """Return a pandas.DataFrame without columns of two values one of which few rows have.

    A column with fewer than ``min_cell`` rows of one value, but some, in a set of training rows has the more frequent
    value in all rows. Few validation or test rows of one value take the other value. Gaps stay gaps.

    Returns also the training rows of the rarer value of each column of two values, as the file has them, and the names
    of the columns that became constant.
    """
    mended = {}
    rarer_counts = {}
    constant = set()
    first_rows = np.flatnonzero(rows.masks[0])[:_FIRST_ROWS]
    for name, column in kinds.items():
        if column is None:
            continue
        if has_numpy_numbers(frame[name]):
            first_cells = frame[name].to_numpy()[first_rows]
            if len(np.unique(first_cells[~np.isnan(first_cells)])) > 2:
                continue
        number = number_values(frame[name], column)
        pair = _find_pair(number, rows.masks[0])
        if pair is None:
            continue
        frequent, rare = pair
        rarer_counts[name] = int((rows.masks[0] & (number == rare)).sum())
        counts = np.stack([rows.count(number == value) for value in pair])
        new_number = number.copy()
        if ((counts > 0) & (counts < min_cell)).any():
            new_number[number != _GAP] = frequent
            constant.add(name)
        for mask in rows.masks[1:]:
            n_frequent, n_rare = (int((mask & (new_number == value)).sum()) for value in pair)
            if 0 < n_rare < min_cell:
                new_number[mask & (new_number == rare)] = frequent
            elif 0 < n_frequent < min_cell and n_rare:
                new_number[mask & (new_number == frequent)] = rare
        is_changed = new_number != number
        if is_changed.any():
            mended[name] = frame[name]
            for value in np.unique(new_number[is_changed]).tolist():
                cell = frame[name].iloc[int((number == value).argmax())]
                mended[name] = mended[name].mask(is_changed & (new_number == value), cell)
    return (frame.assign(**mended) if mended else frame), rarer_counts, frozenset(constant)


def number_values(series: Any, column: Column) -> np.ndarray:
    """Return the number of the value of each cell of a pandas.Series, (N,), in the order of the values; -1 of a gap."""
    present = ~is_missing(series)
    cells = column.read_values(series)
    number = np.full(len(cells), _GAP)
    number[present] = np.unique(cells[present], return_inverse=True)[1]
    return number


def _find_pair(number: np.ndarray, training: np.ndarray) -> tuple[int, int] | None:
    """Return the numbers of the two values of a column, the more frequent one of the training rows first.

    Returns None for a column that has two values neither in the training rows nor in all rows. Without a training row,
    the more frequent value is that of all rows.
    """
    has_value = number != _GAP
    trained = np.unique(number[training & has_value])
    pair = trained if len(trained) == 2 else np.unique(number[has_value])
    if len(pair) != 2:
        return None
    counted = training if len(trained) else has_value
    one, other = pair.tolist()
    if (counted & (number == other)).sum() > (counted & (number == one)).sum():
        return other, one
    return one, other
