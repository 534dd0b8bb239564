"""Files of text with named columns, CSV and TSV, as data frames."""

import bz2
import codecs
import csv
import gzip
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fcorun.base.errors import UserError, abbreviate
from fcorun.data.tables.cells import exact_float_options, find_missing_tokens, has_numpy_numbers, parse_numbers
from fcorun.data.tables.columns import Column
from fcorun.data.tables.number_texts import (
    MILLIONS,
    find_point_before_thousands,
    has_ambiguous_cells,
    has_padded_cells,
    holds_digits_e,
    holds_padded_codes,
    is_whole,
    may_have_own_text,
    warn_of_thousands,
)
from fcorun.data.tables.parsed_table import (
    FileOptions,
    ParsedTable,
    add_codes,
    check_first_row,
    mask_codes,
    restore_level_columns,
)

_FIRST_BYTES = 4096
_FIRST_ROWS = 1000  # which usually show a cell that is no plain number
_FIRST_ROWS_OF_NAMES = 20  # among which the names of the columns are looked for
_SEPARATORS = (",", ";", "\t")
_UTF_8 = "utf-8-sig"  # with or without a mark
OPEN_COMPRESSED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
_NUMBER = r"\s*[+-]?\d+(?:,\d+)?(?:[eE][+-]?\d+)?\s*"  # a comma may be a decimal comma
_COMMA_THOUSANDS = r"\s*[+-]?[1-9]\d{0,2},\d{3}\s*"  # or separate thousands


def read_csv_text(
    file: Path,
    ending: str,
    target: str | None,
    text_columns: Sequence[str],
    kinds: Mapping[str, Column],
    *,
    where: str,
    options: FileOptions,
) -> ParsedTable:
    """Read a CSV or TSV file, whose form ``examine_text_file`` finds.

    Commas in numbers are read as decimal commas where that is certain: no number of the file has a point, and some
    number cannot have a separator of thousands (0,5 or 12,25, but not 1,234). Elsewhere such columns stay text. The
    ``text_columns``, such as the clients, always stay text. A text ``target`` stays text in a file without semicolons
    whose features have no commas.

    Tokens such as NA are missing values among numbers and names among text. ``kinds`` are the known kinds of columns:
    those of levels stay text, as they do in a file with names among them.
    """
    import pandas as pd

    text_file = examine_text_file(file, ending, options.encoding, where)
    pandas_options = text_file.pandas_options()
    as_written = [*text_columns, *(name for name, column in kinds.items() if column.has_levels)]
    dtypes: Any = dict.fromkeys(as_written, str)  # a client "007", or a level "01", keeps its name
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
        try:
            frame: Any = pd.read_csv(file, dtype=dtypes, keep_default_na=False, na_values=[""], **pandas_options)
        except pd.errors.ParserWarning as error:
            raise UserError(f"{where}: {text_file.describe_long_row()}") from error
        codes = options.codes_by_column(list(frame.columns), text_columns)
        found = mask_codes(frame, codes)
        tokens = find_missing_tokens(frame, text_columns)
        with_text = [*tokens, *(name for name in found if not has_numpy_numbers(frame[name]) and name not in tokens)]
        original = {name: frame[name] for name in with_text if name not in as_written or name in tokens}
        if original:  # the numbers in columns with tokens or codes of text are read as those of other columns
            gaps = {name: codes.get(name, []) for name in original}
            reread: Any = pd.read_csv(file, usecols=list(original), na_values=gaps, **pandas_options)
            for name in original:
                frame[name] = reread[name]
        converted, unparsed = _convert_decimal_commas(file, frame, target, as_written, pandas_options)
    restore_level_columns(frame, original, target, kinds, options)
    names = [name for name in frame.columns if name not in (target, *as_written, *kinds)]
    thousands = _restore_texts(text_file, frame, names, codes, pandas_options)
    table = ParsedTable(frame, add_codes(tokens, found), unparsed, header=[name for name in text_file.header if name])
    table.column_warnings = thousands
    if text_file.encoding == _UTF_8 and "encoding" in options.optional and not _is_name_of_utf8(options.encoding):
        table.warnings.append(f"the characters are UTF-8, and read as such, not as {options.encoding} as in the record")
    if converted:
        columns = abbreviate(list(map(repr, converted)))
        table.warnings.append(f"commas in {columns} are read as decimal commas, 1,5 as 1.5: check that they are")
    return table


