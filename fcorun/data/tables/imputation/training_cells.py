"""Fills and levels learnt from a part of the training rows: those that a fold leaves, or a half.

The features are those that all training rows gave; a level that no row of the part has is 0 in all rows, so that its
coefficient is 0. Rows of that level are the mean of the other levels, as those of a level unknown to all training rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Shaped

from fcorun.base.errors import UserError
from fcorun.data.tables.columns import Column, MissingPolicy
from fcorun.data.tables.columns.column import ColumnFit
from fcorun.data.tables.encoding import Encoding
from fcorun.data.tables.scaling import Scaling


@dataclass(frozen=True, eq=False)
class TrainingCells:
    """The cells of N training rows in the columns whose features depend on the rows that are trained on.

    These are columns of numbers with gaps, and columns of levels.

    Attributes:
        columns: the columns, as all training rows have encoded them.
        first_feature: the position of each column's first feature, by name.
        cells: the numbers of each column, NaN in gaps, or the numbers of its levels, -1 in gaps, (N,) by name.
        client: the number of each row's client, in order, (N,).
        missing: the treatment of gaps.
        fits: the fit of each column by all N rows, by name.
    """

    columns: tuple[Column, ...]
    first_feature: dict[str, int]
    cells: dict[str, np.ndarray]
    client: np.ndarray
    missing: MissingPolicy
    fits: dict[str, ColumnFit]

    @classmethod
    def from_features(
        cls,
        x: Shaped[np.ndarray, "N d"],
        encoding: Encoding,
        gaps: Mapping[str, np.ndarray],
        client: Int[np.ndarray, " N"],
        missing: MissingPolicy,
    ) -> "TrainingCells | None":
        """Return the cells of training rows with features ``x``, before standardization; None if there are none.

        Args:
            x: the features, gaps filled, in rows sorted by client.
            encoding: the encoding, fit to these rows.
            gaps: the mask of the gaps, (N,), of each column with gaps.
            client: the number of each row's client.
            missing: the treatment of gaps.
        """
        columns = []
        first_feature = {}
        cells = {}
        position = 0
        for column in encoding.columns:
            has_gap = gaps.get(column.name, np.zeros(len(x), bool))
            features = x[:, position : position + len(column.features)]
            if column.has_levels or has_gap.any():
                columns.append(column)
                first_feature[column.name] = position
                cells[column.name] = column.read_cells(features, has_gap)
            position += len(column.features)
        if not columns:
            return None
        unfitted = cls(tuple(columns), first_feature, cells, client, missing=missing, fits={})
        return replace(unfitted, fits=unfitted.fit(np.ones(len(x), bool)))

    def check_values(self, train: Bool[np.ndarray, " N"]) -> None:
        """Raise UserError for a column without a value in the rows ``train``."""
        for column in self.columns:
            if self.find_gaps(column)[train].all():
                raise UserError(f"column '{column.name}' has no value in the rows that are left in a fold or a half: "
                                f"`data.ignore=[{column.name}]` leaves it out, and other folds may help")  # fmt: skip

    def fit(self, train: Bool[np.ndarray, " N"]) -> dict[str, ColumnFit]:
        """Return what the rows ``train`` teach about each column. Raises UserError for a column without a value."""
        self.check_values(train)
        fits = {}
        for column in self.columns:
            description = column.describe_cells(self.cells[column.name][train], self.client[train], self.missing)
            fits[column.name] = column.fit_part(description, self.missing)
        return fits

    def encode_rows(
        self, x: Shaped[np.ndarray, "N d"], fits: Mapping[str, ColumnFit], standardized: Mapping[str, Any] | None
    ) -> Shaped[np.ndarray, "N d"]:
        """Return features of which the columns have other fits than those by all N rows, in the scale of the data.

        Args:
            x: the features of all N rows.
            fits: the fit of each column.
            standardized: the dict of ``fcorun.data.tables.scaling``, of which only "pooled" is applied, or None.
        """
        changed = [column for column in self.columns if fits[column.name] != self.fits.get(column.name)]
        if not changed:
            return x
        scaling = Scaling.from_pooled(standardized)
        x = x.copy()
        for column in changed:
            features = column.encode_by_part(self.cells[column.name], fits[column.name])
            if x.dtype.kind != "f":  # whole numbers alone, and a mean of levels is none
                x = x.astype(np.result_type(x, *features))
            for position, values in enumerate(features, self.first_feature[column.name]):
                if scaling is not None:
                    values = (values - scaling.mean[position]) * scaling.factor[position]
                x[:, position] = values
        return x

    def take(self, train: Bool[np.ndarray, " N"], fits: dict[str, ColumnFit]) -> "TrainingCells":
        """Return the cells of the rows ``train``, which have taught ``fits``."""
        cells = {name: values[train] for name, values in self.cells.items()}
        return replace(self, cells=cells, client=self.client[train], fits=fits)

    def find_gaps(self, column: Column) -> Bool[np.ndarray, " N"]:
        """Return the mask of the gaps of a column, (N,)."""
        return column.find_gaps(self.cells[column.name])
