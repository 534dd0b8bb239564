"""How the columns of a table become features: the same for training, validation and new rows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.errors import UserError, suggest_name
from fcorun.records.formats import read_json
from fcorun.tables.columns import ColumnKind, is_missing, require_numbers, to_level_names
from fcorun.tables.data_warnings import abbreviate, describe_rows, normalize_name

ENCODING_FILE = "encoding.json"  # of a record
_NAMED = 10  # columns or levels in a remark


@dataclass(frozen=True)
class Column:
    """A column of a table, and the features that are made of it.

    Attributes:
        name: of the column, and of the feature that a column of numbers is.
        kind: "number", or "levels" of text, one feature "NAME=LEVEL" each, which is 1 where a row has that level.
        levels: those of the training rows, in order. Of two, the first is the reference and has no feature; of more,
            all have one, since a penalty would act on what differs from the reference, whichever that is.
        fill: what stands for a gap; None: nothing does.
        indicator: whether a last feature "NAME=missing" is 1 where there is a gap; levels are all 0 there.
    """

    name: str
    kind: ColumnKind = "number"
    levels: tuple[str, ...] = ()
    fill: float | str | None = None
    indicator: bool = False

    @property
    def encoded_levels(self) -> tuple[str, ...]:
        """The levels that have a feature."""
        return self.levels[1:] if len(self.levels) <= 2 else self.levels

    @property
    def features(self) -> tuple[str, ...]:
        """The names of its features."""
        own = (self.name,) if self.kind == "number" else tuple(f"{self.name}={level}" for level in self.encoded_levels)
        return (*own, f"{self.name}=missing") if self.indicator else own


@dataclass(frozen=True)
class Encoding:
    """The columns that are used, in the order of their features; made by ``fcorun.tables.encode.fit``.

    A record keeps it as encoding.json. Columns of a table that it does not name are no features.
    """

    columns: tuple[Column, ...]

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def column_of_feature(self) -> dict[str, str]:
        """The name of the column that each feature is made of."""
        return {name: column.name for column in self.columns for name in column.features}

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> "Encoding":
        """What ``noted`` gave. Raises KeyError, TypeError or ValueError where it is none."""
        return cls(tuple(Column(**{**each, "levels": tuple(each["levels"])}) for each in told["columns"]))

    def to_dict(self) -> dict[str, Any]:
        """As plain values, fit for JSON: each column with its kind, levels, fill and features."""
        told = [asdict(c) | {"levels": list(c.levels)} for c in self.columns]
        return {"columns": told, "features": list(self.feature_names)}

    def check_columns(self, names: Sequence[str], where: str) -> None:
        """Raises UserError, which begins with ``where``, for a column that is not among these."""
        there = set(names)
        if lost := [column.name for column in self.columns if column.name not in there]:
            hint = suggest_name(lost[0], names) if len(names) <= 30 else "columns go by their names"
            raise UserError(
                f"{where}: there is no column {abbreviate(list(map(repr, lost)))} to make features of; {hint}"
            )

    def apply(
        self,
        frame: Any,
        warnings: list[str] | None = None,
        where: str = "data",
        row_warnings: list[list[str]] | None = None,
    ) -> np.ndarray:
        """The features of the rows of a pandas.DataFrame, shape (rows, features), of a real dtype.

        Columns are found by name. What a user should know of these rows is added to ``remarks``: gaps that were
        filled, and levels that no training row has; and what is to be known of a single row to its list in ``of_rows``.
        Raises UserError, which begins with ``where``, for a column that is not there, a value that is no finite number,
        and a gap that nothing is known to fill with.
        """
        self.check_columns([str(name) for name in frame], where)
        filled: list[str] = []
        unseen: list[str] = []
        parts = []
        for column in self.columns:
            if column.kind == "number":
                found, empty = _numbers(column, frame[column.name], where)
            else:
                found, empty, new = _levels(column, frame[column.name], where)
                unseen += _unseen(column, new, row_warnings)
            filled += _filled(column, empty, row_warnings)
            parts += [*found, empty] if column.indicator else found
        if warnings is not None:
            warnings += [f"gaps are filled: {abbreviate(filled, _NAMED)}"] if filled else []
            warnings += unseen
        x = np.stack(parts, axis=1) if parts else np.empty((len(frame), 0))
        return x.astype(np.int8) if x.dtype == bool else x


def read_encoding(folder: str) -> Encoding:
    """That of a record. Raises UserError where it has none."""
    try:
        return Encoding.from_dict(read_json(Path(folder) / ENCODING_FILE))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"data.encoding={folder} is no record of a table with named columns, with its {ENCODING_FILE}: give the "
            "folder of one that is done"
        ) from error


def read_kinds(folder: str) -> dict[str, ColumnKind]:
    """What the columns of a record's table hold, by name; of a record without named columns nothing."""
    there = (Path(folder) / ENCODING_FILE).is_file()
    return {column.name: column.kind for column in read_encoding(folder).columns} if there else {}


