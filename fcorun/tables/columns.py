"""What a column of a table holds: numbers, levels, or what cannot be a feature."""

import re
from typing import Any, Literal

import numpy as np

from fcorun.errors import UserError

ColumnKind = Literal["number", "levels"]

MAX_LEVELS = 100  # more, or more than half as many as rows, are names of something
_FEW_ROWS = 20  # of fewer, nothing is said about how many levels there are
_DATE = r"\s*(?:\d{4}([-/.])\d{1,2}\1\d{1,2}|\d{1,2}([-/.])\d{1,2}\2(?:\d{4}|\d{2}))(?:[T ]\d{1,2}:.*)?\s*"
_LIKE_A_NUMBER = r"\s*[<>]?=?\s*[+-]?\d[\d., ]*%?\s*"
_WITH_UNIT = r"\s*(?P<before>[€$£¥]?)\s*[<>]?=?\s*(?P<number>[+-]?\d+(?:[.,]\d+)*)\s*(?P<unit>[^\s\d.,:/+-].*?|)\s*"
_FEW_NUMBERS = 5  # so many different ones before one unit may be names: 3 months, 6 months, 12 months
_COMMA_NUMBER = r"\s*[+-]?\d+,\d+(?:[eE][+-]?\d+)?\s*"  # of which the comma may be that of decimals
_TRUTH = {"true": 1.0, "false": 0.0}


def is_missing(series: Any) -> np.ndarray:
    """Where a column has no value, or blanks only, shape (N,)."""
    from pandas.api import types

    if _plain(series):
        return np.isnan(series.to_numpy())
    empty = series.isna().to_numpy()
    if types.is_numeric_dtype(series.dtype) or types.is_datetime64_any_dtype(series.dtype):
        return empty
    return empty | (series.astype(str).str.strip() == "").to_numpy(dtype=bool, na_value=False)


def coerce_numbers(series: Any) -> tuple[np.ndarray, np.ndarray]:
    """A column as numbers of a real dtype, NaN in gaps, and where it holds something else, both of shape (N,).

    True and False are 1 and 0, as text too, in a column that has nothing else.
    """
    from pandas.api import types

    if _plain(series) or types.is_numeric_dtype(series.dtype):
        values = series.to_numpy() if _plain(series) else series.to_numpy(dtype=float, na_value=np.nan)
        return values, np.zeros(len(values), bool)
    there = ~is_missing(series)
    text = series.astype(str).where(there)
    found: Any = parse_numbers(text, errors="coerce")
    bad = there & found.isna().to_numpy()
    if bad.any():
        truth = _truth(text)
        if (truth.notna().to_numpy() | ~there).all():
            return truth.to_numpy(dtype=float), np.zeros(len(bad), bool)
    return found.to_numpy(dtype=float), bad


def parse_numbers(text: Any, errors: Literal["raise", "coerce"] = "raise") -> Any:
    """Return a pandas.Series of text as numbers, each the one that Python's float() reads, whole numbers as integers.

    Text that is no number is NaN if ``errors`` is "coerce"; else it raises ValueError.
    """
    import pandas as pd

    found: Any = pd.to_numeric(text, errors=errors)
    if found.dtype.kind == "f":  # whose last bits pandas before 3.1 gets wrong
        there = found.notna()
        found[there] = text[there].astype(float)
    return found


def exact_float_options() -> dict[str, Any]:
    """Return the options with which pandas.read_csv reads numbers as Python's float() does, none since pandas 3.1."""
    import pandas as pd

    version = tuple(int(part) for part in pd.__version__.split(".")[:2])
    return {"float_precision": "round_trip"} if version < (3, 1) else {}


def require_numbers(series: Any, where: str) -> np.ndarray:
    """A column as numbers, NaN in gaps, shape (N,). Raises UserError, which begins with ``where``."""
    values, bad = coerce_numbers(series)
    if bad.any():
        row, others = _culprit(series, values, bad)
        made = "true or false, as the others are" if others == "truth" else "a number"
        raise UserError(f"{where} holds '{series.iloc[row]}' in row {row + 1}: make it {made}")
    return values


def _truth(text: Any) -> Any:
    """1 where a column of text says true, 0 where it says false, NaN elsewhere."""
    return text.str.strip().str.casefold().map(_TRUTH)


def _culprit(series: Any, values: np.ndarray, bad: np.ndarray) -> tuple[int, Literal["truth", "commas", ""]]:
    """The place of the cell for which a column is not one of numbers, and what the others are that would be: truth
    values, or numbers with decimal commas; ``values`` and ``bad`` are those of ``as_numbers``.

    One such cell keeps all others as text, which are as they should be and not to be named.
    """
    there = ~is_missing(series)
    text = series.astype(str).where(there)
    truth = _truth(text).notna().to_numpy()
    if truth.any() and truth.sum() >= (there & ~bad).sum():
        neither = bad & ~truth
        return int((neither if neither.any() else there & ~truth).argmax()), "truth"
    odd = bad & ~text.str.fullmatch(_COMMA_NUMBER).to_numpy(dtype=bool, na_value=False)
    whole = np.isnan(values) | (values == np.floor(values))  # a point of decimals beside them makes commas no such
    if odd.any() and (bad & ~odd).any() and whole.all():
        return int(odd.argmax()), "commas"
    return int(bad.argmax()), ""


