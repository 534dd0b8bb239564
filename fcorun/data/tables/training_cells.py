"""Fills and levels learnt from a part of the training rows: those that a fold leaves, or a half.

The features are those that all training rows gave; a level that no row of the part has is 0 in all rows, so that its
coefficient is 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Int, Shaped

from fcorun.base.errors import UserError
from fcorun.data.tables.column_statistics import column_means
from fcorun.data.tables.encoding import Column, Encoding, MissingPolicy

_GAP = -1  # in place of the number of a level


@dataclass(frozen=True)
class ColumnFit:
    """The part of a column's encoding that rows teach.

    Attributes:
        fill: the value in place of a gap: a number, or the number of a level; None among levels that are not filled.
        informative: whether each feature of the column may differ from 0.
    """

    fill: float | int | None
    informative: tuple[bool, ...]


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
        columns, first_feature, cells = [], {}, {}
        position = 0
        for column in encoding.columns:
            has_gap = gaps.get(column.name, np.zeros(len(x), bool))
            features = x[:, position : position + len(column.features)]
            if column.kind == "levels" or has_gap.any():
                columns.append(column)
                first_feature[column.name] = position
                cells[column.name] = read_cells(column, features, has_gap)
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
                                f"data.ignore=[{column.name}] leaves it out, and fewer folds may help")  # fmt: skip

    def fit(self, train: Bool[np.ndarray, " N"]) -> dict[str, ColumnFit]:
        """Return what the rows ``train`` teach about each column. Raises UserError for a column without a value."""
        self.check_values(train)
        fits = {column.name: self._fit_levels(column, train) for column in self.columns if column.kind == "levels"}
        return fits | self._fit_numbers(train)

    def encode(self, fits: Mapping[str, ColumnFit]) -> dict[int, np.ndarray]:
        """Return the features, (N,) by position, of the columns whose fits differ from those by all N rows."""
        encoded = {}
        for column in self.columns:
            fit = fits[column.name]
            if fit != self.fits.get(column.name):
                features = _encode(column, self.cells[column.name], fit)
                encoded |= dict(enumerate(features, self.first_feature[column.name]))
        return encoded

    def take(self, train: Bool[np.ndarray, " N"], fits: dict[str, ColumnFit]) -> "TrainingCells":
        """Return the cells of the rows ``train``, which have taught ``fits``."""
        cells = {name: values[train] for name, values in self.cells.items()}
        return replace(self, cells=cells, client=self.client[train], fits=fits)

    def find_gaps(self, column: Column) -> Bool[np.ndarray, " N"]:
        """Return the mask of the gaps of a column, (N,)."""
        cells = self.cells[column.name]
        return np.isnan(cells) if column.kind == "number" else cells == _GAP

    def _fit_levels(self, column: Column, train: Bool[np.ndarray, " N"]) -> ColumnFit:
        cells = self.cells[column.name][train]
        counts = np.bincount(cells[cells != _GAP], minlength=len(column.levels))
        has_indicator = column.indicator and bool((cells == _GAP).any())
        return fit_levels(column, counts, has_indicator, self.missing)

    def _fit_numbers(self, train: Bool[np.ndarray, " N"]) -> dict[str, ColumnFit]:
        """Return the fit of each column of numbers: the median, or else the mean, computed from sums of each client."""
        columns = [column for column in self.columns if column.kind == "number"]
        if not columns:
            return {}
        values = np.stack([self.cells[column.name][train] for column in columns], axis=1)
        if self.missing == "median":
            fills = np.nanmedian(values, axis=0)  # quicker than bisection, and equal
        else:
            fills = column_means(np.split(values, np.flatnonzero(np.diff(self.client[train])) + 1))
        fits = {}
        for column, fill, of_column in zip(columns, fills.tolist(), values.T, strict=True):
            has_gap = bool(np.isnan(of_column).any())
            fits[column.name] = ColumnFit(fill, (True, has_gap) if column.indicator else (True,))
        return fits


def fit_levels(column: Column, counts: Int[np.ndarray, " L"], has_indicator: bool, missing: MissingPolicy) -> ColumnFit:
    """Return the fit of a column of levels: the most frequent level, and the levels that the rows have.

    Args:
        counts: the number of rows of each level.
        has_indicator: whether an indicator tells the gaps of these rows.
    """
    is_seen = dict(zip(column.levels, (counts > 0).tolist(), strict=True))
    tells_levels = (counts > 0).sum() > 1
    informative = [bool(tells_levels) and is_seen[level] for level in column.encoded_levels]
    if column.indicator:
        informative.append(has_indicator)
    fill = None if missing == "refuse" or has_indicator else int(counts.argmax())
    return ColumnFit(fill, tuple(informative))


def read_cells(column: Column, features: Shaped[np.ndarray, "N f"], has_gap: Bool[np.ndarray, " N"]) -> np.ndarray:
    """Return the numbers of a column, NaN in gaps, or the numbers of its levels, -1 in gaps, (N,)."""
    if column.kind == "number":
        return np.where(has_gap, np.nan, features[:, 0].astype(np.float64))
    reference = len(column.levels) - len(column.encoded_levels)  # 1 where the first level has no feature
    levels = np.zeros(len(features), np.int16)
    for level, feature in enumerate(features.T[: len(column.encoded_levels)], reference):
        levels[feature == 1] = level
    return np.where(has_gap, np.int16(_GAP), levels)


def _encode(column: Column, cells: np.ndarray, fit: ColumnFit) -> list[np.ndarray]:
    """Return the features of a column by its fit, each (N,)."""
    if column.kind == "number":
        is_gap = np.isnan(cells)
        assert fit.fill is not None
        features = [np.where(is_gap, fit.fill, cells)]
    else:
        is_gap = cells == _GAP
        levels = cells if fit.fill is None else np.where(is_gap, fit.fill, cells)
        features = [levels == column.levels.index(level) for level in column.encoded_levels]
    if column.indicator:
        features.append(is_gap)
    return [feature * informative for feature, informative in zip(features, fit.informative, strict=True)]