def _restore_texts(
    file: "TextFile", frame: Any, names: Sequence[str], codes: Mapping[str, list[str]], options: Mapping[str, Any]
) -> dict[str, str]:
    """Put back, in place, the texts of columns of numbers that are codes, or may be, such as 08001 and 12E3.

    Returns a warning, by column of ``names``, about points that may separate thousands.
    """
    import pandas as pd

    columns = {name: frame[name].to_numpy() for name in names if frame[name].dtype.kind in "iuf"}
    candidates = [name for name, numbers in columns.items() if numbers.dtype.kind == "f" and may_have_own_text(numbers)]
    if candidates:  # whole numbers with gaps are none
        first_rows: Any = pd.read_csv(file.path, usecols=candidates, dtype=str, nrows=_FIRST_ROWS, **options)
        candidates = [name for name in candidates if has_ambiguous_cells(first_rows[name].dropna())]
    with file.open_lines() as content:
        if has_padded_cells(content, file.separator):
            candidates += [name for name, numbers in columns.items() if is_whole(numbers) and name not in candidates]
    if not candidates:
        return {}
    text: Any = pd.read_csv(file.path, usecols=candidates, dtype=str, **options)
    mask_codes(text, {name: codes[name] for name in candidates if name in codes})
    others = [frame[name].dropna().astype(str) for name in frame.columns if not has_numpy_numbers(frame[name])]
    is_certain = file.separator == ";" or any(column.str.fullmatch(MILLIONS).any() for column in others)
    warnings = {}
    for name in candidates:
        cells = text[name].dropna()
        if holds_padded_codes(cells) or holds_digits_e(cells):
            frame[name] = text[name]
        elif (row := find_point_before_thousands(cells, is_certain)) is not None:
            warnings[name] = warn_of_thousands(name, cells[row], row)
    return warnings


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


@dataclass(frozen=True)
class TextFile:
    """A file of text, which may be compressed, and the form of its lines.

    Attributes:
        path: the file.
        encoding: the encoding of its characters.
        separator: the character between two cells.
        header: the cells, some of them maybe empty, of the line that names the columns.
        skipped: the numbers of lines, from 0, that are no rows.
    """

    path: Path
    encoding: str
    separator: str = ","
    header: Sequence[str] = ()
    skipped: Sequence[int] = ()

    def open_lines(self) -> Any:
        """Return the lines of the file, as text."""
        return OPEN_COMPRESSED.get(self.path.suffix.lower(), open)(self.path, "rt", encoding=self.encoding, newline="")

    def describe_long_row(self) -> str:
        """Return a sentence about the first row that has more cells than the header."""
        with self.open_lines() as content:
            rows = csv.reader(content, delimiter=self.separator)
            long_row = next((row for row in rows if len(row) > len(self.header)), [])
            return (f"line {rows.line_num} has {len(long_row)} cells and the names of the columns {len(self.header)}: "
                    "give each column a name, or quote cells with separators")  # fmt: skip

    def pandas_options(self) -> dict[str, Any]:
        """Return the options with which pandas.read_csv reads the file.

        A blank line of a file with one column is a row with a gap, unless it is before the header or at the end. Files
        with more columns need no option for that: a row without values has separators.
        """
        options: dict[str, Any] = {"sep": self.separator, "index_col": False, "low_memory": False}
        options |= exact_float_options() | {"encoding": self.encoding, "skiprows": list(self.skipped)}
        if len(self.header) == 1:
            with self.open_lines() as content:
                has_text = [bool(line.strip()) for line in content]
            for i in self.skipped:
                has_text[i] = False
            n_lines = len(has_text)
            end = n_lines - has_text[::-1].index(True)
            options |= {"skip_blank_lines": False}
            options["skiprows"] = [*range(has_text.index(True)), *range(end, n_lines)]
        return options


