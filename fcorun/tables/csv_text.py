"""CSV and TSV files as data frames: the separator of the columns, and the decimal sign of the numbers."""

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
_NUMBER = r"\s*[+-]?\d+(?:,\d+)?(?:[eE][+-]?\d+)?\s*"  # a comma may be a decimal comma
_COMMA_THOUSANDS = r"\s*[+-]?[1-9]\d{0,2},\d{3}\s*"  # or separate thousands
_POINT_THOUSANDS = r"\s*[+-]?[1-9]\d{0,2}\.\d{3}\s*"


@dataclass
class ParsedTable:
    """A table as read from a file.

    Attributes:
        frame: a pandas.DataFrame.
        decimal_comma_columns: the columns whose commas were read as decimal commas.
        missing_tokens: by column, the tokens for missing values in it (``fcorun.tables.missing_tokens``).
        unparsed_columns: by column whose numbers have commas, the reason why these were not read as decimal commas.
    """

    frame: Any
    decimal_comma_columns: list[str] = field(default_factory=list)
    missing_tokens: dict[str, list[str]] = field(default_factory=dict)
    unparsed_columns: dict[str, str] = field(default_factory=dict)


def read_csv_text(
    file: Path, ending: str, target: str | None, client: str | None, kinds: Mapping[str, ColumnKind] | None = None
) -> ParsedTable:
    """Read a CSV or TSV file.

    The separator of a .csv file is the semicolon if its first line has semicolons and no commas outside quotes, else
    the comma.

    Commas in numbers are read as decimal commas where that is certain: no number of the file has a point, and some
    number cannot have a separator of thousands (0,5 or 12,25, but not 1,234). Elsewhere such columns stay text. The
    column ``client`` always stays text. A text ``target`` stays text in a file without semicolons whose features have
    no commas.

    Tokens such as NA are missing values among numbers and names among text. ``kinds`` are the known kinds of columns.
    """
    import pandas as pd

    options: Any = {"sep": detect_separator(file, ending), "index_col": False, "low_memory": False}
    options |= exact_float_options()
    dtypes: Any = {client: str} if client else None  # a client "007" keeps its name
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
        frame: Any = pd.read_csv(file, dtype=dtypes, keep_default_na=False, na_values=[""], **options)
        tokens = find_missing_tokens(frame, client)
        original = {name: frame[name] for name in tokens}
        if tokens:  # the numbers beside tokens are read as the numbers of other columns
            reread: Any = pd.read_csv(file, usecols=list(tokens), **options)
            for name in tokens:
                frame[name] = reread[name]
        converted, unparsed = _convert_decimal_commas(file, frame, target, client, options)
    restore_level_columns(frame, original, target, kinds or {})
    return ParsedTable(frame, converted, tokens, unparsed)


def _convert_decimal_commas(
    file: Path, frame: Any, target: str | None, client: str | None, options: dict[str, Any]
) -> tuple[list[str], dict[str, str]]:
    """Convert the columns with decimal commas to numbers, in place.

    Returns the names of the converted columns, and by name the reason why points for thousands forbid the conversion.
    """
    import pandas as pd

    candidates = _columns_with_commas(frame.drop(columns=[client], errors="ignore") if client else frame)
    if not candidates or not _has_certain_decimal_comma(candidates):
        return [], {}
    if options["sep"] != ";" and list(candidates) == [target]:
        return [], {}

    text = pd.read_csv(file, dtype=str, **options)
    with_points = {}
    for name in frame.select_dtypes("number").columns:
        values = text[name][text[name].str.contains(".", regex=False, na=False)]
        if len(values):
            with_points[str(name)] = values
    if with_points:
        for other, values in with_points.items():
            if values.str.fullmatch(_POINT_THOUSANDS).all():
                return [], {
                    str(name): _explain_unparsed(str(name), column, other, values.iloc[0])
                    for name, column in candidates.items()
                }
        return [], {}

    for name, values in candidates.items():
        frame[name] = parse_numbers(values.str.replace(",", "."))
    return [str(name) for name in candidates], {}


def read_header(file: Path, ending: str) -> list[str]:
    """Return the column names in the first line of a CSV or TSV file, as written."""
    import pandas as pd

    sep = detect_separator(file, ending)
    return pd.read_csv(file, sep=sep, header=None, nrows=1, dtype=str).iloc[0].dropna().tolist()


def detect_separator(file: Path, ending: str) -> str:
    """Return the separator of the columns of a CSV or TSV file."""
    if ending == ".tsv":
        return "\t"
    with _OPEN.get(file.suffix.lower(), open)(file, "rb") as content:
        first_line = re.sub(rb'"[^"]*"', b"", content.readline())
    return ";" if b";" in first_line and b"," not in first_line else ","


def _columns_with_commas(frame: Any) -> dict[str, Any]:
    """Return the text columns of numbers without points, at least one of them with a comma."""
    from pandas.api import types

    columns = {}
    for name in frame.columns:
        if not types.is_numeric_dtype(frame[name].dtype):
            values = frame[name].dropna().astype(str)
            if values.str.contains(",", regex=False).any() and values.str.fullmatch(_NUMBER).all():
                columns[name] = values
    return columns


def _has_certain_decimal_comma(columns: dict[str, Any]) -> bool:
    """Return whether some comma in these columns cannot separate thousands."""
    for values in columns.values():
        with_comma = values[values.str.contains(",", regex=False)]
        if not with_comma.str.fullmatch(_COMMA_THOUSANDS).all():
            return True
    return False


def _explain_unparsed(name: str, values: Any, other: str, with_point: str) -> str:
    """Explain why the commas of a column stay text: the number ``with_point`` in the column ``other``."""
    with_comma = values[values.str.contains(",", regex=False)]
    return (f"column '{name}' holds '{with_comma.iloc[0]}' in row {with_comma.index[0] + 1}, and commas are not read "
            f"as decimal commas beside points that separate thousands, '{with_point.strip()}' in column '{other}': "
            f"write '{other}' without them, or '{name}' with decimal points")  # fmt: skip
