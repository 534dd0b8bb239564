"""Columns of a table: their roles (target, client, weight, feature, ...), and their cells as numbers or levels.

Tokens such as NA in the cells are missing values among numbers, and names among names.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, Literal

import numpy as np

from fcorun.errors import UserError, suggest_name

ColumnKind = Literal["number", "levels"]
_COMMA_NUMBER = r"\s*[+-]?\d+,\d+(?:[eE][+-]?\d+)?\s*"  # the comma may be a decimal comma
_TRUTH_VALUES = {"true": 1.0, "false": 0.0}
# the cells that pandas reads as missing in a text file, without the empty cell
MISSING_TOKENS = frozenset(
    {"#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"}
    | {"<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"}
)


def is_missing(series: Any) -> np.ndarray:
    """Return a mask of the cells that are empty or blank, shape (N,)."""
    from pandas.api import types

    if has_numpy_numbers(series):
        return np.isnan(series.to_numpy())
    empty = series.isna().to_numpy()
    if types.is_numeric_dtype(series.dtype) or types.is_datetime64_any_dtype(series.dtype):
        return empty
    return empty | (series.astype(str).str.strip() == "").to_numpy(dtype=bool, na_value=False)


def find_complete_columns(frame: Any) -> set[str]:
    """Return the columns of a pandas.DataFrame that have a NumPy dtype of numbers and no gap."""
    has_gap = frame.isna().to_numpy().any(axis=0)
    names = []
    for name, dtype, gap in zip(frame.columns, frame.dtypes, has_gap, strict=True):
        if _is_numpy_number(dtype) and not gap:
            names.append(name)
    return set(names)


def coerce_numbers(series: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return a column as real numbers, NaN in gaps, and a mask of the cells that are no numbers, both of shape (N,).

    True and False are 1 and 0. Their names as text count as well if the column has nothing else.
    """
    from pandas.api import types

    if has_numpy_numbers(series):
        values = series.to_numpy()
        return values, np.zeros(len(values), bool)
    if types.is_numeric_dtype(series.dtype):
        values = series.to_numpy(dtype=float, na_value=np.nan)
        return values, np.zeros(len(values), bool)
    present = ~is_missing(series)
    text = series.astype(str).where(present)
    numbers: Any = parse_numbers(text, errors="coerce")
    not_numeric = present & numbers.isna().to_numpy()
    if not_numeric.any():
        truth = _parse_truth_values(text)
        if (truth.notna().to_numpy() | ~present).all():
            return truth.to_numpy(dtype=float), np.zeros(len(not_numeric), bool)
    return numbers.to_numpy(dtype=float), not_numeric


def parse_numbers(text: Any, errors: Literal["raise", "coerce"] = "raise") -> Any:
    """Return a pandas.Series of text as the numbers that Python's float() reads, whole numbers as integers.

    Text that is no number is NaN if ``errors`` is "coerce"; else it raises ValueError.
    """
    import pandas as pd

    numbers: Any = pd.to_numeric(text, errors=errors)
    if numbers.dtype.kind == "f":  # pandas before 3.1 gets the last bits wrong
        present = numbers.notna()
        numbers[present] = text[present].astype(float)
    return numbers


def exact_float_options() -> dict[str, Any]:
    """Return the options with which pandas.read_csv reads numbers as Python's float() does, none since pandas 3.1."""
    import pandas as pd

    version = tuple(int(part) for part in pd.__version__.split(".")[:2])
    return {"float_precision": "round_trip"} if version < (3, 1) else {}


def require_numbers(series: Any, where: str, meaning: str = "") -> np.ndarray:
    """Return a column as numbers, NaN in gaps, shape (N,).

    Raises UserError, which begins with ``where`` and ends with the ``meaning`` of the numbers.
    """
    values, not_numeric = coerce_numbers(series)
    if not_numeric.any():
        row, others = find_offending_cell(series, values, not_numeric)
        wanted = "true or false, as the others are" if others == "truth" else "a number"
        raise UserError(f"{where} holds '{series.iloc[row]}' in row {row + 1}: make it {wanted}"
                        + (f", {meaning}" if meaning else ""))  # fmt: skip
    return values


