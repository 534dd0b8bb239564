"""Columns of a table: numbers, levels, or values that cannot become a feature.

Tokens such as NA in the cells are missing values among numbers, and names among names.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from fcorun.errors import UserError

ColumnKind = Literal["number", "levels"]
MAX_LEVELS = 100  # a column with more levels, or with more than half as many as rows, holds names of rows or persons
_FEW_ROWS = 20  # the share of levels is not checked in a table with fewer rows
_DATE = r"\s*(?:\d{4}([-/.])\d{1,2}\1\d{1,2}|\d{1,2}([-/.])\d{1,2}\2(?:\d{4}|\d{2}))(?:[T ]\d{1,2}:.*)?\s*"
_LIKE_A_NUMBER = r"\s*[<>]?=?\s*[+-]?\d[\d., ]*%?\s*"
_WITH_UNIT = r"\s*(?P<before>[€$£¥]?)\s*[<>]?=?\s*(?P<number>[+-]?\d+(?:[.,]\d+)*)\s*(?P<unit>[^\s\d.,:/+-].*?|)\s*"
_FEW_NUMBERS = 5  # up to so many different numbers before one unit may be names: 3 months, 6 months, 12 months
_COMMA_NUMBER = r"\s*[+-]?\d+,\d+(?:[eE][+-]?\d+)?\s*"  # the comma may be a decimal comma
_MOSTLY_NUMBERS = 0.2  # a text column with this share of cells like numbers is taken for numbers with mistakes
_TRUTH_VALUES = {"true": 1.0, "false": 0.0}
# the cells that pandas reads as missing in a text file, without the empty cell
MISSING_TOKENS = frozenset(
    {"#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"}
    | {"<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"}
)


def is_missing(series: Any) -> np.ndarray:
    """Return a mask of the cells that are empty or blank, shape (N,)."""
    from pandas.api import types

    if _has_numpy_numbers(series):
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

    if _has_numpy_numbers(series):
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
        row, others = _find_offending_cell(series, values, not_numeric)
        wanted = "true or false, as the others are" if others == "truth" else "a number"
        raise UserError(f"{where} holds '{series.iloc[row]}' in row {row + 1}: make it {wanted}"
                        + (f", {meaning}" if meaning else ""))  # fmt: skip
    return values


def _parse_truth_values(text: Any) -> Any:
    """Return 1 for each "true" in a column of text, 0 for each "false", and NaN for all else."""
    return text.str.strip().str.casefold().map(_TRUTH_VALUES)


def _find_offending_cell(
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


def infer_kinds(frame: Any, where: str, clients: np.ndarray | None) -> dict[str, ColumnKind]:
    """Return the kind of each column of a pandas.DataFrame. Raises UserError as ``infer_kind``.

    ``clients`` has the name of each row's client, shape (N,), or is None where clients are not known.
    """
    complete = find_complete_columns(frame)
    return {name: "number" if name in complete else infer_kind(frame[name], where, clients) for name in frame}


def infer_kind(series: Any, where: str, clients: np.ndarray | None) -> ColumnKind:
    """Infer the kind of a column from all of its rows.

    Raises UserError for dates, for numbers with text among them, and for numbers with a unit.
    """
    import pandas as pd
    from pandas.api import types

    if _has_numpy_numbers(series):
        return "number"
    column = f"{where}: column '{series.name}'"
    leave = f"data.ignore=[{series.name}] leaves it out"
    dates = f"give numbers instead, such as days since a date or the year; {leave}"
    if types.is_datetime64_any_dtype(series.dtype) or types.is_timedelta64_dtype(series.dtype):
        raise UserError(f"{column} holds dates or times: {dates}")
    if isinstance(series.dtype, pd.CategoricalDtype):
        return "levels"
    values, not_numeric = coerce_numbers(series)
    if not not_numeric.any():
        return "number"

    def describe_cell(row: int) -> str:
        client = "" if clients is None else f" (client {clients[row]})"
        return f"'{series.iloc[row]}' in row {row + 1}{client}"

    present = ~is_missing(series)
    text = series[present].astype(str)
    if holds_dates(series):
        raise UserError(f"{column} holds dates ('{text.iloc[0]}'): {dates}")
    if (text.str.fullmatch(_LIKE_A_NUMBER) | ~not_numeric[present]).mean() >= _MOSTLY_NUMBERS:
        row, others = _find_offending_cell(series, values, not_numeric)
        value = str(series.iloc[row])
        if others == "truth":
            content, wanted = "true and false", "one of them"
        else:
            content, wanted = "numbers", "a number"
            if not others and "," in value and re.fullmatch(_LIKE_A_NUMBER, value):
                wanted += ", with a point for its decimals and none for thousands,"
        raise UserError(f"{column} holds {content}, but {describe_cell(row)}: make it {wanted} or leave it empty, or "
                        f"give levels names that are no numbers; {leave}")  # fmt: skip
    if unit := _common_unit(text):
        with_unit = series.astype(str).str.contains(unit, regex=False).to_numpy(dtype=bool)
        row = int((present & with_unit).argmax())
        raise UserError(f"{column} holds numbers with the unit '{unit}', such as {describe_cell(row)}: write the "
                        "numbers alone, all in one unit, or give levels names that begin with no number; "
                        f"{leave}")  # fmt: skip
    return "levels"


def holds_dates(series: Any) -> bool:
    """Return whether most values of a column of text are dates."""
    return bool(series[~is_missing(series)].astype(str).str.fullmatch(_DATE).mean() > 0.5)


def _common_unit(text: Any) -> str:
    """Return the unit behind or before the numbers of most cells of a column of text.

    Returns "" where no unit is that common, or where few different numbers have it.
    """
    matches = text.str.extract(f"^{_WITH_UNIT}$")
    units = (matches["before"] + matches["unit"])[matches["number"].notna()]
    units = units[units != ""]
    if not len(units):
        return ""
    unit = str(units.mode().iloc[0])
    numbers = matches["number"][units.index[units == unit]]
    return unit if 2 * len(numbers) >= len(text) and numbers.nunique() > _FEW_NUMBERS else ""


def check_level_count(name: str, n_levels: int, n_rows: int, where: str) -> None:
    """Raise UserError for a column of text with so many levels that they must name rows, persons or numbers."""
    if n_levels <= MAX_LEVELS and (n_rows < _FEW_ROWS or n_levels <= n_rows / 2):
        return
    condition = "names rows or persons"
    if n_levels < n_rows:
        condition = (
            f"names rows, data.group={name} if it names persons or other groups of rows, which then stay together"
        )
    raise UserError(
        f"{where}: column '{name}' has {n_levels} levels in {n_rows} training rows, more than {MAX_LEVELS} or half of "
        f"the rows: data.ignore=[{name}] leaves it out if it {condition}; else group its levels, or write numbers "
        "without units"
    )


def _has_numpy_numbers(series: Any) -> bool:
    """Return whether a column has a NumPy dtype of numbers or booleans."""
    return _is_numpy_number(series.dtype)


def _is_numpy_number(dtype: Any) -> bool:
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


def restore_level_columns(
    frame: Any, original: Mapping[str, Any], target: str | None, kinds: Mapping[str, ColumnKind]
) -> None:
    """Put back the ``original`` columns whose tokens are names; ``frame`` has gaps in place of the tokens.

    Tokens are names in a column of levels, whose kind ``kinds`` may give. In the ``target`` they are labels unless
    all other values are numbers.
    """
    for name, column in original.items():
        kind = kinds.get(str(name))
        if kind == "levels" or (kind is None and _holds_names(frame[name], str(name) == target)):
            frame[name] = column


def _holds_names(series: Any, is_target: bool) -> bool:
    """Return whether the values of a column, gaps left out, are names."""
    if is_target:
        not_numeric = coerce_numbers(series)[1]
        return bool(not_numeric.any())
    try:
        return infer_kind(series, "", None) == "levels"
    except UserError:  # dates, or text among numbers: reading the features raises the error
        return False


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