def examine_text_file(path: Path, ending: str, encoding: str | None, where: str) -> TextFile:
    """Return a CSV or TSV file with the form of its lines; ``encoding`` is that which an option gives, or None.

    Excel begins some files with a line such as ``sep=;``, which names the separator.

    Raises UserError, which begins with ``where``, for zero bytes, and for lines before the names of the columns.
    """
    file = TextFile(path, find_encoding(path, encoding, where))
    with file.open_lines() as content:
        numbered = ((i, line.rstrip("\r\n")) for i, line in enumerate(content) if line.strip())
        number, first_line = next(numbered, (0, ""))
    separator = find_separator(first_line, ending)
    if declared := re.fullmatch('"?sep=(.)"?', first_line):
        separator = declared[1]
        file = replace(file, skipped=[number])
    rows = _read_first_rows(file, separator)
    if not rows:
        return replace(file, separator=separator)
    header = rows[0][1]
    check_first_row(rows, where)
    fitting = [number for number, cells in rows if len(cells) == len(header) > 1]
    for other in _SEPARATORS:  # the separator of a title says nothing about the rows below
        check_first_row([rows[0], *_read_first_rows(file, other)[1:]], where, fitting)
    return replace(file, separator=separator, header=header)


def _read_first_rows(file: TextFile, separator: str) -> list[tuple[int, list[str]]]:
    """Return the first rows of a file that are not blank: the line in which each begins, from 1, and its cells."""
    rows = []
    with file.open_lines() as content, suppress(csv.Error):  # a cell is too long, as after a quote that never ends
        reader = csv.reader(content, delimiter=separator)
        number = 1
        for cells in reader:
            if separator.join(cells).strip() and number - 1 not in file.skipped:
                rows.append((number, cells))
            number = reader.line_num + 1
            if len(rows) == _FIRST_ROWS_OF_NAMES:
                break
    return rows


def find_separator(header: str, ending: str) -> str:
    """Return the separator of the cells of a CSV or TSV file by its first line.

    That of a .csv is the first of comma, semicolon and tab that the line has outside quotes.
    """
    if ending == ".tsv":
        return "\t"
    unquoted = re.sub('"[^"]*"', "", header)
    return next((separator for separator in _SEPARATORS if separator in unquoted), ",")


def open_bytes(path: Path) -> Any:
    """Open a file for reading, of .gz and .bz2, in either case, what is packed in it."""
    return OPEN_COMPRESSED.get(path.suffix.lower(), open)(path, "rb")


def find_encoding(path: Path, encoding: str | None, where: str) -> str:
    """Return the encoding of the characters of a file: that of its mark, UTF-8, or the given ``encoding``.

    Raises UserError, which begins with ``where``, for zero bytes in a file without a mark and a given encoding.
    """
    with open_bytes(path) as content:
        start = content.read(_FIRST_BYTES)
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if encoding is not None and not start.startswith(codecs.BOM_UTF8) and not is_utf8(path):
        return encoding
    if b"\0" in start:
        raise UserError(f"{where} has zero bytes: if it is of UTF-16, give `data.encoding=utf-16-le` (or utf-16-be), "
                        "or save it as UTF-8; mend or rename another file")  # fmt: skip
    return _UTF_8


def _is_name_of_utf8(encoding: str | None) -> bool:
    """Return whether text of this encoding is read as UTF-8, the default."""
    return encoding is None or codecs.lookup(encoding).name.startswith("utf-8")


def is_utf8(path: Path) -> bool:
    """Return whether a file has characters beyond ASCII, all of them in UTF-8, as no other text of words has."""
    try:
        with TextFile(path, _UTF_8).open_lines() as content:
            return sum(not line.isascii() for line in content) > 0  # all lines are read
    except UnicodeDecodeError:
        return False
