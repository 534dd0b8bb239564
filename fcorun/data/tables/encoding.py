"""The encoding of a table's columns as features: its fit to training rows, its use on new rows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fcorun.base.errors import UserError, abbreviate, describe_rows, find_spelling, suggest_name, warn_similar_names
from fcorun.base.records.formats import read_json
from fcorun.data.tables.cells import coerce_numbers, is_missing, require_numbers, to_level_names
from fcorun.data.tables.column_kinds import check_level_count
from fcorun.data.tables.column_statistics import column_means, column_medians, count_levels
from fcorun.data.tables.columns import ColumnKind

# Columns, and the encoding of them all.

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
        other: the level of rows whose level is rare at their site, or unseen in training rows; None: all training rows
            have their own level, and all levels are 0 in rows of an unseen one.
    """

    name: str
    kind: ColumnKind = "number"
    levels: tuple[str, ...] = ()
    fill: float | str | None = None
    indicator: bool = False
    other: str | None = None

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

    def to_dict(self) -> dict[str, Any]:
        """Return the column as plain values, without ``other`` if no level stands for others."""
        values = vars(self) | {"levels": list(self.levels)}
        if self.other is None:
            del values["other"]
        return values


@dataclass(frozen=True)
class Encoding:
    """The columns that become features, in order; made by ``fit_encoding``.

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
        columns = [column.to_dict() for column in self.columns]
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

    A level is unseen if it is no level of the column: no training row has it, or it was rare at its site.
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
            values[row] = column.other
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
    coded_as = f", as {reference} is" if reference else ""
    kind, coding_of_row = "unknown", f"coded as none, which counts as {reference}" if reference else "coded as none"
    problem, coding = "that no training row has", f"coded as none of its levels, with 0{coded_as}"
    if column.other is not None:
        kind, problem, coding = "rare or unknown", "that are rare or unseen", f"coded as '{column.other}'"
        coding_of_row = coding
    descriptions = []
    for level, rows in sorted(unseen_rows.items()):
        description = f"'{level}' in {describe_rows(rows)}"
        row_warning = f"{column.name} '{level}' {kind}"
        similar = find_spelling(level, column.levels)
        if similar is not None:
            description += f" (did you mean '{similar}'?)"
            row_warning += f", did you mean '{similar}'?"
        descriptions.append(description)
        _append_to_rows(row_warnings, rows, f"{row_warning}: {coding_of_row}")
    return [f"column '{column.name}' has levels {problem}, {abbreviate(descriptions, _SHOWN)}: they are {coding}"]


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


# The fit of an encoding: each client counts and sums its training rows, and the server combines counts and sums.

MissingPolicy = Literal["refuse", "mean", "median", "indicator"]


@dataclass(frozen=True)
class ClientRows:
    """The rows of each client in a table.

    Attributes:
        client_names: the names of the clients.
        client_index: the index of each row's client, shape (N,).
        is_training: the mask of training rows, shape (N,).
    """

    client_names: Sequence[str]
    client_index: np.ndarray
    is_training: np.ndarray

    def training_rows(self) -> dict[str, np.ndarray]:
        """Return the indices of each client's training rows, for the clients that have some."""
        rows = np.flatnonzero(self.is_training)
        rows = rows[np.argsort(self.client_index[rows], kind="stable")]
        rows_by_client = np.split(rows, np.flatnonzero(np.diff(self.client_index[rows])) + 1)
        return {self.client_names[int(self.client_index[rows[0]])]: rows for rows in rows_by_client if len(rows)}

    def held_out_clients(self) -> list[str]:
        """Return the names of the clients that have held-out rows and no training rows."""
        n_rows = np.bincount(self.client_index, minlength=len(self.client_names))
        n_training = np.bincount(self.client_index, self.is_training, len(self.client_names))
        return [name for m, name in enumerate(self.client_names) if n_rows[m] and not n_training[m]]

    def client_of_row(self) -> np.ndarray:
        """Return the name of each row's client, "" for a row of no client, shape (N,)."""
        return np.array([*self.client_names, ""])[self.client_index]