def _parse_truth_values(text: Any) -> Any:
    """Return 1 for each "true" in a column of text, 0 for each "false", and NaN for all else."""
    return text.str.strip().str.casefold().map(_TRUTH_VALUES)


def find_offending_cell(
    series: Any, values: np.ndarray, not_numeric: np.ndarray
) -> tuple[int, Literal["truth", "commas", ""]]:
    """Return the row of the cell that keeps a column from being numeric, and the kind of the other cells.

    The other cells may be truth values ("truth") or numbers with decimal commas ("commas"). They are text because of
    that one cell alone, and an error should not name them. ``values`` and ``not_numeric`` come from
    ``coerce_numbers``.
    """
    present = ~is_missing(series)
    text = series.astype(str).where(present)
    is_truth = _parse_truth_values(text).notna().to_numpy()
    if is_truth.any() and is_truth.sum() >= (present & ~not_numeric).sum():
        candidates = not_numeric & ~is_truth
        if not candidates.any():
            candidates = present & ~is_truth
        return int(candidates.argmax()), "truth"
    has_comma = text.str.fullmatch(_COMMA_NUMBER).to_numpy(dtype=bool, na_value=False)
    without_comma = not_numeric & ~has_comma
    # decimal points in other cells mean that the commas are no decimal commas
    all_whole = (np.isnan(values) | (values == np.floor(values))).all()
    if without_comma.any() and (not_numeric & has_comma).any() and all_whole:
        return int(without_comma.argmax()), "commas"
    return int(not_numeric.argmax()), ""


def to_level_names(series: Any) -> np.ndarray:
    """Return the level of each cell, an object array of text, None in gaps, shape (N,). The level of 3.0 is "3"."""
    names = []
    for value, missing in zip(series.tolist(), is_missing(series), strict=True):
        if missing:
            names.append(None)
        elif isinstance(value, float) and value.is_integer():
            names.append(str(int(value)))
        else:
            names.append(str(value).strip())
    return np.array(names, dtype=object)


def has_numpy_numbers(series: Any) -> bool:
    """Return whether a column has a NumPy dtype of numbers or booleans."""
    return _is_numpy_number(series.dtype)


def _is_numpy_number(dtype: Any) -> bool:
    """Return whether a dtype is one of NumPy's numbers or booleans."""
    return isinstance(dtype, np.dtype) and dtype.kind in "fiub"


def find_missing_tokens(frame: Any, text_columns: Sequence[str]) -> dict[str, list[str]]:
    """Return the sorted tokens of each column that has some.

    The ``text_columns`` are skipped, since a token may be the name of a client.
    """
    from pandas.api import types

    tokens = {}
    for name, dtype in frame.dtypes.items():
        if not types.is_numeric_dtype(dtype) and str(name) not in text_columns:
            is_token = frame[name].isin(MISSING_TOKENS)
            if is_token.any():
                tokens[name] = sorted(set(frame[name][is_token]))
    return tokens


def names_as_text(values: np.ndarray) -> np.ndarray:
    """Return names as text. The name 3.0 is "3", since a column of whole numbers may have become real."""
    if values.dtype.kind == "f" and (values == np.floor(values)).all() and (np.abs(values) < 2**63).all():
        values = values.astype(np.int64)
    return values.astype(str)


def to_plain_array(series: Any) -> np.ndarray:
    """Return a column without missing values as an array of numbers, booleans or text, shape (N,)."""
    from pandas.api import types

    if types.is_bool_dtype(series.dtype):
        return series.to_numpy(dtype=bool)
    if types.is_numeric_dtype(series.dtype):
        return series.to_numpy(dtype=getattr(series.dtype, "numpy_dtype", series.dtype))
    return series.astype(str).to_numpy(dtype=str)


