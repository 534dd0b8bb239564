"""Columns of numbers as restricted cubic splines: smooth curves of cubic pieces between knots, straight beyond them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from jaxtyping import Float, Int, Shaped

from fcorun.base.errors import UserError
from fcorun.data.tables.columns.column import ColumnDescription, EncodedCells, MissingPolicy
from fcorun.data.tables.columns.number import NumberColumn

LEAST_KNOTS = 3
MOST_KNOTS = 7
_OUTER = {3: 0.1, 7: 0.025}  # the probability of the first knot; of other numbers of knots it is 0.05
_FEW_ROWS = 100  # with fewer rows, the outer knots are the fifth smallest and the fifth largest value
_FIFTH = 4  # numbers before the fifth smallest one


@dataclass(frozen=True)
class SplineColumn(NumberColumn):
    """A column of numbers with k - 1 features: the number, and k - 2 terms that bend the line at k knots.

    The knots are quantiles of the training rows (Harrell, Regression Modeling Strategies, 2015, table 2.3), and the
    terms those of ``rms::rcs``: for knots t_1 < ... < t_k, term j is (p(t_j) - p(t_{k-1}) (t_k - t_j) / (t_k - t_{k-1})
    + p(t_k) (t_{k-1} - t_j) / (t_k - t_{k-1})) / (t_k - t_1)^2 with p(t) = max(x - t, 0)^3.

    Attributes:
        n_knots: the number of knots, 3 to 7.
        knots: the knots, in order; none before a fit. Gaps are imputed before the terms are computed. A fold learns
            what fills gaps, and keeps the knots.
    """

    n_knots: int = 4
    knots: tuple[float, ...] = ()

    kind = "spline"
    makes_curve = True

    @property
    def value_features(self) -> tuple[str, ...]:
        return tuple(f"{self.name}{primes}" for primes in self._primes)

    def label_values(self, label: str, label_with_unit: str) -> list[str]:
        return [label_with_unit, *(f"{label}{primes}" for primes in self._primes[1:])]

    @property
    def _primes(self) -> list[str]:
        """The ends of the features' names: "" of the number, "'", "''" and so on of the terms."""
        return ["'" * j for j in range(self.n_knots - 1)]

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"n_knots": self.n_knots, "knots": list(self.knots)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        return super().from_dict({**values, "knots": tuple(values["knots"])})

    def find_faults(self) -> Iterator[str]:
        is_known = LEAST_KNOTS <= self.n_knots <= MOST_KNOTS and len(self.knots) == self.n_knots
        if not is_known or not np.isfinite(self.knots).all() or (np.diff(self.knots) <= 0).any():
            yield f"has no knots of '{self.name}'"

    def needs_bins(self, missing: MissingPolicy) -> bool:
        return True

    def describe_cells(
        self, cells: Float[np.ndarray, " n"], client: Int[np.ndarray, " n"], missing: MissingPolicy
    ) -> ColumnDescription:
        description = super().describe_cells(cells, client, missing)
        return replace(description, numbers=cells[~np.isnan(cells)])

    def fit(self, description: ColumnDescription, missing: MissingPolicy, where: str) -> Self:
        """Return the column with the knots of the described rows. Raises UserError for too few different numbers."""
        fitted = super().fit(description, missing, where)
        n_values = description.n_values
        knots = np.empty(0)
        # of 9 values, the fifth smallest is the fifth largest, which the check below tells
        if n_values > 2 * _FIFTH:
            outer = _OUTER.get(self.n_knots, 0.05)
            probabilities = np.linspace(outer, 1 - outer, self.n_knots)
            if n_values < _FEW_ROWS:
                probabilities[0] = _FIFTH / (n_values - 1)
                probabilities[-1] = 1 - probabilities[0]
            knots = description.quantiles(probabilities)
        if len(knots) < self.n_knots or (np.diff(knots) <= 0).any():
            raise UserError(f"{where}: column '{self.name}' has too few different numbers in training rows for "
                            f"{self.n_knots} knots: give fewer knots (3 or more) in `data.splines`, or leave "
                            f"'{self.name}' out of it")  # fmt: skip
        return replace(fitted, knots=tuple(knots.tolist()))

    def encode(self, series: Any, where: str) -> EncodedCells:
        cells = super().encode(series, where)
        return EncodedCells(self._make_features(cells.features[0]), cells.gaps)

    def encode_cells(self, cells: Float[np.ndarray, " N"], fill: float | str | None) -> list[np.ndarray]:
        return self._make_features(super().encode_cells(cells, fill)[0])

    def list_local_functions(self, numbers: Float[np.ndarray, " N"]) -> list[np.ndarray]:
        """Return combinations of the features and a constant that are 0 in part of the range, each (N,).

        The terms are 0 below their knots, the terms of the mirrored knots are 0 above theirs, and a cubic B-spline is 0
        outside of five neighbouring knots. No combination is 0 outside of fewer intervals.
        """
        mirrored = replace(self, knots=tuple(-knot for knot in reversed(self.knots)))
        functions = [*self._make_features(numbers)[1:], *mirrored._make_features(-numbers)[1:]]
        for first in range(self.n_knots - 4):
            five = self.knots[first : first + 5]
            bump = np.zeros(len(numbers))
            for knot in five:
                bump += _cube_above(numbers, knot) / np.prod([knot - other for other in five if other != knot])
            is_inside = (five[0] < numbers) & (numbers < five[-1])
            functions.append(np.where(is_inside, bump, 0.0))  # outside is rounding
        return functions

    def _make_features(self, numbers: Shaped[np.ndarray, " N"]) -> list[np.ndarray]:
        """Return the numbers and the terms of the spline, each (N,)."""
        x = numbers.astype(np.float64)
        *inner, before_last, last = self.knots
        width = last - before_last
        features = [x]
        for knot in inner:
            term = _cube_above(x, knot)
            term -= _cube_above(x, before_last) * (last - knot) / width
            term += _cube_above(x, last) * (before_last - knot) / width
            features.append(term / (last - self.knots[0]) ** 2)
        return features


def _cube_above(x: Float[np.ndarray, " N"], knot: float) -> Float[np.ndarray, " N"]:
    return np.maximum(x - knot, 0.0) ** 3