def encode(
    frame: Any, kinds: dict[str, ColumnKind] | Encoding, client_rows: ClientRows, missing: MissingPolicy, *, where: str
) -> tuple[Encoding, np.ndarray, list[str]]:
    """Return the encoding of a pandas.DataFrame, its features, shape (N, d), and warnings.

    ``kinds`` are the kinds of the columns, or a given encoding, which is applied as it is. Raises UserError as
    ``fit_encoding`` and ``Encoding.apply`` do.
    """
    warnings: list[str] = []
    if isinstance(kinds, Encoding):
        encoding = kinds
        encoded = {column.name for column in encoding.columns}
        unused = [repr(name) for name in frame if name not in encoded]
        if unused:
            warnings.append(f"columns that the record does not use are left out: {abbreviate(unused)}")
    else:
        encoding = fit_encoding(frame, kinds, client_rows, missing=missing, warnings=warnings, where=where)
    return encoding, encoding.apply(frame, warnings, where), warnings


def fit_encoding(
    frame: Any,
    kinds: dict[str, ColumnKind],
    client_rows: ClientRows,
    *,
    missing: MissingPolicy,
    warnings: list[str],
    where: str,
) -> Encoding:
    """Fit an encoding to the training rows of a pandas.DataFrame whose columns have these kinds.

    Means come from the clients' sums and counts, medians from counts below thresholds
    (``column_medians``), and levels from the union of the clients' levels and the sum of their
    counts. A gap in a column of levels becomes the most frequent level, of equally frequent ones the first by name.
    With "indicator", a gap in a column of numbers becomes the mean, and a gap among levels becomes no level.
    True and False are the numbers 1 and 0. A column of text with one level makes no feature.

    Warnings are appended to ``warnings``. Raises UserError, which begins with ``where``, for columns that cannot be
    features, for a column without a value in any training row, for gaps if ``missing`` is "refuse", and where no
    feature is left.
    """
    rows_by_client = client_rows.training_rows()
    gaps: dict[str, np.ndarray] = {}
    for name in frame:
        mask = is_missing(frame[name])
        if mask.any():
            gaps[name] = mask
            _check_gaps(name, mask, rows_by_client, missing, where)
    fills = _fit_fills(frame, [name for name in frame if kinds[name] == "number"], rows_by_client, missing, where)

    columns: list[Column] = []
    single_level = []
    for name in frame:
        indicator = missing == "indicator" and name in gaps and bool(gaps[name][client_rows.is_training].any())
        if kinds[name] == "number":
            columns.append(Column(name, fill=fills.get(name), indicator=indicator))
            continue
        column = make_level_column(name, _count_levels(frame[name], rows_by_client, where), indicator, missing)
        if column.features:
            columns.append(column)
        else:
            single_level.append(f"'{name}' ('{column.levels[0]}')")
        warnings += warn_similar_names(f"levels of '{name}'", column.levels)

    warnings += _warn_clients_without_values(gaps, kinds, rows_by_client, missing)
    warnings += _warn_numbers_as_text(frame, kinds, client_rows.client_of_row())
    warnings += _warn_encoded_text(columns)
    if single_level:
        warnings.append(f"text columns with one level in the training rows make no feature: {abbreviate(single_level)}")
    encoding = Encoding(tuple(columns))
    check_feature_names(encoding, where)
    return encoding


def make_level_column(name: str, counts: Mapping[str, int], indicator: bool, missing: MissingPolicy) -> Column:
    """Return the column of levels with these ``counts`` of training rows."""
    most_frequent = min(counts, key=lambda level: (-counts[level], level))
    fill = None if missing == "refuse" or indicator else most_frequent
    return Column(name, "levels", tuple(sorted(counts)), fill, indicator)


def check_feature_names(encoding: Encoding, where: str) -> None:
    """Raise UserError, which begins with ``where``, for two features with one name, and if there is no feature."""
    for name, count in Counter(encoding.feature_names).items():
        if count > 1:
            raise UserError(f"{where}: two features would be called '{name}': rename the column or the level")
    if not encoding.feature_names:
        raise UserError(f"{where}: not one feature is left; give columns that differ between rows")