def column_as_text(series: Any) -> np.ndarray:
    """Return a column as text, "" where it has no value, shape (N,)."""
    text, present = np.full(len(series), "", object), series.notna().to_numpy()
    text[present] = np.char.strip(names_as_text(to_plain_array(series[present].infer_objects())))
    return text.astype(str)


# The roles of columns (target, client, weight, offset, group, split, fold, feature), and the rows as read by them.

# columns of predictions.csv (fcorun.models.predictions) and of the predictions of new rows (fcorun.models.predict)
_PREDICTION_COLUMNS = (
    *("set", "client", "row", "group", "target", "event", "prediction", "positive", "probability"),
    *("model", "fold", "scaling", "warnings"),
)
_PREDICTION_PREFIXES = ("probability_", "survival_at_")
_MAX_LISTED = 30  # an error lists all columns of a file with no more than these
_WIDE_OFFSETS = 20  # with a log link, means that differ by a factor of 5e8


def is_prediction_column(name: str) -> bool:
    """Return whether predictions have a column of this name, so that no column of the data can keep it there."""
    return name in _PREDICTION_COLUMNS or name.startswith(_PREDICTION_PREFIXES)


@dataclass(frozen=True)
class ColumnRoles:
    """The columns that options of a table name. All other columns are features, unless ``only`` is given.

    Attributes:
        target, client: the columns of targets and of clients' names.
        event: the column that tells events from censored rows, where targets are times.
        weight, offset: the columns of row weights, and of terms of the linear predictor.
        group, split, fold: the columns that assign each row to a group, a split and a fold.
        ignore: columns that are no features.
        only: the columns that are features. None: all columns without another role.
        keep: columns that are no features and that predictions.csv repeats, such as the numbers of patients.
    """

    target: str | None = None
    client: str | None = None
    weight: str | None = None
    offset: str | None = None
    group: str | None = None
    split: str | None = None
    fold: str | None = None
    event: str | None = None
    ignore: Sequence[str] | None = None
    only: Sequence[str] | None = None
    keep: Sequence[str] | None = None

    @classmethod
    def from_options(cls, dataset: Any) -> "ColumnRoles":
        """Return the roles that the options of a data set name."""
        return cls(**{role.name: getattr(dataset, role.name) for role in fields(cls)})

    @property
    def metadata(self) -> dict[str, str]:
        """The columns that are neither features nor target nor client, by option."""
        columns = {option: getattr(self, option) for option in ("weight", "offset", "group", "split", "fold", "event")}
        return {option: column for option, column in columns.items() if column is not None}

    @property
    def text_columns(self) -> list[str]:
        """The columns whose text is read as it is written: a client or a patient "007" keeps its name."""
        names = [name for name in (self.client, self.group, self.split, self.fold) if name is not None]
        others = (self.target, *names, *self.metadata.values())
        return [*names, *(name for name in self.keep or () if name not in others)]

    def check(self) -> None:
        """Raise UserError for a column with two roles."""
        for option, column in self.metadata.items():
            for other, name in (("target", self.target), ("client", self.client)):
                if column == name:
                    raise UserError(f"data.{option}={column} is data.{other} too: name another column")
        if self.event is not None and self.event in (self.weight, self.offset):
            raise UserError(f"data.event={self.event} is data.weight or data.offset too: name two different columns")
        if self.weight is not None and self.weight == self.offset:
            raise UserError(f"data.offset={self.offset} is data.weight too: name two different columns")
        for option in ("ignore", "keep"):
            for name in getattr(self, option) or ():
                if name in (self.only or ()):
                    raise UserError(f"data.{option} and data.only both name '{name}': name it in one of them")
        for name in self.keep or ():
            if is_prediction_column(str(name)):
                raise UserError(f"data.keep={name} is the name of a column that predictions have anyway: rename "
                                "yours, or leave it out")  # fmt: skip
        for name in self.only or ():
            for option, column in self.metadata.items():
                if name == column:
                    raise UserError(f"data.{option}={name} is in data.only too, and is no feature: leave it out of "
                                    "data.only, or give the table a second column with these values")  # fmt: skip
        for name in self.ignore or ():
            for option, column in self.metadata.items():
                if name == column:
                    raise UserError(f"data.{option}={name} is in data.ignore too, and is no feature anyway: leave it "
                                    "out of data.ignore")  # fmt: skip

    def select_features(self, frame: Any, path: str) -> list[str]:
        """Return the columns of a pandas.DataFrame that are features, in order.

        Raises UserError for names in ``ignore``, ``only`` or ``keep`` that are no columns of the file ``path``, and for
        a feature without a name.
        """
        available = [name for name in frame.columns if name not in (self.target, self.client)]
        for option in ("ignore", "only", "keep"):
            for name in getattr(self, option) or ():
                if name in (self.target, self.client):
                    raise UserError(
                        f"data.{option}: '{name}' is the target or the client, and no feature; leave it out"
                    )
                if name not in available:
                    suggestion = suggest_columns(name, frame[available])
                    raise UserError(f"data.{option}: {path} has no column '{name}'; {suggestion}")
        excluded = {*(self.ignore or ()), *(self.keep or ()), *self.metadata.values()}
        features = [name for name in available if name not in excluded and (self.only is None or name in self.only)]
        for name in features:
            if name.startswith("Unnamed: "):
                raise UserError(
                    f"data.path={path}: column {name.split()[-1]} (from 0) has no name and may be a saved row number; "
                    "name it or drop it (in pandas: to_csv(..., index=False))"
                )
        return features

    def separate_columns(self, frame: Any, path: str, features: Sequence[str]) -> "ParsedRows":
        """Split a pandas.DataFrame into targets, clients, ``features`` and metadata.

        Raises UserError for a column that is missing, and for a target or a client with gaps.
        """
        for option, name in self.metadata.items():
            if name not in frame or name in (self.target, self.client):
                suggestion = suggest_columns(name, frame.drop(columns=[self.target, self.client], errors="ignore"))
                raise UserError(f"data.{option}={name}: there is no such column in {path}; {suggestion}")
        if self.target is None:
            suggestion = suggest_columns("", frame)
            raise UserError(f"data.target has no value: name the column of {path} to predict, {suggestion}")
        if self.target == self.client:
            raise UserError(f"data.client={self.client} is data.target too: name two different columns")
        for option, column in (("target", self.target), ("client", self.client)):
            if column is None:
                continue
            if column not in frame:
                suggestion = suggest_columns(column, frame)
                raise UserError(f"data.{option}={column}: there is no such column in {path}; {suggestion}")
            has_gap = is_missing(frame[column])
            if has_gap.any():
                row = int(has_gap.argmax()) + 1
                raise UserError(
                    f"data.{option}={column}: row {row} of {path} has no value there; fill it in or drop it"
                )
        metadata_names = list(dict.fromkeys(self.metadata.values()))
        return ParsedRows(
            x=np.empty((len(frame), 0)),
            y=to_plain_array(frame[self.target]),
            client=None if self.client is None else names_as_text(to_plain_array(frame[self.client])),
            frame=frame[list(features)],
            metadata=frame[metadata_names] if metadata_names else None,
            repeated_columns=np.stack([column_as_text(frame[name]) for name in self.keep], axis=1)
            if self.keep
            else None,
        )


