"""The number of patients that rows stand for, by which all rules on few rows of a site count.

A server has plain sums over rows, sums by their weights, and the difference of the two: the rows of weight 0. In each
of them all rows of one patient count together, and a patient who outweighs the others is not hidden by their number. So
the number is the effective one: of patients of equal size with the same sum and the same sum of squares. Where each of
two sets stands for enough patients, so does their union.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

_ROUNDING = 1e-9
_DIGITS = 9  # of a count, so that equal sums of weights are equal


@dataclass(frozen=True)
class Patients:
    """The patients of N rows.

    Attributes:
        weight: the weight of each row, (N,); None: the rows are equal.
        number: the number of each row's patient, from 0, (N,); None: each row is a patient.
    """

    weight: Float[np.ndarray, " N"] | None = None
    number: Int[np.ndarray, " N"] | None = None

    @classmethod
    def of_rows(cls, rows: Any) -> "Patients":
        """Return the patients of rows with a ``weight`` and a ``group``, each (N,) or None: a group is a patient."""
        number = None if rows.group is None else np.unique(rows.group, return_inverse=True)[1]
        return cls(rows.weight, number)

    @property
    def unweighted(self) -> "Patients":
        """The patients in plain sums alone."""
        return replace(self, weight=None)

    def has_weight(self, n_rows: int) -> Bool[np.ndarray, " N"]:
        """Return which of all ``n_rows`` rows have a weight above 0, (N,)."""
        return np.ones(n_rows, bool) if self.weight is None else self.weight > 0

    def take(self, rows: Any) -> "Patients":
        """Return the patients of some rows, by a mask or by indices."""
        return Patients(*(None if values is None else values[rows] for values in (self.weight, self.number)))

    def count(self, selected: Bool[np.ndarray, " N"]) -> float:
        """Return how many patients the rows of a mask stand for; 0 for no row."""
        return float(self.count_parts(np.where(selected, 0, -1), 1)[0])

    def count_parts(self, part: Int[np.ndarray, " N"], n_parts: int) -> Float[np.ndarray, " P"]:
        """Return how many patients the rows of each part stand for, (P,): the least number of all sums with rows.

        Args:
            part: the part of each row, from 0; below 0: none.
        """
        rows = np.flatnonzero(part >= 0)
        part = part[rows]
        sums = [np.ones(len(rows))]
        if self.weight is not None:
            weight = self.weight[rows]
            sums += [weight, (weight == 0).astype(np.float64)]
        counts = np.full(n_parts, np.inf)
        for sizes in sums:
            number = None if self.number is None else self.number[rows]
            of_sum = effective_numbers(*add_by_patient(sizes, part, number), n_parts)
            counts = np.where(of_sum > 0, np.minimum(counts, of_sum), counts)
        return np.where(np.isinf(counts), 0.0, np.round(counts, _DIGITS))


def add_by_patient(sizes: np.ndarray, part: np.ndarray, number: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return what the sizes of the rows of each patient in each part add up to, (k,), and the part, (k,).

    Args:
        sizes, part, number: the size, the part and the patient of each row, (n,); without ``number`` each row is one.
    """
    if number is None:
        return sizes, part
    n_patients = int(number.max(initial=0)) + 1
    pairs, pair = np.unique(part * n_patients + number, return_inverse=True)
    return np.bincount(pair, sizes, minlength=len(pairs)), pairs // n_patients


def are_few(counts: Any, least: float) -> Any:
    """Return where counts of patients are below the least number, but above 0."""
    return (np.asarray(counts) > 0) & (np.asarray(counts) < least)


def effective_numbers(c: np.ndarray, part: np.ndarray, n_parts: int) -> np.ndarray:
    """Return (sum c)^2 / sum c^2 over the terms of each part, (P,), for sizes ``c`` of terms, (N,), none below 0.

    This is the number of terms of equal size with the same sum and the same sum of squares; 0 for no term, or terms of
    0.
    """
    largest = np.zeros(n_parts)
    np.maximum.at(largest, part, c)
    shares = c / np.where(largest > 0, largest, 1.0)[part]  # whose squares neither overflow nor vanish
    total = np.bincount(part, shares, minlength=n_parts)
    squares = np.bincount(part, shares**2, minlength=n_parts)
    return total**2 / np.where(squares > 0, squares, 1.0)


def least_effective_number(values: np.ndarray, patient: np.ndarray | None = None) -> float:
    """Return the least effective number of |values - c| over all numbers c; infinity for equal values, (N,).

    The terms of one ``patient``, (N,), are added first. Between two neighbouring values these sums are linear in c, and
    the root of the sum of their squares is convex, so that the least number is at one of the values.
    """
    order = np.argsort(values, kind="stable")
    values = values[order]
    patient = np.arange(len(values)) if patient is None else np.unique(patient[order], return_inverse=True)[1]
    if not len(values) or values[0] == values[-1]:
        return np.inf
    c = (values / 2 - values[0] / 2) / (values[-1] / 2 - values[0] / 2)  # from 0 to 1; halves do not overflow
    # The sum of a patient is a + b c: c - v of the values v below, and v - c of those above.
    n_rows = np.bincount(patient)
    total = np.bincount(patient, c)
    by_patient = np.argsort(patient, kind="stable")
    first = np.repeat(np.cumsum(n_rows) - n_rows, n_rows)
    a = np.empty(len(c))
    b = np.empty(len(c))
    passed = np.cumsum(c[by_patient])
    a[by_patient] = total[patient[by_patient]] - 2 * (passed - (passed - c[by_patient])[first])
    b[by_patient] = 2 * (np.arange(len(c)) - first + 1) - n_rows[patient[by_patient]]
    # a and b are those after c has passed a value v of the patient, and were a + 2 v and b - 2 before.
    squares_a = (total**2).sum() + np.cumsum(a**2 - (a + 2 * c) ** 2)
    products = -(total * n_rows).sum() + np.cumsum(a * b - (a + 2 * c) * (b - 2))
    squares_b = (n_rows**2).sum() + np.cumsum(b**2 - (b - 2) ** 2)
    sums = total.sum() - 2 * np.cumsum(c) + (2 * np.arange(1, len(c) + 1) - len(c)) * c
    squares = squares_a + 2 * c * products + c**2 * squares_b
    return float((sums**2 / squares).min()) * (1 + _ROUNDING)
