"""Files of text with named columns, CSV and TSV, as data frames."""

import bz2
import csv
import gzip
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fcorun.base.errors import abbreviate
from fcorun.data.tables.cells import exact_float_options, find_missing_tokens, parse_numbers
from fcorun.data.tables.columns import Column
from fcorun.data.tables.parsed_table import ParsedTable, restore_level_columns

_OPEN: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
_NUMBER = r"\s*[+-]?\d+(?:,\d+)?(?:[eE][+-]?\d+)?\s*"  # a comma may be a decimal comma
_COMMA_THOUSANDS = r"\s*[+-]?[1-9]\d{0,2},\d{3}\s*"  # or separate thousands


def read_csv_text(
    file: Path, ending: str, target: str | None, text_columns: Sequence[str], kinds: Mapping[str, Column]
) -> ParsedTable:
    """Read a CSV or TSV file.

    The separator of a .csv file is the semicolon if its first line has semicolons and no commas outside quotes, else
    the comma.

    Commas in numbers are read as decimal commas where that is certain: no number of the file has a point, and some
    number cannot have a separator of thousands (0,5 or 12,25, but not 1,234). Elsewhere such columns stay text. The
    ``text_columns``, such as the clients, always stay text. A text ``target`` stays text in a file without semicolons
    whose features have no commas.

    Tokens such as NA are missing values among numbers and names among text. ``kinds`` are the known kinds of columns:
    those of levels stay text, as they do in a file with names among them.
    """
    import pandas as pd

    options: Any = {"sep": detect_separator(file, ending), "index_col": False, "low_memory": False}
    options |= exact_float_options() | _blank_line_options(file, ending)
    as_written = [*text_columns, *(name for name, column in kinds.items() if column.has_levels)]
    dtypes: Any = dict.fromkeys(as_written, str)  # a client "007", or a level "01", keeps its name
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
        frame: Any = pd.read_csv(file, dtype=dtypes, keep_default_na=False, na_values=[""], **options)
        tokens = find_missing_tokens(frame, text_columns)
        original = {name: frame[name] for name in tokens}
        if tokens:  # the numbers in columns with tokens are read as those of other columns
            reread: Any = pd.read_csv(file, usecols=list(tokens), **options)
            for name in tokens:
                frame[name] = reread[name]
        converted, unparsed = _convert_decimal_commas(file, frame, target, as_written, options)
    restore_level_columns(frame, original, target, kinds)
    header = [name for name in _read_first_line(file, ending) if name]
    table = ParsedTable(frame, tokens, unparsed, header)
    if converted:
        columns = abbreviate(list(map(repr, converted)))
        table.warnings.append(f"commas in {columns} are read as decimal commas, 1,5 as 1.5: check that they are")
    return table


def _convert_decimal_commas(
    file: Path, frame: Any, target: str | None, text_columns: Sequence[str], options: dict[str, Any]
) -> tuple[list[str], dict[str, str]]:
    """Convert the columns with decimal commas to numbers, in place.

    Returns the names of the converted columns, and by name the reason why points elsewhere forbid the conversion.
    """
    import pandas as pd
    from pandas.api import types

    candidates = {}  # columns of numbers without points, at least one with a comma
    is_certain = False  # some comma cannot separate thousands
    for name, dtype in frame.dtypes.items():
        if types.is_numeric_dtype(dtype) or name in text_columns:
            continue
        values = frame[name].dropna().astype(str)
        with_comma = values[values.str.contains(",", regex=False)]
        if len(with_comma) and values.str.fullmatch(_NUMBER).all():
            candidates[name] = values
            is_certain = is_certain or not with_comma.str.fullmatch(_COMMA_THOUSANDS).all()
    if not is_certain or (options["sep"] != ";" and list(candidates) == [target]):
        return [], {}

    text = pd.read_csv(file, dtype=str, **options)
    for other in frame.select_dtypes("number").columns:
        with_point = text[other][text[other].str.contains(".", regex=False, na=False)]
        if not len(with_point):
            continue
        reasons = {}
        for name, values in candidates.items():
            with_comma = values[values.str.contains(",", regex=False)]
            reasons[str(name)] = (f"column '{name}' holds '{with_comma.iloc[0]}' in row {with_comma.index[0] + 1}, and "
                                  "commas are not read as decimal commas in a file that has points, too, "
                                  f"'{with_point.iloc[0].strip()}' in column '{other}': write all numbers of the file "
                                  "with decimal points, or all with decimal commas, and none with points that "
                                  "separate thousands")  # fmt: skip
        return [], reasons
    for name, values in candidates.items():
        frame[name] = parse_numbers(values.str.replace(",", "."))
    return [str(name) for name in candidates], {}


def _blank_line_options(file: Path, ending: str) -> dict[str, Any]:
    """Return the options with which pandas.read_csv reads a blank line of a file with one column as a row with a gap.

    Blank lines before the header and at the end are no rows. Files with more columns need no options: a row without
    values has separators.
    """
    if len(_read_first_line(file, ending)) != 1:
        return {}
    with _open_text(file) as content:
        has_text = [bool(line.strip()) for line in content]
    n_lines = len(has_text)
    first = has_text.index(True)
    end = n_lines - has_text[::-1].index(True)
    return {"skip_blank_lines": False, "skiprows": [*range(first), *range(end, n_lines)]}


def _read_first_line(file: Path, ending: str) -> list[str]:
    """Return the cells, some of them maybe empty, in the first line of a CSV or TSV file that is not blank."""
    with _open_text(file) as content:
        lines = csv.reader((line for line in content if line.strip()), delimiter=detect_separator(file, ending))
        return next(lines, [])


def _open_text(file: Path) -> Any:
    """Open a file of text, which may be compressed."""
    return _OPEN.get(file.suffix.lower(), open)(file, "rt", encoding="utf-8-sig", newline="")


def detect_separator(file: Path, ending: str) -> str:
    """Return the separator of the columns of a CSV or TSV file."""
    if ending == ".tsv":
        return "\t"
    with _OPEN.get(file.suffix.lower(), open)(file, "rb") as content:
        line = next((line for line in content if line.strip()), b"")
    first_line = re.sub(rb'"[^"]*"', b"", line)
    if b";" in first_line and b"," not in first_line:
        return ";"
    return ","
