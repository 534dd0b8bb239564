"""Columns of levels: each level has a feature of 0 and 1, and a gap becomes the most frequent level.

A level that no training row has is coded as the mean of the levels. Each level of more than two has a feature, so that
only the sums of the intercept and of each coefficient follow from the training rows; none of the levels, 0 in all
features, would have predictions that depend on the solver.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from fcorun.base.errors import UserError, abbreviate, describe_rows, find_spelling, warn_similar_names
from fcorun.data.tables.cells import is_missing, to_level_names
from fcorun.data.tables.columns.column import (
    Column,
    ColumnDescription,
    ColumnFit,
    EncodedCells,
    MissingPolicy,
    TrainingRows,
)

MAX_LEVELS = 100  # a column with more levels, or with more than half as many as rows, holds names of rows or persons
_FEW_ROWS = 20  # the share of levels is not checked in a table with fewer rows
_MOST_LEVELS = 1000  # of a column at all sites together, each of which has a feature
_SHOWN = 10  # levels that a warning lists
_GAP = -1  # in place of the number of a level


@dataclass(frozen=True)
class LevelColumn(Column):
    """A column of text. A level has a feature "NAME=LEVEL", which is 1 in the rows of that level.

    Of one or two levels, the first is the reference and has no feature. Of more, all have one, since a penalty would
    act on the difference from a reference. A gap becomes the most frequent level of the training rows, of equally
    frequent ones the first by name. Where an indicator marks gaps, all levels are 0 there.

    Attributes:
        other: the level of rows whose level is rare at their site, or unseen in training rows; None: all training rows
            have their own level, and rows of an unseen one are the mean of the levels.
    """

    other: str | None = None

    kind = "levels"
    content = "text"
    has_levels = True

    @property
    def encoded_levels(self) -> tuple[str, ...]:
        """The levels that have a feature."""
        if len(self.levels) <= 2:
            return self.levels[1:]
        return self.levels

    @property
    def value_features(self) -> tuple[str, ...]:
        return tuple(f"{self.name}={level}" for level in self.encoded_levels)

    @property
    def reference(self) -> str | None:
        if len(self.levels) == 2:
            return self.levels[0]
        return None

    @property
    def adds_up_to_one(self) -> bool:
        return len(self.levels) > 2

    def label_values(self, label: str, label_with_unit: str) -> list[str]:
        return [f"{label}: {level}" for level in self.encoded_levels]

    def describe_coding(self) -> str:
        if len(self.levels) == 1:
            return f"'{self.name}' ('{self.levels[0]}')"
        if len(self.levels) == 2:
            return f"'{self.name}' as {self.features[0]} ('{self.levels[0]}' is 0)"
        return f"'{self.name}' as {len(self.levels)} levels"

    def warn_similar_levels(self) -> list[str]:
        return warn_similar_names(f"levels of '{self.name}'", self.levels)

    def describe_fill(self) -> str:
        return f"'{self.fill}'"

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        if self.other is not None:  # which records of pooled tables do not have
            values["other"] = self.other
        return values

    def find_faults(self) -> Iterator[str]:
        if len(self.levels) > _MOST_LEVELS:
            yield f"has more than {_MOST_LEVELS} levels of '{self.name}'"
        if self.levels != tuple(sorted(set(map(str, self.levels)))):
            yield f"has unsorted levels of '{self.name}'"
        if not self.levels or (self.fill is not None and self.fill not in self.levels):
            yield f"has gaps of '{self.name}' filled by none of its levels"

    def read_values(self, series: Any) -> np.ndarray:
        return to_level_names(series)

    def describe(self, series: Any, rows: TrainingRows, missing: MissingPolicy, where: str) -> ColumnDescription:
        names = to_level_names(series)[rows.row].tolist()
        counts = Counter(names)
        n_gaps = counts.pop(None, 0)
        return ColumnDescription(n_gaps > 0, counts.total(), level_counts=counts)

    def fit(self, description: ColumnDescription, missing: MissingPolicy, where: str) -> Self:
        """Return the column with the levels of the described rows.

        Raises UserError for rows without a value, and for so many levels that they must name rows or persons.
        """
        counts = description.level_counts
        fitted = super().fit(description, missing, where)
        check_level_count(self.name, len(counts), description.n_values, where)
        other = description.other if description.other in counts else None
        return replace(fitted, levels=tuple(sorted(counts)), other=other)

    def find_fill(self, description: ColumnDescription, missing: MissingPolicy, indicator: bool) -> str | None:
        if missing == "refuse" or indicator:
            return None
        counts = description.level_counts
        return min(counts, key=lambda level: (-counts[level], level))

    def encode(self, series: Any, where: str) -> EncodedCells:
        """Return the features of the rows; a level that no training row has is ``other``, or the mean of the levels.

        Raises UserError, which begins with ``where``, for a gap without a fill.
        """
        gaps = is_missing(series)
        self.check_fillable(gaps, where)
        values = to_level_names(series)
        if self.fill is not None:
            values = np.where(gaps, self.fill, values)
        unseen_rows: dict[str, list[int]] = {}
        for row, value in enumerate(values.tolist()):
            if value is not None and value not in self.levels:
                unseen_rows.setdefault(value, []).append(row)
                values[row] = self.other
        features = [(values == level).astype(np.int8) for level in self.encoded_levels]
        if not unseen_rows:
            return EncodedCells(features, gaps)
        if self.other is None:
            unseen = np.concatenate(list(unseen_rows.values()))
            features = [feature.astype(np.float64) for feature in features]
            for feature, mean in zip(features, self.features_of_levels().mean(axis=0), strict=True):
                feature[unseen] = mean
        return EncodedCells(features, gaps, *self._warn_unseen(unseen_rows))

    def _warn_unseen(self, unseen_rows: Mapping[str, list[int]]) -> tuple[str, dict[int, str]]:
        """Return a warning about the levels that the column does not have, and one for each row with such a level."""
        problem = "that no training row has"
        kind = "unknown"
        coding = f"coded as the mean of its levels, with 1/{len(self.levels)}"
        if self.other is not None:
            problem = "that are rare or unseen"
            kind = "rare or unknown"
            coding = f"coded as '{self.other}'"
        descriptions = []
        row_warnings = {}
        for level, rows in sorted(unseen_rows.items()):
            similar = find_spelling(level, self.levels)
            question = "" if similar is None else f" (did you mean '{similar}'?)"
            descriptions.append(f"'{level}' in {describe_rows(rows)}{question}")
            row_warnings |= dict.fromkeys(rows, f"{self.name} '{level}' {kind}{question}: {coding}")
        listed = abbreviate(descriptions, _SHOWN)
        return f"column '{self.name}' has levels {problem}, {listed}: they are {coding}", row_warnings

    def read_cells(self, features: Shaped[np.ndarray, "N f"], has_gap: Bool[np.ndarray, " N"]) -> np.ndarray:
        """Return the number of each row's level, -1 in gaps, (N,)."""
        reference = len(self.levels) - len(self.encoded_levels)  # 1 where the first level has no feature
        numbers = np.zeros(len(features), np.int16)
        for number, feature in enumerate(features.T[: len(self.encoded_levels)], reference):
            numbers[feature == 1] = number
        return np.where(has_gap, np.int16(_GAP), numbers)

    def features_of_levels(self) -> Float[np.ndarray, "L f"]:
        return (np.array(self.levels)[:, None] == np.array(self.encoded_levels)).astype(np.float64)

    def find_gaps(self, cells: Int[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
        return cells == _GAP

    def describe_cells(
        self, cells: Int[np.ndarray, " n"], client: Int[np.ndarray, " n"], missing: MissingPolicy
    ) -> ColumnDescription:
        has_value = cells != _GAP
        counts = np.bincount(cells[has_value], minlength=len(self.levels)).tolist()
        level_counts = Counter(dict(zip(self.levels, counts, strict=True)))
        return ColumnDescription(not has_value.all(), int(has_value.sum()), level_counts=level_counts)

    def find_informative(self, description: ColumnDescription) -> list[bool]:
        """Return which levels the rows have: a single one tells nothing."""
        counts = description.level_counts
        tells_levels = sum(count > 0 for count in counts.values()) > 1
        return [tells_levels and counts[level] > 0 for level in self.encoded_levels]

    def encode_cells(self, cells: Int[np.ndarray, " N"], fill: float | str | None) -> list[np.ndarray]:
        if fill is not None:
            cells = np.where(cells == _GAP, self.levels.index(str(fill)), cells)
        return [cells == self.levels.index(level) for level in self.encoded_levels]

    def encode_by_part(self, cells: Int[np.ndarray, " N"], fit: ColumnFit) -> list[np.ndarray]:
        features = super().encode_by_part(cells, fit)
        is_known = np.array(fit.informative[: len(self.encoded_levels)])
        if not self.adds_up_to_one or is_known.all() or not is_known.any():
            return features
        is_unseen = (cells != _GAP) & ~is_known[cells]
        for position in np.flatnonzero(is_known):
            features[position] = np.where(is_unseen, 1 / is_known.sum(), features[position])
        return features


def check_level_count(name: str, n_levels: int, n_rows: int, where: str) -> None:
    """Raise UserError for a column of text with so many levels that they must name rows, persons or numbers."""
    if n_levels <= MAX_LEVELS and (n_rows < _FEW_ROWS or n_levels <= n_rows / 2):
        return
    condition = "names rows or persons"
    if n_levels < n_rows:
        condition = (
            f"names rows, `data.group={name}` if it names persons or other groups of rows, which then stay together"
        )
    raise UserError(
        f"{where}: column '{name}' has {n_levels} levels in {n_rows} training rows, more than {MAX_LEVELS} or half of "
        f"the rows: `data.ignore=[{name}]` leaves it out if it {condition}; else group its levels, or write numbers "
        "without units"
    )
