"""Cells of a table as numbers, gaps, or names of levels.

Tokens such as NA in the cells are missing values among numbers, and names among names.
"""

import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.tasks.task import whole_as_integers

_COMMA_NUMBER = r"\s*[+-]?\d+,\d+(?:[eE][+-]?\d+)?\s*"  # the comma may be a decimal comma
_WHOLE_NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0")
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
    if version < (3, 1):
        return {"float_precision": "round_trip"}
    return {}


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
    return isinstance(series.dtype, np.dtype) and series.dtype.kind in "fiub"


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
    """Return the names of clients, groups or folds as text. The names 3.0 and "3.0" are "3".

    Whole numbers become real in a column with a gap, and a text file may then have 3.0. Texts that may mean something
    else are kept: 007, 1.10, and 3.000, whose point may separate thousands.
    """
    names = whole_as_integers(values).astype(str)
    for row in np.flatnonzero(np.char.endswith(names, ".0")):
        if whole := _WHOLE_NUMBER.fullmatch(names[row]):
            names[row] = whole[1]
    return names


def to_plain_array(series: Any) -> np.ndarray:
    """Return a column without missing values as an array of numbers, booleans or text, shape (N,)."""
    from pandas.api import types

    if types.is_bool_dtype(series.dtype):
        return series.to_numpy(dtype=bool)
    if types.is_numeric_dtype(series.dtype):
        return series.to_numpy(dtype=getattr(series.dtype, "numpy_dtype", series.dtype))
    return series.astype(str).to_numpy(dtype=str)


def read_names(series: Any) -> np.ndarray:
    """Return the names in a column as an object array of text, None where it has no value, shape (N,)."""
    names = np.full(len(series), None, object)
    present = series.notna().to_numpy()
    names[present] = names_as_text(to_plain_array(series[present].infer_objects()))
    return names


def column_as_text(series: Any) -> np.ndarray:
    """Return a column as text without blanks at its ends, "" where it has no value, shape (N,)."""
    text = np.full(len(series), "", object)
    present = series.notna().to_numpy()
    text[present] = whole_as_integers(to_plain_array(series[present].infer_objects())).astype(str)
    return np.char.strip(text.astype(str))


def require_finite_numbers(series: Any, where: str, meaning: str = "") -> np.ndarray:
    """Return a column as finite numbers, shape (N,). Raises UserError as ``require_numbers`` does."""
    values = require_numbers(series, where, meaning)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int((~np.isfinite(values)).argmax()) + 1
        raise UserError(f"{where} is missing or infinite in row {row}; fill it in or drop the row")
    return values