@dataclass(frozen=True)
class ParsedRows:
    """The rows of a file in the order of the file.

    Attributes:
        x: features, shape (N, d), a real dtype, finite. Empty if the columns are still in ``frame``.
        y: targets as the file has them, shape (N,): finite real numbers, booleans or text.
        client: the client of each row, text, shape (N,), or None.
        validation, test: masks of the held-out rows that the file marks, shape (N,), or None.
        group: the name of each row's group, text, shape (N,), or None.
        fold: the name of the fold that holds each row out, text, "" for none, shape (N,), or None.
        row: the number of each row in the file, counted from 0, where the file has other rows too; None: in order.
        frame: a pandas.DataFrame of the feature columns before they are encoded, or None if ``x`` holds the features.
        warnings: sentences about how the file was read.
        metadata: a pandas.DataFrame of the weights, offsets, groups, splits and folds, or None for a file that has
            none.
        encoding: the Encoding of a Parquet file whose rows stay on disk, or None.
        repeated_columns: the columns that ``keep`` names, as text, shape (N, k), or None.
        first_index: the index of the first feature in a LIBSVM file, 0 or 1; None for other files.
    """

    x: np.ndarray
    y: np.ndarray
    client: np.ndarray | None = None
    validation: np.ndarray | None = None
    test: np.ndarray | None = None
    group: np.ndarray | None = None
    fold: np.ndarray | None = None
    row: np.ndarray | None = None
    frame: Any = None
    warnings: tuple[str, ...] = ()
    metadata: Any = None
    encoding: Any = None
    repeated_columns: np.ndarray | None = None
    first_index: int | None = None