def check_finite(values: np.ndarray, name: str, where: str) -> None:
    """Raises UserError for an infinite value in the column ``name`` of numbers, shape (N,); NaN are gaps."""
    if np.isinf(values).any():
        row = int(np.isinf(values).argmax()) + 1
        raise UserError(f"{where}: column '{name}' is infinite in row {row}; mend it or drop the row")


def _numbers(column: Column, series: Any, where: str) -> tuple[list[np.ndarray], np.ndarray]:
    """The feature of a column of numbers, and where it has gaps."""
    values = require_numbers(series, f"{where}: column '{column.name}'")
    if values.dtype.kind != "f":
        return [values], np.zeros(len(values), bool)
    check_finite(values, column.name, where)
    empty = _empty(column, np.isnan(values), where)
    return [
        np.where(empty, np.float64(column.fill or 0), values).astype(values.dtype) if empty.any() else values
    ], empty


def _levels(column: Column, series: Any, where: str) -> tuple[list[np.ndarray], np.ndarray, dict[str, list[int]]]:
    """The features of a column of levels, where it has gaps, and the rows of levels that training has not."""
    empty = _empty(column, is_missing(series), where)
    values = np.where(empty, column.fill, to_level_names(series)) if column.fill is not None else to_level_names(series)
    new: dict[str, list[int]] = {}
    for row, value in enumerate(values.tolist()):
        if value is not None and value not in column.levels:
            new.setdefault(value, []).append(row)
    return [(values == level).astype(np.int8) for level in column.encoded_levels], empty, new


def _unseen(column: Column, new: Mapping[str, list[int]], of_rows: list[list[str]] | None) -> list[str]:
    """A remark on levels that no training row has, by their rows, whose lists in ``of_rows`` say so too."""
    if not new:
        return []
    like, told = {normalize_name(level): level for level in column.levels}, []
    reference = f"'{next(iter(column.levels))}'" if len(column.levels) <= 2 else ""
    for level, rows in sorted(new.items()):
        meant = f"did you mean '{like[normalize_name(level)]}'?" if normalize_name(level) in like else ""
        told.append(f"'{level}' in {describe_rows(rows)}{meant and f' ({meant})'}")
        coded = f"coded as none{reference and f', which counts as {reference}'}"
        _to_rows(of_rows, rows, f"{column.name} '{level}' unknown{meant and f', {meant}'}: {coded}")
    same = f", as {reference} is" if reference else ""
    return [
        f"column '{column.name}' has levels that no training row has, {abbreviate(told, _NAMED)}: they are coded "
        f"as none "
        f"of its levels, with 0{same}"
    ]


def _filled(column: Column, empty: np.ndarray, of_rows: list[list[str]] | None) -> list[str]:
    """What is said of the gaps of a column, where they are filled; their rows' lists in ``of_rows`` say so too."""
    rows = np.flatnonzero(empty).tolist()
    if not rows:
        return []
    by = "" if column.fill is None else f"{column.fill:.6g}" if column.kind == "number" else f"'{column.fill}'"
    ways = [f"filled by {by}"] if by else []
    ways += ["marked as missing"] if column.indicator else []
    _to_rows(of_rows, rows, f"{column.name} empty: {' and '.join(ways)}")
    return [f"'{column.name}' by {by} in {describe_rows(rows)}"] if by else []


def _to_rows(of_rows: list[list[str]] | None, rows: list[int], told: str) -> None:
    if of_rows is not None:
        for row in rows:
            of_rows[row].append(told)


def _empty(column: Column, empty: np.ndarray, where: str) -> np.ndarray:
    """The gaps of a column, if they can be filled. Raises UserError where they cannot."""
    if empty.any() and column.fill is None and not column.indicator:
        row = int(empty.argmax()) + 1
        raise UserError(f"{where}: column '{column.name}' is missing in row {row}, and nothing is known to fill it in, "
                        "for training had data.missing=refuse: fill it in or drop the row")  # fmt: skip
    return empty
