"""The encoding of a table's columns as features, the same for training, validation and new rows, and of its target."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.errors import UserError, suggest_name
from fcorun.records.formats import read_json
from fcorun.tables.columns import ColumnKind, is_missing, require_numbers, to_level_names
from fcorun.tables.data_warnings import abbreviate, describe_rows, find_spelling, warn_similar_names

ENCODING_FILE = "encoding.json"  # in the folder of a record
_SHOWN = 10  # columns or levels that a warning lists
_MAX_SUGGESTIONS = 30  # similar names are suggested for a table with no more columns


@dataclass(frozen=True)
class Column:
    """A column of a table, and the features that are made of it.

    Attributes:
        name: the name of the column, and of the feature of a column of numbers.
        kind: "number", or "levels" of text. A level has a feature "NAME=LEVEL", which is 1 in the rows of that level.
        levels: the levels of the training rows, in order. Of one or two levels, the first is the reference and has no
            feature. Of more, all have one, since a penalty would act on the difference from a reference.
        fill: the value in place of a gap, or None where gaps are not filled.
        indicator: whether a last feature "NAME=missing" is 1 in the rows with a gap. All levels are 0 there.
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
        """The names of the column's features."""
        names = [f"{self.name}={level}" for level in self.encoded_levels]
        if self.kind == "number":
            names = [self.name]
        if self.indicator:
            names.append(f"{self.name}=missing")
        return tuple(names)


@dataclass(frozen=True)
class Encoding:
    """The columns that become features, in order; made by ``fcorun.tables.fit_encoding.fit_encoding``.

    A record has its encoding in encoding.json. Other columns of a table are no features.
    """

    columns: tuple[Column, ...]

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def column_of_feature(self) -> dict[str, str]:
        """The name of each feature's column, by the name of the feature."""
        return {name: column.name for column in self.columns for name in column.features}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Encoding":
        """Return the encoding that ``to_dict`` returned. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(tuple(Column(**{**column, "levels": tuple(column["levels"])}) for column in values["columns"]))

    def to_dict(self) -> dict[str, Any]:
        """Return the columns and the names of the features as plain values, fit for JSON."""
        columns = [vars(column) | {"levels": list(column.levels)} for column in self.columns]
        return {"columns": columns, "features": list(self.feature_names)}

    def check_columns(self, names: Sequence[str], where: str) -> None:
        """Raise UserError, which begins with ``where``, if a column of the encoding is not in ``names``."""
        available = set(names)
        absent = [column.name for column in self.columns if column.name not in available]
        if absent:
            hint = suggest_name(absent[0], names) if len(names) <= _MAX_SUGGESTIONS else "columns go by their names"
            raise UserError(
                f"{where}: there is no column {abbreviate(list(map(repr, absent)))} to make features of; {hint}"
            )

    def find_gaps(self, frame: Any) -> dict[str, np.ndarray]:
        """Return the mask of the rows of a pandas.DataFrame without a value, (N,), for each column with such rows."""
        masks = {column.name: is_missing(frame[column.name]) for column in self.columns}
        return {name: mask for name, mask in masks.items() if mask.any()}

    def apply(
        self,
        frame: Any,
        warnings: list[str] | None = None,
        where: str = "data",
        row_warnings: list[list[str]] | None = None,
    ) -> np.ndarray:
        """Return the features of the rows of a pandas.DataFrame, shape (N, d), of a real dtype.

        Columns are found by name. Filled gaps and levels that no training row has are appended to ``warnings``, and
        for each of their rows to its list in ``row_warnings``.

        Raises UserError, which begins with ``where``, for a missing column, a value that is no finite number, and a
        gap without a fill.
        """
        self.check_columns([str(name) for name in frame], where)
        x = self._take_numbers(frame)
        if x is not None:
            return x
        filled: list[str] = []
        unseen: list[str] = []
        features = []
        for column in self.columns:
            if column.kind == "number":
                values, gaps = _encode_numbers(column, frame[column.name], where)
            else:
                values, gaps, unseen_rows = _encode_levels(column, frame[column.name], where)
                unseen += _warn_unseen_levels(column, unseen_rows, row_warnings)
            filled += _describe_filled(column, gaps, row_warnings)
            features += values
            if column.indicator:
                features.append(gaps)
        if warnings is not None:
            if filled:
                warnings.append(f"gaps are filled: {abbreviate(filled, _SHOWN)}")
            warnings += unseen
        x = np.stack(features, axis=1) if features else np.empty((len(frame), 0))
        return x.astype(np.int8) if x.dtype == bool else x

    def _take_numbers(self, frame: Any) -> np.ndarray | None:
        """Return the features of finite floats in all columns, which are their values; None for other columns."""
        names = [column.name for column in self.columns if column.kind == "number" and not column.indicator]
        is_float = [isinstance(dtype, np.dtype) and dtype.kind == "f" for dtype in set(frame.dtypes)]
        if not names or len(names) < len(self.columns) or is_float != [True] or not frame.columns.is_unique:
            return None
        x = np.ascontiguousarray(frame[names].to_numpy())
        return x if np.isfinite(x).all() else None


def read_encoding(folder: str) -> Encoding:
    """Read the encoding of a record. Raises UserError for a record without one."""
    try:
        return Encoding.from_dict(read_json(Path(folder) / ENCODING_FILE))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"data.encoding={folder} is no record of a table with named columns, with its {ENCODING_FILE}: give the "
            "folder of one that is done"
        ) from error


def read_kinds(folder: str) -> dict[str, ColumnKind]:
    """Return the kinds of a record's columns by name, none for a record without named columns."""
    if not (Path(folder) / ENCODING_FILE).is_file():
        return {}
    return {column.name: column.kind for column in read_encoding(folder).columns}


