"""CSV and TSV as data frames: which sign parts the columns, and which the decimals."""

import bz2
import gzip
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fcorun.tables.columns import ColumnKind, exact_float_options, parse_numbers
from fcorun.tables.missing_tokens import find_missing_tokens, restore_level_columns

_OPEN: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
_NUMBER = r"\s*[+-]?\d+(?:,\d+)?(?:[eE][+-]?\d+)?\s*"  # whose comma, if any, may be of decimals
_THOUSANDS = r"\s*[+-]?[1-9]\d{0,2},\d{3}\s*"  # or of thousands
_POINTED_THOUSANDS = r"\s*[+-]?[1-9]\d{0,2}\.\d{3}\s*"


@dataclass
class ParsedTable:
    """A table as it is read from a file.

    Attributes:
        frame: a pandas.DataFrame.
        commas: the columns that were read with decimal commas.
        words: by column, which words for nothing are in it (``fcorun.tables.missing_tokens``).
        unread: by column, whose values are numbers with commas, why those are not read as of decimals.
    """

    frame: Any
    decimal_comma_columns: list[str] = field(default_factory=list)
    missing_tokens: dict[str, list[str]] = field(default_factory=dict)
    unparsed_columns: dict[str, str] = field(default_factory=dict)


def read_csv_text(
    file: Path, ending: str, target: str | None, client: str | None, kinds: Mapping[str, ColumnKind] | None = None
) -> ParsedTable:
    """The table of a CSV or TSV file.

    A .csv file whose first line has semicolons and no commas, those within quotes apart, is parted by semicolons.
    Commas in numbers are decimal where that is certain: no number of the file has a point, of decimals or thousands,
    and some number cannot be one with thousands (0,5 or 12,25, but not 1,234). Elsewhere they stay, as text. A column
    ``client`` stays as it is, and so does a text ``target`` of a file that is parted by other signs and whose features
    have no commas. Words such as NA are gaps among numbers and names among text; ``kinds`` are those of columns that
    are known.
    """
    import pandas as pd

    sep = detect_separator(file, ending)
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
        how: Any = {"sep": sep, "index_col": False, "low_memory": False, **exact_float_options()}
        types: Any = {client: str} if client else None  # so that a client "007" keeps its name
        frame: Any = pd.read_csv(file, dtype=types, keep_default_na=False, na_values=[""], **how)
        words = find_missing_tokens(frame, client)
        written = {name: frame[name] for name in words}
        if words:  # numbers beside them are read as those of other columns are
            again: Any = pd.read_csv(file, usecols=list(words), **how)
            for name in words:
                frame[name] = again[name]
        commas, unread = _decimals(file, frame, target, client, how)
    restore_level_columns(frame, written, target, kinds or {})
    return ParsedTable(frame, commas, words, unread)


def _decimals(
    file: Path, frame: Any, target: str | None, client: str | None, how: dict[str, Any]
) -> tuple[list[str], dict[str, str]]:
    """Read the columns with decimal commas as numbers; their names, or by name why points for thousands forbid it."""
    import pandas as pd

    found = _with_commas(frame.drop(columns=[client], errors="ignore") if client else frame)
    if not found or (how["sep"] != ";" and list(found) == [target]) or not _decimal(found):
        return [], {}
    numbers = frame.select_dtypes("number").columns
    pointed = _pointed(pd.read_csv(file, dtype=str, **how)[numbers])
    if pointed:
        other = next((name for name, values in pointed.items() if _by_thousands(values)), None)
        return [], {} if other is None else {
            str(name): _unread(str(name), values, other, pointed[other].iloc[0]) for name, values in found.items()
        }
    for name, values in found.items():
        frame[name] = parse_numbers(values.str.replace(",", "."))
    return [str(name) for name in found], {}


def read_header(file: Path, ending: str) -> list[str]:
    """The names in the first line of a CSV or TSV file, as they are written."""
    import pandas as pd

    sep = detect_separator(file, ending)
    return pd.read_csv(file, sep=sep, header=None, nrows=1, dtype=str).iloc[0].dropna().tolist()


def detect_separator(file: Path, ending: str) -> str:
    """What parts the columns of a CSV or TSV file."""
    if ending == ".tsv":
        return "\t"
    with _OPEN.get(file.suffix.lower(), open)(file, "rb") as content:
        head = re.sub(rb'"[^"]*"', b"", content.readline())
    return ";" if b";" in head and b"," not in head else ","


def _with_commas(frame: Any) -> dict[str, Any]:
    """The columns all of whose values are whole numbers or have one comma, at least one of them, as text."""
    from pandas.api import types

    found = {}
    for name in frame.columns:
        if not types.is_numeric_dtype(frame[name].dtype):
            values = frame[name].dropna().astype(str)
            if values.str.contains(",", regex=False).any() and values.str.fullmatch(_NUMBER).all():
                found[name] = values
    return found


def _decimal(found: dict[str, Any]) -> bool:
    """Whether a comma in these columns cannot be one of thousands."""
    commas = (values[values.str.contains(",", regex=False)] for values in found.values())
    return any(not values.str.fullmatch(_THOUSANDS).all() for values in commas)


def _pointed(text: Any) -> dict[str, Any]:
    """The values with a point, by the columns of a frame of text that have some."""
    found = {name: text[name][text[name].str.contains(".", regex=False, na=False)] for name in text}
    return {str(name): values for name, values in found.items() if len(values)}


def _by_thousands(values: Any) -> bool:
    """Whether the points in these numbers, as text, may be of thousands."""
    return bool(values.str.fullmatch(_POINTED_THOUSANDS).all())


def _unread(name: str, values: Any, other: str, pointed: str) -> str:
    """Why the commas of a column stay, whose values are text: what is ``pointed`` in the column ``other``."""
    comma = values[values.str.contains(",", regex=False)]
    return (f"column '{name}' holds '{comma.iloc[0]}' in row {comma.index[0] + 1}, and commas are not read as those of "
            f"decimals beside points as of thousands, '{pointed.strip()}' in column '{other}': write '{other}' without "
            f"them, or make '{name}' a number with points for its decimals")  # fmt: skip