def to_level_names(series: Any) -> np.ndarray:
    """A column as the names of its levels, shape (N,), of objects: text, or None in gaps. 3.0 is "3"."""
    empty = is_missing(series)
    found = [None if gap else _name(value) for value, gap in zip(series.tolist(), empty, strict=True)]
    return np.array(found, dtype=object)


def _name(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


def infer_kinds(frame: Any, where: str, clients: np.ndarray | None) -> dict[str, ColumnKind]:
    """What each column of a pandas.DataFrame holds; ``clients`` names that of each row, shape (N,), if they are known.

    Raises UserError as ``kind_of``.
    """
    return {name: infer_kind(frame[name], where, clients) for name in frame}


def infer_kind(series: Any, where: str, clients: np.ndarray | None) -> ColumnKind:
    """What a column holds, known from all of its rows.

    Raises UserError for dates, and for numbers among which there is text.
    """
    from pandas.api import types

    if _plain(series):
        return "number"
    column = f"{where}: column '{series.name}'"
    leave = f"data.ignore=[{series.name}] leaves it out"
    dates = f"give numbers instead, such as days since a date or the year; {leave}"
    if types.is_datetime64_any_dtype(series.dtype) or types.is_timedelta64_dtype(series.dtype):
        raise UserError(f"{column} holds dates or times: {dates}")
    if isinstance(series.dtype, _categorical()):
        return "levels"
    values, bad = coerce_numbers(series)
    if not bad.any():
        return "number"
    there = ~is_missing(series)
    text = series[there].astype(str)
    if holds_dates(series):
        raise UserError(f"{column} holds dates ('{text.iloc[0]}'): {dates}")
    if (text.str.fullmatch(_LIKE_A_NUMBER) | ~bad[there]).mean() >= 0.2:
        row, others = _culprit(series, values, bad)
        value, client = str(series.iloc[row]), "" if clients is None else f" (client {clients[row]})"
        commas = not others and "," in value and re.fullmatch(_LIKE_A_NUMBER, value)
        point = ", with a point for its decimals and none for thousands," if commas else ""
        what, made = ("true and false", "one of them") if others == "truth" else ("numbers", f"a number{point}")
        raise UserError(f"{column} holds {what}, but '{value}' in row {row + 1}{client}: make it {made} or leave it "
                        f"empty, or give levels names that are no numbers; {leave}")  # fmt: skip
    if unit := _unit_of(text):
        row = int((there & series.astype(str).str.contains(unit, regex=False).to_numpy(dtype=bool)).argmax())
        value, client = str(series.iloc[row]), "" if clients is None else f" (client {clients[row]})"
        raise UserError(f"{column} holds numbers with the unit '{unit}', such as '{value}' in row {row + 1}{client}: "
                        f"write the numbers alone, all in one unit, or give levels names that begin with no number; "
                        f"{leave}")  # fmt: skip
    return "levels"


def holds_dates(series: Any) -> bool:
    """Return whether most values of a column of text are dates."""
    return bool(series[~is_missing(series)].astype(str).str.fullmatch(_DATE).mean() > 0.5)


def _unit_of(text: Any) -> str:
    """Return the unit that most cells of a column of text give a number in, of many different ones; empty for none."""
    parts = text.str.extract(f"^{_WITH_UNIT}$")
    units = (parts["before"] + parts["unit"])[parts["number"].notna()]
    units = units[units != ""]
    if not len(units):
        return ""
    unit = str(units.mode().iloc[0])
    same = parts["number"][units.index[units == unit]]
    return unit if 2 * len(same) >= len(text) and same.nunique() > _FEW_NUMBERS else ""


def check_level_count(name: str, n_levels: int, n_rows: int, where: str) -> None:
    """Refuse a column of text with so many levels in so many rows that they name rows, persons or numbers."""
    if n_levels > MAX_LEVELS or (n_rows >= _FEW_ROWS and n_levels > n_rows / 2):
        names = "names rows or persons"
        if n_levels < n_rows:
            names = (
                f"names rows, data.group={name} if it names persons or other groups of rows, which then stay together"
            )
        raise UserError(
            f"{where}: column '{name}' has {n_levels} levels in {n_rows} training rows, more than {MAX_LEVELS} or "
            f"half of "
            f"the rows: data.ignore=[{name}] leaves it out if it {names}; else group its levels, or write numbers "
            "without units"
        )


def _plain(series: Any) -> bool:
    """Whether a column has numbers of NumPy's, booleans among them."""
    return isinstance(series.dtype, np.dtype) and series.dtype.kind in "fiub"


def _categorical() -> type:
    import pandas as pd

    return pd.CategoricalDtype
