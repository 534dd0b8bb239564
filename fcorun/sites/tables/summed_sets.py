"""The sets of rows whose sums leave a site or are differences of answers, and the sums that tell few rows.

The sets are all rows of a split, in a selection the training rows outside of each fold, and the same of each client
where sums of single clients leave. The rows of a fold are the difference of two such sets, and the rows of weight 0
that of a sum without weights and a weighted one.

The effective number of rows in a weighted sum tells whether few rows outweigh all others: a sum that one row makes up
is that row alone. Of several features the server forms any linear combination, so that none of them may tell few rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

_ROUNDING = 1e-9
_NEGLIGIBLE = 1e-6  # part of the largest value of a function: other rows of no more leave a row told to as many digits


class SummedSet(NamedTuple):
    """A set of rows of one split.

    Attributes:
        rows: the mask of the rows, (N,).
        is_difference: whether no answer has a sum over the set, which follows from two answers.
    """

    rows: Bool[np.ndarray, " N"]
    is_difference: bool


@dataclass(frozen=True)
class SummedSets:
    """The sets of N rows of a site whose sums a server has, or has by subtraction.

    Attributes:
        in_split: the mask of the training rows, or of other rows that are scored together, (N,).
        client: the number of each row's client, (N,); all 0 where no sums of single clients leave.
        fold: the fold that holds out each training row, (N,); all 0 without folds.
        has_weight: whether the weight of a row is above 0, (N,).
    """

    in_split: Bool[np.ndarray, " N"]
    client: Int[np.ndarray, " N"]
    fold: Int[np.ndarray, " N"]
    has_weight: Bool[np.ndarray, " N"]

    @cached_property
    def _n_folds(self) -> int:
        return int(self.fold.max(initial=0)) + 1

    def count_cells(self, selected: Bool[np.ndarray, " N"]) -> Int[np.ndarray, " C"]:
        """Return the selected rows of each cell, the smallest sets, (C,).

        Each set is a union of cells: where each cell has no row or enough, so does each set.
        """
        rows = selected & self.in_split
        cell = (self.client[rows] * self._n_folds + self.fold[rows]) * 2 + self.has_weight[rows]
        return np.bincount(cell, minlength=(int(self.client.max(initial=0)) + 1) * self._n_folds * 2)

    def list_sets(self, selected: Bool[np.ndarray, " N"]) -> Iterator[SummedSet]:
        """Yield the selected rows of each set that has some."""
        rows = selected & self.in_split
        groups = [rows]
        clients = np.unique(self.client[rows])
        if len(clients) > 1:
            groups += [rows & (self.client == m) for m in clients]
        for group in groups:
            yield from self._divide(group & self.has_weight)
            if (group & ~self.has_weight).any():
                yield from self._divide(group)
                for unweighted in self._divide(group & ~self.has_weight):
                    yield unweighted._replace(is_difference=True)

    def _divide(self, group: Bool[np.ndarray, " N"]) -> Iterator[SummedSet]:
        """Yield a group of rows, and those of the group in each fold and outside."""
        if group.any():
            yield SummedSet(group, False)
        for k in np.unique(self.fold[group]) if self._n_folds > 1 else ():
            yield SummedSet(group & (self.fold == k), True)
            yield SummedSet(group & (self.fold != k), False)


def tells_few_rows(values: Float[np.ndarray, " n"], least: int, is_difference: bool) -> bool:
    """Return whether the sum of a function over a set tells few rows: fewer than ``least``, but some, are not 0.

    Nor may few of them outweigh all others, whatever constant is subtracted, but in a difference of two answers: in a
    dozen rows of a fold, the largest number of an ordinary column does.
    """
    if 0 < np.count_nonzero(values) < least:
        return True
    return not is_difference and least_effective_number(values) < least


def column_tells_few_rows(values: Float[np.ndarray, " n"], least: int, is_difference: bool) -> bool:
    """Return whether sums of a column over a set, less any constant, tell few rows, as ``tells_few_rows`` says."""
    if is_difference:
        return 0 < len(values) - max_count(values) < least
    return least_effective_number(values) < least


def max_count(values: Float[np.ndarray, " n"]) -> int:
    """Return how many of the values equal the most frequent one."""
    return int(np.unique(values, return_counts=True)[1].max(initial=0))


def single_out_rows(features: Float[np.ndarray, "n d"], least: int) -> Float[np.ndarray, "r n"]:
    """Return functions of the features and a constant, each of which is as large as can be at one row, (r, n).

    A function is the projection of a row's indicator, in which that row has the largest share of the squares, its
    leverage h. The effective number of no function is below 1 / max h, so that rows of a smaller leverage than
    1 / ``least`` need no function.
    """
    space = np.column_stack([np.ones(len(features)), features])
    sizes = np.abs(space).max(axis=0, initial=0.0)
    basis, singular_values, _ = np.linalg.svd(space / np.where(sizes > 0, sizes, 1.0), full_matrices=False)
    basis = basis[:, singular_values > _ROUNDING * singular_values.max(initial=0.0)]
    leverage = (basis**2).sum(axis=1)
    functions = basis[leverage > 1 / least] @ basis.T
    is_negligible = np.abs(functions) <= _NEGLIGIBLE * np.abs(functions).max(axis=1, initial=0.0, keepdims=True)
    return np.where(is_negligible, 0.0, functions)


def effective_number(c: np.ndarray) -> float:
    """Return (sum c)^2 / sum c^2 for the sizes ``c`` of terms, (N,), none below 0; 0 for no term, or terms of 0.

    This is the number of terms of equal size with the same sum and the same sum of squares.
    """
    largest = c.max(initial=0.0)
    if largest == 0:
        return 0.0
    shares = c / largest  # whose squares neither overflow nor vanish, and terms of equal size give their exact number
    return float(shares.sum() ** 2 / (shares**2).sum())


def least_effective_number(values: np.ndarray) -> float:
    """Return the least effective number of |values - c| over all numbers c; infinity for equal values, (N,).

    Between two neighbouring values the sum is linear in c, and the root of the sum of squares is convex, so that the
    least number is at one of the values.
    """
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) < 2:
        return np.inf
    least = distinct[0]
    c = (distinct / 2 - least / 2) / (distinct[-1] / 2 - least / 2)  # from 0 to 1; halves do not overflow
    below = np.cumsum(counts)
    total = len(values)
    sum_below = np.cumsum(counts * c)
    sum_of_all = (counts * c).sum()
    sums = c * (2 * below - total) + sum_of_all - 2 * sum_below
    squares = (counts * c**2).sum() - 2 * c * sum_of_all + total * c**2
    return float((sums**2 / squares).min()) * (1 + _ROUNDING)
