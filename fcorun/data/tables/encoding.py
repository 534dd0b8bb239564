"""The encoding of a table's columns as features: its fit to training rows, its use on new rows."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.base.errors import UserError, abbreviate, describe_rows, suggest_name
from fcorun.base.records.contents import ENCODING
from fcorun.data.tables.cells import is_missing
from fcorun.data.tables.columns import COLUMN_KINDS, Column, MissingPolicy
from fcorun.data.tables.columns.column import TrainingRows

# Columns, and the encoding of them all.

ENCODING_FILE = "encoding.json"  # in the folder of a record
_SHOWN = 10  # columns that a warning lists
_MAX_SUGGESTIONS = 30  # similar names are suggested for a table with no more columns


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

    @property
    def curve_of_feature(self) -> dict[str, str]:
        """The name of the column of each feature that is a term of a curve, by the name of the feature."""
        curves = [column for column in self.columns if column.makes_curve]
        return {name: column.name for column in curves for name in column.value_features}

    @property
    def reference_of_feature(self) -> dict[str, str]:
        """The first level of each column whose features add up to one, by the names of all of these features."""
        columns = [column for column in self.columns if column.adds_up_to_one]
        return {name: column.features[0] for column in columns for name in column.features}

    @property
    def level_features(self) -> tuple[str, ...]:
        """The names of the features of columns of levels."""
        return tuple(name for column in self.columns if column.has_levels for name in column.features)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Encoding":
        """Return the encoding that ``to_dict`` returned. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(tuple(COLUMN_KINDS[column["kind"]].from_dict(column) for column in values["columns"]))

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
        return find_gaps(frame[[column.name for column in self.columns]])

    def apply(
        self,
        frame: Any,
        warnings: list[str] | None = None,
        where: str = "data",
        row_warnings: list[list[str]] | None = None,
        unknown_levels: defaultdict[int, list[str]] | None = None,
    ) -> np.ndarray:
        """Return the features of the rows of a pandas.DataFrame, shape (N, d), of a real dtype.

        Columns are found by name. Filled gaps and levels that no training row has are appended to ``warnings``, and
        for each of their rows to its list in ``row_warnings``, unknown levels alone also to that in ``unknown_levels``.

        Raises UserError, which begins with ``where``, for a missing column, a value that is no finite number, and a
        gap without a fill.
        """
        self.check_columns([str(name) for name in frame], where)
        filled: list[str] = []
        unseen: list[str] = []
        features = []
        for column in self.columns:
            cells = column.encode(frame[column.name], where)
            unseen += [cells.warning] if cells.warning else []
            for row, warning in cells.row_warnings.items():
                for texts in (row_warnings, unknown_levels):
                    if texts is not None:
                        texts[row].append(warning)
            gaps = np.flatnonzero(cells.gaps).tolist()
            treatments = []
            if gaps and column.fill is not None:
                treatments.append(f"filled by {column.describe_fill()}")
                filled.append(f"'{column.name}' by {column.describe_fill()} in {describe_rows(gaps)}")
            if column.indicator:
                treatments.append("marked as missing")
            if row_warnings is not None:
                for row in gaps:
                    row_warnings[row].append(f"{column.name} empty: {' and '.join(treatments)}")
            features += cells.features
            if column.indicator:
                features.append(cells.gaps)
        if warnings is not None:
            if filled:
                warnings.append(f"gaps are filled: {abbreviate(filled, _SHOWN)}")
            warnings += unseen
        x = np.stack(features, axis=1) if features else np.empty((len(frame), 0))
        if x.dtype == bool:
            return x.astype(np.int8)
        return x


def join_remarks(texts: Mapping[int, Sequence[str]], n_rows: int) -> np.ndarray | None:
    """Return the remark on each row, text, shape (N,), "" for none; None without any remark."""
    if not texts:
        return None
    remarks = np.full(n_rows, "", object)
    for row, of_row in texts.items():
        remarks[row] = "; ".join(of_row)
    return remarks


def find_gaps(frame: Any) -> dict[str, np.ndarray]:
    """Return the mask of the rows of a pandas.DataFrame without a value, (N,), for each column with such rows."""
    masks = {name: is_missing(series) for name, series in frame.items()}
    return {name: mask for name, mask in masks.items() if mask.any()}


def read_encoding(folder: str) -> Encoding:
    """Read the encoding of a record. Raises UserError for a record without one."""
    try:
        encoding = Encoding.from_dict(ENCODING.read(Path(folder)))
        for fault in (fault for column in encoding.columns for fault in column.find_faults()):
            raise ValueError(fault)
        return encoding
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"`data.encoding={folder}` is no record of a table with named columns, with its {ENCODING_FILE}: give the "
            "folder of one that is done, or an encoding of characters such as latin-1"
        ) from error


def read_columns(folder: str) -> dict[str, Column]:
    """Return the columns of a record by name, none for a record without named columns."""
    if not (Path(folder) / ENCODING_FILE).is_file():
        return {}
    return {column.name: column for column in read_encoding(folder).columns}


# The fit of an encoding: each client counts and sums its training rows, and the server combines counts and sums.


def fit_encoding(
    frame: Any,
    kinds: Mapping[str, Column],
    training_rows: TrainingRows,
    *,
    missing: MissingPolicy,
    warnings: list[str],
    where: str,
) -> Encoding:
    """Fit the columns of a pandas.DataFrame to its training rows: describe each column, as a site does, and fit it.

    Warnings are appended to ``warnings``. Raises UserError, which begins with ``where``, for columns that cannot be
    features, for a column without a value in any training row, for gaps if ``missing`` is "refuse", and where no
    feature is left.
    """
    if missing == "refuse":
        check_complete(frame, where)
    columns = []
    for name, series in frame.items():
        description = kinds[name].describe(series, training_rows, missing, where)
        columns.append(kinds[name].fit(description, missing, where))
        warnings += columns[-1].warn_similar_levels()
    coded = [column.describe_coding() for column in columns if column.has_levels and column.value_features]
    if coded:
        warnings.append(f"text columns are coded as features of 0 and 1: {abbreviate(coded, _SHOWN)}")
    warnings += warn_single_levels(columns)
    return make_encoding(columns, where)


def check_complete(frame: Any, where: str) -> None:
    """Raise UserError, which begins with ``where``, for the first gap of a pandas.DataFrame."""
    for name, gaps in find_gaps(frame).items():
        raise UserError(f"{where}: column '{name}' is missing in row {int(gaps.argmax()) + 1}, in {gaps.sum()} of "
                        f"{len(gaps)} rows: give `data.missing=mean`, median or indicator, or "
                        f"`data.ignore=[{name}]`")  # fmt: skip


def make_encoding(columns: Sequence[Column], where: str) -> Encoding:
    """Return the encoding of the columns that make a feature.

    Raises UserError, which begins with ``where``, for two features with one name, and if there is no feature.
    """
    encoding = Encoding(tuple(column for column in columns if column.features))
    for name, count in Counter(encoding.feature_names).items():
        if count > 1:
            raise UserError(f"{where}: two features would be called '{name}': rename the column or the level")
    if not encoding.feature_names:
        raise UserError(f"{where}: not one feature is left; give columns that differ between rows")
    return encoding


def warn_single_levels(columns: Sequence[Column]) -> list[str]:
    """Return a warning about the columns that make no feature, since they have one level."""
    single = [column.describe_coding() for column in columns if not column.features]
    if not single:
        return []
    return [f"text columns with one level in the training rows make no feature: {abbreviate(single)}"]
