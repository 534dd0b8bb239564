"""The sets of rows whose sums leave a site or are differences of answers, and the sums that tell few rows.

The sets are all rows of a split, in a selection the training rows outside of each fold, and the same of each client
where sums of single clients leave. The rows of a fold are the difference of two such sets, and the rows of weight 0
that of a sum without weights and a weighted one.

Rows count as the patients that they stand for (``Patients``): a sum that one patient makes up is that patient's rows
alone. Of several features the server forms any linear combination, so that none of them may tell few patients.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from fcorun.sites.plan.patients import Patients, are_few, least_effective_number

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
        patients: the patients of the rows, and the weights.
    """

    in_split: Bool[np.ndarray, " N"]
    client: Int[np.ndarray, " N"]
    fold: Int[np.ndarray, " N"]
    patients: Patients

    @cached_property
    def has_weight(self) -> Bool[np.ndarray, " N"]:
        """The mask of the rows with a weight above 0, (N,)."""
        return self.patients.has_weight(len(self.in_split))

    @cached_property
    def _n_folds(self) -> int:
        return int(self.fold.max(initial=0)) + 1

    def count_cells(self, selected: Bool[np.ndarray, " N"]) -> Float[np.ndarray, "M K"]:
        """Return how many patients the selected rows of each client and fold stand for, (M, K).

        Each set is a union of such cells: where each cell has no row or enough, so does each set.
        """
        cell = np.where(selected & self.in_split, self.client * self._n_folds + self.fold, -1)
        shape = int(self.client.max(initial=0)) + 1, self._n_folds
        return self.patients.count_parts(cell, shape[0] * shape[1]).reshape(shape)

    def has_few(self, selected: Bool[np.ndarray, " N"], least: int) -> bool:
        """Return whether the selected rows of a set stand for fewer patients than ``least``, but for some."""
        return bool(are_few(self.count_cells(selected), least).any())

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


def tells_few(values: Float[np.ndarray, " n"], patients: Patients, least: int, is_difference: bool) -> bool:
    """Return whether the sum of a function over a set tells few patients: it is not 0 for some, but few of them.

    Nor may few of them outweigh all others, whatever constant is subtracted, but in a difference of two answers: in a
    dozen rows of a fold, the largest number of an ordinary column does.

    Args:
        values: the function at each row of the set, (n,).
        patients: the patients of these rows.
        least: the least number that is not few.
        is_difference: whether no answer has a sum over the set, which follows from two answers.
    """
    if are_few(patients.count(values != 0), least):
        return True
    return not is_difference and least_effective_number(values, patients.number) < least


def column_tells_few(values: Float[np.ndarray, " n"], patients: Patients, least: int, is_difference: bool) -> bool:
    """Return whether sums of a column over a set, less any constant, tell few patients, as ``tells_few`` says."""
    if is_difference:
        return bool(are_few(patients.count(values != most_frequent(values)), least))
    return least_effective_number(values, patients.number) < least


def most_frequent(values: Float[np.ndarray, " n"]) -> float:
    """Return the most frequent of some values."""
    distinct, counts = np.unique(values, return_counts=True)
    return distinct[counts.argmax()]


def single_out(
    features: Float[np.ndarray, "n d"], least: int, patient: Int[np.ndarray, " n"] | None = None
) -> Float[np.ndarray, "r n"]:
    """Return functions of the features and a constant, each of which is as large as can be at one patient, (r, n).

    A function has the largest share of its squares at a patient: of one row, it is the projection of the row's
    indicator, and the share is the row's leverage h. The effective number of no function of rows is below 1 / max h, so
    that patients with a smaller share than 1 / ``least`` need no function.
    """
    space = np.column_stack([np.ones(len(features)), features])
    sizes = np.abs(space).max(axis=0, initial=0.0)
    basis, singular_values, _ = np.linalg.svd(space / np.where(sizes > 0, sizes, 1.0), full_matrices=False)
    basis = basis[:, singular_values > _ROUNDING * singular_values.max(initial=0.0)]
    directions = [basis[np.linalg.norm(basis, axis=1) ** 2 > 1 / least]]
    if patient is not None:
        order = np.argsort(patient, kind="stable")
        directions = [np.empty((0, basis.shape[1]))]
        for rows in np.split(order, np.flatnonzero(np.diff(patient[order])) + 1):
            if (basis[rows] ** 2).sum() > 1 / least:
                _, sizes, axes = np.linalg.svd(basis[rows], full_matrices=False)
                directions.append(axes[sizes**2 > 1 / least])
    functions = np.concatenate(directions) @ basis.T
    is_negligible = np.abs(functions) <= _NEGLIGIBLE * np.abs(functions).max(axis=1, initial=0.0, keepdims=True)
    return np.where(is_negligible, 0.0, functions)
