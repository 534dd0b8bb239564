"""Columns of numbers: the feature is the number, and a gap becomes the mean or the median of the training rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from fcorun.base.errors import UserError
from fcorun.data.rows.rows import sum_columns_by_client
from fcorun.data.tables.cells import coerce_numbers, require_numbers
from fcorun.data.tables.columns.column import (
    Column,
    ColumnDescription,
    EncodedCells,
    MissingPolicy,
    TrainingRows,
)


@dataclass(frozen=True)
class NumberColumn(Column):
    """A column of numbers. True and False are the numbers 1 and 0."""

    kind = "number"
    content = "numbers"
    has_numbers = True

    @property
    def value_features(self) -> tuple[str, ...]:
        return (self.name,)

    def label_values(self, label: str, label_with_unit: str) -> list[str]:
        return [label_with_unit]

    def describe_fill(self) -> str:
        return f"{self.fill:.6g}"

    def read_values(self, series: Any) -> np.ndarray:
        return coerce_numbers(series)[0]

    def needs_bins(self, missing: MissingPolicy) -> bool:
        return missing == "median"

    def describe(self, series: Any, rows: TrainingRows, missing: MissingPolicy, where: str) -> ColumnDescription:
        values = self.read_values(series)
        if values.dtype.kind == "f":
            check_finite(values, self.name, where)
        return self.describe_cells(values[rows.row].astype(np.float64), rows.client, missing)

    def find_fill(self, description: ColumnDescription, missing: MissingPolicy, indicator: bool) -> float | None:
        if missing == "refuse":
            return None
        if missing == "median":
            return description.median()
        return description.mean()

    def encode(self, series: Any, where: str) -> EncodedCells:
        values = require_numbers(series, f"{where}: column '{self.name}'")
        if values.dtype.kind != "f":
            return EncodedCells([values], np.zeros(len(values), bool))
        check_finite(values, self.name, where)
        gaps = np.isnan(values)
        self.check_fillable(gaps, where)
        if gaps.any():
            values = np.where(gaps, np.float64(self.fill or 0), values).astype(values.dtype)
        return EncodedCells([values], gaps)

    def read_cells(self, features: Shaped[np.ndarray, "N f"], has_gap: Bool[np.ndarray, " N"]) -> np.ndarray:
        return np.where(has_gap, np.nan, features[:, 0].astype(np.float64))

    def find_gaps(self, cells: Float[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
        return np.isnan(cells)

    def describe_cells(
        self, cells: Float[np.ndarray, " n"], client: Int[np.ndarray, " n"], missing: MissingPolicy
    ) -> ColumnDescription:
        is_gap = np.isnan(cells)
        has_gaps = bool(is_gap.any())
        n_values = int((~is_gap).sum())
        if missing == "refuse":
            return ColumnDescription(has_gaps, n_values)
        if missing == "median":
            return ColumnDescription(has_gaps, n_values, numbers=cells[~is_gap])
        names, number = np.unique(client, return_inverse=True)
        sums = sum_columns_by_client(np.where(is_gap, 0.0, cells)[:, None], number)[:, 0]
        return ColumnDescription(has_gaps, n_values, dict(zip(names.tolist(), sums.tolist(), strict=True)))

    def encode_cells(self, cells: Float[np.ndarray, " N"], fill: float | str | None) -> list[np.ndarray]:
        return [np.where(np.isnan(cells), fill, cells)]  # type: ignore[arg-type]


def check_finite(values: np.ndarray, name: str, where: str) -> None:
    """Raise UserError for an infinite value in the column ``name`` of numbers, shape (N,); NaN are gaps."""
    if np.isinf(values).any():
        row = int(np.isinf(values).argmax()) + 1
        raise UserError(f"{where}: column '{name}' is infinite in row {row}; mend it or drop the row")