def _check_gaps(
    name: str, gaps: np.ndarray, rows_by_client: dict[str, np.ndarray], missing: MissingPolicy, where: str
) -> None:
    """Raise UserError for a column without a value in any training row, and for gaps if they are refused."""
    column, first = f"{where}: column '{name}'", int(gaps.argmax()) + 1
    clients = _clients_without_values(gaps, rows_by_client)
    if len(clients) == len(rows_by_client):
        raise UserError(f"{column} has no value in any training row (its first gap is in row {first}): "
                        f"data.ignore=[{name}] leaves it out")  # fmt: skip
    if missing == "refuse":
        absent = f", and no value at all at {abbreviate(clients)}" if clients else ""
        raise UserError(f"{column} is missing in row {first}, in {gaps.sum()} of {len(gaps)} rows{absent}: give "
                        f"data.missing=mean, median or indicator, or data.ignore=[{name}]")  # fmt: skip


def _clients_without_values(gaps: np.ndarray, rows_by_client: dict[str, np.ndarray]) -> list[str]:
    """Return the quoted names of the clients whose training rows are all gaps."""
    return [f"'{client}'" for client, rows in rows_by_client.items() if gaps[rows].all()]


def _fit_fills(
    frame: Any, names: list[str], rows_by_client: dict[str, np.ndarray], missing: MissingPolicy, where: str
) -> dict[str, float]:
    """Return the fill of each of these columns of numbers. Raises UserError for infinite values."""
    if missing == "refuse" or not names:
        return {}
    values = np.stack([coerce_numbers(frame[name])[0].astype(np.float64) for name in names], axis=1)
    for name, column in zip(names, values.T, strict=True):
        check_finite(column, name, where)
    matrices = [values[rows] for rows in rows_by_client.values()]
    fills = column_medians(matrices) if missing == "median" else column_means(matrices)
    return dict(zip(names, fills.tolist(), strict=True))


def _count_levels(series: Any, rows_by_client: dict[str, np.ndarray], where: str) -> Counter[str]:
    """Count the training rows of each level of a column. Raises UserError for too many levels."""
    names = to_level_names(series)
    names_by_client = [[name for name in names[rows] if name is not None] for rows in rows_by_client.values()]
    counts = count_levels(names_by_client)
    check_level_count(str(series.name), len(counts), sum(map(len, names_by_client)), where)
    return counts


def _warn_clients_without_values(
    gaps: dict[str, np.ndarray],
    kinds: dict[str, ColumnKind],
    rows_by_client: dict[str, np.ndarray],
    missing: MissingPolicy,
) -> list[str]:
    """Return a warning for each kind of column, about the columns that some client has no value of."""
    descriptions: dict[str, list[str]] = {}
    for name, mask in gaps.items():
        clients = _clients_without_values(mask, rows_by_client)
        if clients:
            fill = f"the {'mean' if missing == 'indicator' else missing} of the others"
            if kinds[name] == "levels":
                fill = "no level" if missing == "indicator" else "the most frequent level of the others"
            descriptions.setdefault(fill, []).append(f"'{name}' at {abbreviate(clients)}")
    return [
        f"some clients have no value of a column, and get {fill}: {abbreviate(columns)}"
        for fill, columns in descriptions.items()
    ]


def _warn_numbers_as_text(frame: Any, kinds: dict[str, ColumnKind], client_of_row: np.ndarray) -> list[str]:
    """Return a warning about columns of numbers some of which, but not all, are stored as text."""
    descriptions = []
    for name in frame:
        if kinds[name] == "number" and frame[name].dtype == object:
            present = ~is_missing(frame[name])
            is_text = np.array([isinstance(value, str) for value in frame[name]]) & present
            if is_text.any() and not is_text[present].all():
                clients = sorted(set(client_of_row[is_text].tolist()))
                descriptions.append(f"'{name}' of client {abbreviate(clients)}")
    if not descriptions:
        return []
    return [f"numbers that are stored as text are read as numbers: {abbreviate(descriptions)}"]


def _warn_encoded_text(columns: list[Column]) -> list[str]:
    """Return a sentence about the features that columns of text have become."""
    descriptions = []
    for column in columns:
        if column.kind != "levels" or not column.encoded_levels:
            continue
        if len(column.encoded_levels) == 1:
            descriptions.append(f"'{column.name}' as {column.features[0]} ('{column.levels[0]}' is 0)")
        else:
            descriptions.append(f"'{column.name}' as {len(column.encoded_levels)} levels")
    if not descriptions:
        return []
    return [f"text columns are coded as features of 0 and 1: {abbreviate(descriptions, _SHOWN)}"]