def take_weight_and_offset(rows: ParsedRows, roles: ColumnRoles, path: str) -> tuple[ParsedRows, dict[str, Any]]:
    """Return the rows with warnings about weights and offsets, and the values of these columns.

    The values are float64 arrays (N,) under the keys "weight" and "offset". ``path`` is the file, for errors.

    Raises UserError for a missing column, missing or infinite values, and negative weights.
    """
    weight, offset = roles.weight, roles.offset
    values = {}
    for option, column in roles.metadata.items():
        if option not in ("weight", "offset"):
            continue
        if rows.metadata is None:
            raise UserError(f"data.{option}={column}: there is no such column in {path}; the file names no columns: "
                            "leave it out")  # fmt: skip
        if column not in rows.metadata:
            suggestion = suggest_name(column, list(rows.metadata))
            raise UserError(f"data.{option}={column}: there is no such column in {path}; {suggestion}")
        series = rows.metadata[column]
        values[option] = require_numbers(series, f"data.path={path}: column '{column}'").astype(np.float64)
        finite = np.isfinite(values[option])
        if not finite.all():
            row = int((~finite).argmax()) + 1
            raise UserError(f"data.{option}={column} is missing or infinite in row {row}: fill it in or drop the row")
    if weight is not None and values["weight"].min() < 0:
        row = int((values["weight"] < 0).argmax())
        raise UserError(
            f"data.weight={weight}: row {row + 1} of {path} has {values['weight'][row]:g}; give weights of 0 or more"
        )

    warnings = list(rows.warnings)
    if weight is not None:
        warnings.append(
            f"data.weight={weight} weighs the rows in training and its metrics; scores.csv counts each row "
            "once, and features are standardized by the rows as they are"
        )
    if offset is not None:
        width = float(np.ptp(values["offset"]))
        if width > _WIDE_OFFSETS:
            warnings.append(
                f"data.offset={offset} spans {width:g}, and is added to the linear predictor, with a log link to "
                "the logarithm of the mean: if it is an exposure such as days, give its logarithm"
            )
    return replace(rows, warnings=tuple(warnings)), values


def check_unique_names(names: Sequence[str], where: str) -> None:
    """Raise UserError, which begins with ``where``, if two columns have the same name."""
    for name, count in Counter(names).items():
        if count > 1:
            raise UserError(f"{where}: two columns are called '{name}': rename or drop one")


def suggest_columns(name: str, frame: Any) -> str:
    """Return the end of an error about a missing column: similar names, or all names of a file with few columns."""
    names = list(frame.columns)
    if len(names) > _MAX_LISTED:
        names = get_close_matches(name, names, n=10, cutoff=0)
    return suggest_name(name, names)