def check_finite(values: np.ndarray, name: str, where: str) -> None:
    """Raise UserError for an infinite value in the column ``name`` of numbers, shape (N,); NaN are gaps."""
    if np.isinf(values).any():
        row = int(np.isinf(values).argmax()) + 1
        raise UserError(f"{where}: column '{name}' is infinite in row {row}; mend it or drop the row")


def _encode_numbers(column: Column, series: Any, where: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the feature of a column of numbers in a list, and the mask of its gaps, shape (N,)."""
    values = require_numbers(series, f"{where}: column '{column.name}'")
    if values.dtype.kind != "f":
        return [values], np.zeros(len(values), bool)
    check_finite(values, column.name, where)
    gaps = np.isnan(values)
    _check_fillable(column, gaps, where)
    if gaps.any():
        values = np.where(gaps, np.float64(column.fill or 0), values).astype(values.dtype)
    return [values], gaps


def _encode_levels(
    column: Column, series: Any, where: str
) -> tuple[list[np.ndarray], np.ndarray, dict[str, list[int]]]:
    """Return the features of a column of levels, the mask of its gaps, and the rows of each unseen level.

    A level is unseen if no training row has it.
    """
    gaps = is_missing(series)
    _check_fillable(column, gaps, where)
    values = to_level_names(series)
    if column.fill is not None:
        values = np.where(gaps, column.fill, values)
    unseen_rows: dict[str, list[int]] = {}
    for row, value in enumerate(values.tolist()):
        if value is not None and value not in column.levels:
            unseen_rows.setdefault(value, []).append(row)
    return [(values == level).astype(np.int8) for level in column.encoded_levels], gaps, unseen_rows


def _check_fillable(column: Column, gaps: np.ndarray, where: str) -> None:
    """Raise UserError for gaps in a column without a fill."""
    if gaps.any() and column.fill is None and not column.indicator:
        row = int(gaps.argmax()) + 1
        raise UserError(f"{where}: column '{column.name}' is missing in row {row}, and the record has no value for "
                        "gaps, since training had data.missing=refuse: fill it in or drop the row")  # fmt: skip


def _warn_unseen_levels(
    column: Column, unseen_rows: Mapping[str, list[int]], row_warnings: list[list[str]] | None
) -> list[str]:
    """Return a warning about the unseen levels of a column, and append one to the list of each of their rows."""
    if not unseen_rows:
        return []
    reference = f"'{next(iter(column.levels))}'" if len(column.levels) <= 2 else ""
    coding = f"coded as none, which counts as {reference}" if reference else "coded as none"
    descriptions = []
    for level, rows in sorted(unseen_rows.items()):
        description = f"'{level}' in {describe_rows(rows)}"
        row_warning = f"{column.name} '{level}' unknown"
        similar = find_spelling(level, column.levels)
        if similar is not None:
            description += f" (did you mean '{similar}'?)"
            row_warning += f", did you mean '{similar}'?"
        descriptions.append(description)
        _append_to_rows(row_warnings, rows, f"{row_warning}: {coding}")
    coded_as = f", as {reference} is" if reference else ""
    return [f"column '{column.name}' has levels that no training row has, {abbreviate(descriptions, _SHOWN)}: they are "
            f"coded as none of its levels, with 0{coded_as}"]  # fmt: skip


def _describe_filled(column: Column, gaps: np.ndarray, row_warnings: list[list[str]] | None) -> list[str]:
    """Return a description of the filled gaps of a column, and append a warning to the list of each of their rows."""
    rows = np.flatnonzero(gaps).tolist()
    if not rows:
        return []
    treatments = []
    fill = None
    if column.fill is not None:
        fill = f"{column.fill:.6g}" if column.kind == "number" else f"'{column.fill}'"
        treatments.append(f"filled by {fill}")
    if column.indicator:
        treatments.append("marked as missing")
    _append_to_rows(row_warnings, rows, f"{column.name} empty: {' and '.join(treatments)}")
    return [] if fill is None else [f"'{column.name}' by {fill} in {describe_rows(rows)}"]


def _append_to_rows(row_warnings: list[list[str]] | None, rows: list[int], warning: str) -> None:
    if row_warnings is not None:
        for row in rows:
            row_warnings[row].append(warning)


def encode_targets(y: np.ndarray, task: str, where: str) -> tuple[np.ndarray, tuple]:
    """Return the targets and the sorted classes.

    Targets are numbers without classes for a regression and for times, otherwise class indices, shape (N,). Raises
    UserError, which begins with ``where``, for values that do not fit the task.
    """
    if task in ("regression", "survival"):
        if y.dtype.kind not in "fiub":
            raise UserError(f"{where} is text ('{y[0]}'); give data.task=binary or multiclass, or another target")
        return (y if y.dtype.kind == "f" else y.astype(np.float64)), ()
    if y.dtype.kind == "f" and (y == np.floor(y)).all():
        y = y.astype(np.int64)  # LIBSVM writes labels as real numbers
    classes, indices = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise UserError(f"{where} holds one class only ('{classes[0]}'); two or more are needed to classify")
    if task == "binary" and len(classes) > 2:
        first = ", ".join(map(str, classes[:3].tolist()))
        if y.dtype.kind in "fiu":
            advice = " or regression"
        else:
            advice = "".join(f"; {warning}" for warning in warn_similar_names("its labels", classes.tolist()))
        raise UserError(f"{where} holds {len(classes)} classes ({first}, ..); give data.task=multiclass{advice}")
    if task == "multiclass" and y.dtype.kind == "f":
        raise UserError(f"{where} holds fractions ({y[y != np.floor(y)][0]}), not labels; give data.task=regression")
    return indices.astype(np.int32), tuple(classes.tolist())


def order_classes(y: np.ndarray, classes: tuple, positive: str | bool | None, where: str) -> tuple[np.ndarray, tuple]:
    """Return class indices y, shape (N,), and the two classes, the ``positive`` one second.

    The order stays if ``positive`` is None. Raises UserError, which ends with ``where``, for an unknown label.
    """
    if positive is None:
        return y, classes
    names = [str(label) for label in classes]
    if str(positive) not in names:
        raise UserError(f"data.positive={positive} is no label of {where}; {suggest_name(positive, names)}")
    if str(positive) == names[1]:
        return y, classes
    return (1 - y).astype(y.dtype), classes[::-1]
