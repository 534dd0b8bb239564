"""The kind of a column, numbers or levels of text, as its cells show it."""

import re
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.tables.cells import coerce_numbers, find_offending_cell, has_numpy_numbers, is_missing
from fcorun.data.tables.columns.column import Column
from fcorun.data.tables.columns.levels import LevelColumn
from fcorun.data.tables.columns.number import NumberColumn
from fcorun.data.tables.number_texts import MILLIONS, holds_digits_e, holds_padded_codes

_LIKE_A_NUMBER = r"\s*[<>]?=?\s*[+-]?\d[\d., ]*%?\s*"
_DATE = r"\s*(?:\d{4}([-/.])\d{1,2}\1\d{1,2}|\d{1,2}([-/.])\d{1,2}\2(?:\d{4}|\d{2}))(?:[T ]\d{1,2}:.*)?\s*"
_WITH_UNIT = r"\s*(?P<before>[€$£¥]?)\s*[<>]?=?\s*(?P<number>[+-]?\d+(?:[.,]\d+)*)\s*(?P<unit>[^\s\d.,:/+-].*?|)\s*"
_FEW_NUMBERS = 5  # up to so many different numbers before one unit may be names: 3 months, 6 months, 12 months
_MOSTLY_NUMBERS = 0.2  # a text column with this share of cells like numbers is taken for numbers with mistakes


def infer_kind(series: Any, where: str, clients: np.ndarray | None) -> type[Column]:
    """Infer the kind of a column from all of its rows.

    ``clients`` has the name of each row's client, shape (N,), or is None where clients are not known.

    Raises UserError for dates, for complex numbers, for numbers with text among them, and for numbers with a unit.
    """
    import pandas as pd
    from pandas.api import types

    if has_numpy_numbers(series):
        return NumberColumn
    column = f"{where}: column '{series.name}'"
    leave = f"`data.ignore=[{series.name}]` leaves it out"
    dates = f"give numbers instead, such as days since a date or the year; {leave}"
    if types.is_datetime64_any_dtype(series.dtype) or types.is_timedelta64_dtype(series.dtype):
        raise UserError(f"{column} holds dates or times: {dates}")
    if types.is_complex_dtype(series.dtype):
        raise UserError(f"{column} holds complex numbers: give the real and the imaginary part a column each; {leave}")
    if isinstance(series.dtype, pd.CategoricalDtype):
        return LevelColumn

    def describe_cell(row: int) -> str:
        client = "" if clients is None else f" (client {clients[row]})"
        return f"'{series.iloc[row]}' in row {row + 1}{client}"

    present = ~is_missing(series)
    text = series[present].astype(str)
    if holds_padded_codes(text):
        return LevelColumn
    if holds_digits_e(text):
        raise UserError(f"{column} holds digits, an E and digits alone, {describe_cell(int(present.argmax()))}, which "
                        "may be numbers or codes: write numbers without E, 12000 for 12E3, or begin codes with a "
                        f"letter, K12E3; {leave}")  # fmt: skip
    values, not_numeric = coerce_numbers(series)
    if not not_numeric.any():
        return NumberColumn
    if holds_dates(series):
        raise UserError(f"{column} holds dates ('{text[text.str.fullmatch(_DATE)].iloc[0]}'): {dates}")
    with_points = text.str.fullmatch(MILLIONS)
    if with_points.any() and (text.str.fullmatch(_LIKE_A_NUMBER)).mean() >= _MOSTLY_NUMBERS:
        row = int(np.flatnonzero(present)[with_points.to_numpy().argmax()])
        whole = str(series.iloc[row]).strip().replace(".", "")
        raise UserError(f"{column} holds numbers with points that separate thousands, {describe_cell(row)}: write all "
                        f"its numbers without them, {whole}, and 1234 for 1.234; {leave}")  # fmt: skip
    if (text.str.fullmatch(_LIKE_A_NUMBER) | ~not_numeric[present]).mean() >= _MOSTLY_NUMBERS:
        row, others = find_offending_cell(series, values, not_numeric)
        value = str(series.iloc[row])
        if others == "truth":
            content = "true and false"
            wanted = "one of them"
        else:
            content = "numbers"
            wanted = "a number"
            if not others and "," in value and re.fullmatch(_LIKE_A_NUMBER, value):
                wanted += ", with a point for its decimals and none for thousands,"
        raise UserError(f"{column} holds {content}, but {describe_cell(row)}: make it {wanted} or leave it empty, or "
                        f"give levels names that are no numbers; {leave}")  # fmt: skip
    if unit := _common_unit(text):
        row = int((_read_units(series.astype(str))["unit"] == unit).argmax())
        raise UserError(f"{column} holds numbers with the unit '{unit}', such as {describe_cell(row)}: write the "
                        "numbers alone, all in one unit, or give levels names that begin with no number; "
                        f"{leave}")  # fmt: skip
    return LevelColumn


def holds_dates(series: Any) -> bool:
    """Return whether most values of a column of text are dates."""
    return bool(series[~is_missing(series)].astype(str).str.fullmatch(_DATE).mean() > 0.5)


def _read_units(text: Any) -> Any:
    """Return the number and the unit, "" for none, of each cell of a column of text, as a pandas.DataFrame of text.

    Both are missing where a cell is more or less than a number with a unit.
    """
    matches = text.str.extract(f"^{_WITH_UNIT}$")
    return matches[["number"]].assign(unit=matches["before"] + matches["unit"])


def _common_unit(text: Any) -> str:
    """Return the unit behind or before the numbers of most cells of a column of text.

    Returns "" where no unit is that common, or where few different numbers have it.
    """
    matches = _read_units(text)
    units = matches["unit"].dropna()
    units = units[units != ""]
    if not len(units):
        return ""
    unit = str(units.mode().iloc[0])
    numbers = matches["number"][units.index[units == unit]]
    if 2 * len(numbers) >= len(text) and numbers.nunique() > _FEW_NUMBERS:
        return unit
    return ""
