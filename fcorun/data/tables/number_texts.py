"""Cells of numbers whose text says more than the number: leading zeros, an E between digits, points of thousands."""

from typing import Any

import numpy as np

WHOLE = r"\s*\d+\s*"
_PADDED = r"\s*0\d+\s*"
_DIGITS_E = r"\s*\d+[eE]\d+\s*"
_BELOW_1000 = r"\s*[+-]?\d{1,3}\s*"
_THOUSANDS = r"\s*[+-]?[1-9]\d{0,2}\.\d{3}\s*"
MILLIONS = r"\s*[+-]?[1-9]\d{0,2}(?:\.\d{3}){2,}\s*"
_BLOCK = 2**22  # characters of a file that are searched at a time


def holds_padded_codes(text: Any) -> bool:
    """Return whether a column of text without gaps, a pandas.Series, is of digits alone, some with zeros before them.

    Such cells are codes, as the postcode 08001 is one.
    """
    return bool(text.str.fullmatch(_PADDED).any() and text.str.fullmatch(WHOLE).all())


def holds_digits_e(text: Any) -> bool:
    """Return whether each cell of a column of text without gaps is digits, an E and digits: a number, or a code."""
    return len(text) > 0 and bool(text.str.fullmatch(_DIGITS_E).all())


def find_point_before_thousands(text: Any, is_certain: bool) -> int | None:
    """Return the row of a point in a column of text without gaps if all its points may separate thousands.

    They do where three digits follow each, unless all numbers have three decimals. ``is_certain``: other numbers of
    the file have such points. Returns None for other columns.
    """
    has_point = text.str.contains(".", regex=False)
    with_point = text[has_point]
    if with_point.nunique() < 2 or not with_point.str.fullmatch(_THOUSANDS).all():
        return None
    if not text[~has_point].str.fullmatch(_BELOW_1000).all():
        return None
    if has_point.all() and not is_certain:
        return None
    return int(with_point.index[0])


def may_have_own_text(numbers: np.ndarray) -> bool:
    """Return whether real numbers may be texts of ``holds_digits_e``, or numbers below 1,000 of three decimals.

    Most columns of real numbers are neither, which their numbers tell faster than their texts.
    """
    if is_whole(numbers):
        return True
    present = numbers[np.isfinite(numbers)]
    thousandths = present * 1000
    size = np.abs(present)
    return bool((np.abs(thousandths - np.round(thousandths)) < 1e-6).all() and size.max() < 1000 and size.min() >= 1)


def has_ambiguous_cells(text: Any) -> bool:
    """Return whether a cell of a column of text without gaps has an E between digits, or a point before thousands."""
    return bool(text.str.fullmatch(f"{_DIGITS_E}|{_THOUSANDS}").any())


def is_whole(numbers: np.ndarray) -> bool:
    """Return whether all numbers are whole, gaps aside."""
    if numbers.dtype.kind in "iu":
        return True
    present = numbers[~np.isnan(numbers)]
    return bool((present == np.floor(present)).all())


def has_padded_cells(content: Any, separator: str) -> bool:
    """Return whether a cell of a file of text, which is open, begins with 0 and a digit."""
    before_cell = np.frombuffer(f'\n\r\t "{separator}'.encode(), np.uint8)
    end = "\n"
    while block := content.read(_BLOCK):
        codes = np.frombuffer((end + block).encode(), np.uint8)
        is_digit = (codes >= ord("0")) & (codes <= ord("9"))
        starts = np.flatnonzero((codes[1:-1] == ord("0")) & is_digit[2:])
        if np.isin(codes[starts], before_cell).any():
            return True
        end = block[-2:]
    return False


def warn_of_thousands(name: str, cell: str, row: int) -> str:
    """Return a warning about a column whose points may separate thousands; ``cell`` in ``row``, from 0, has one."""
    whole = cell.strip().replace(".", "")
    return (f"three digits follow each point in '{name}' ('{cell.strip()}' in row {row + 1}), which is read as a "
            f"decimal point: if points separate thousands, write the numbers without them, {whole}")  # fmt: skip
