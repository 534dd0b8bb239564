"""Workbooks of Excel, .xlsx, as data frames."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from fcorun.base.errors import UserError, first_line, suggest_name, word
from fcorun.data.tables.cells import MISSING_TOKENS, find_missing_tokens
from fcorun.data.tables.column_roles import check_unique_names
from fcorun.data.tables.columns import Column
from fcorun.data.tables.parsed_table import FileOptions, ParsedTable, check_first_row, restore_level_columns

_LARGEST_EXACT = 2**53  # whole numbers up to which a float has all
_FIRST_ROWS = 20  # among which the names of the columns are looked for
_MAX_EMPTY = 1_000_000  # cells of a sheet, nearly all of which may be empty
_LEAST_FILLED = 0.02  # the share of cells with values in a larger sheet


@contextmanager
def _explain_damaged_parts() -> Iterator[None]:
    """Raise ValueError in place of the errors of openpyxl for parts of a workbook that are no XML, or another one's."""
    try:
        yield
    except (ElementTree.ParseError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"a part of the workbook is damaged: {first_line(error)}") from error


def read_excel(
    file: Path,
    target: str | None,
    text_columns: Sequence[str],
    kinds: Mapping[str, Column],
    *,
    where: str,
    options: FileOptions,
) -> ParsedTable:
    """Read a sheet: the one that ``options`` name, else the first, with a warning about more sheets.

    Errors of formulas are gaps. Tokens such as NA are treated as in ``read_csv_text``. The first sheet stands for one
    that is optional and not there.

    Raises UserError where openpyxl is not installed, for a sheet that is not there, and as ``read_cells`` does.
    """
    import pandas as pd

    try:
        from openpyxl import load_workbook  # pyright: ignore[reportMissingModuleSource]
    except ImportError as error:
        raise UserError(f"{where} needs openpyxl: pip install 'fcorun[xlsx]', or save it as .csv") from error
    table_warnings = []
    with warnings.catch_warnings(action="ignore"), file.open("rb") as content:  # styles are ignored
        with _explain_damaged_parts():
            book: Any = load_workbook(content, read_only=True, data_only=True, keep_links=False)
        sheets = {sheet.title: sheet for sheet in book.worksheets}
        if not sheets:
            raise UserError(f"{where}: the file has no sheet of cells; give one with data")
        name = next(iter(sheets))
        if options.sheet in sheets:
            name = options.sheet
        elif options.sheet is not None and "sheet" not in options.optional:
            raise UserError(f"`data.sheet={options.sheet}`: {file.name} has no such sheet; "
                            f"{suggest_name(options.sheet, sheets)}")  # fmt: skip
        elif len(sheets) > 1:
            table_warnings.append(word(f"of {len(sheets)} sheets the first, '{name}', is read: `data.sheet=NAME` reads "
                                       "another"))  # fmt: skip
        with _explain_damaged_parts():
            header, *rows = read_cells(sheets[name], where) or [[]]
    check_unique_names([str(cell) for cell in header if cell is not None], where)
    names = [f"Unnamed: {i}" if cell is None else str(cell) for i, cell in enumerate(header)]
    frame: Any = pd.DataFrame(rows, columns=names, dtype=object)
    frame = frame.where(frame.notna(), np.nan).infer_objects()  # numbers stored as text are reported later
    tokens = find_missing_tokens(frame, text_columns)
    original = {name: frame[name] for name in tokens}
    for name, column in original.items():
        frame[name] = column.mask(column.isin(MISSING_TOKENS)).infer_objects()
    restore_level_columns(frame, original, target, kinds, options)
    return ParsedTable(frame, {str(name): tokens[name] for name in tokens}, warnings=table_warnings)


def read_cells(sheet: Any, where: str) -> list[list[Any]]:
    """Return the rows of a sheet of openpyxl, all as long, from the first row with a value to the last one.

    Empty cells and errors of formulas are None, whole numbers integers.

    Raises UserError, which begins with ``where``, for a sheet of nearly nothing but empty cells, which would fill the
    memory, and for rows before the names of the columns.
    """
    sheet.reset_dimensions()  # which the file may say wrongly
    rows: list[list[Any]] = []
    n_rows = n_columns = n_values = 0
    for row in sheet.iter_rows(values_only=True):
        cells = [_plain_cell(value) for value in row]
        while cells and cells[-1] is None:
            cells.pop()
        if not cells and not rows:
            continue
        rows.append(cells)
        if not cells:
            continue
        n_rows = len(rows)
        n_columns = max(n_columns, len(cells))
        n_values += sum(cell is not None for cell in cells)
        if n_rows * n_columns > max(_MAX_EMPTY, n_values / _LEAST_FILLED):
            raise UserError(f"{where}: the sheet '{sheet.title}' has {n_values:,} values in {n_rows:,} rows and "
                            f"{n_columns:,} columns or more: delete the cells far from the table, or save the table "
                            "alone")  # fmt: skip
    rows = [cells + [None] * (n_columns - len(cells)) for cells in rows[:n_rows]]
    filled = [(i + 1, cells) for i, cells in enumerate(rows[:_FIRST_ROWS]) if any(cell is not None for cell in cells)]
    if filled:
        texts = [(number, ["" if cell is None else str(cell) for cell in cells]) for number, cells in filled]
        check_first_row(texts, where)
    return rows


def _plain_cell(value: Any) -> Any:
    """Return the value of a cell as ``read_cells`` does."""
    from openpyxl.cell.cell import ERROR_CODES  # pyright: ignore[reportMissingModuleSource]

    if isinstance(value, str) and (not value or value in ERROR_CODES):
        return None
    if isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST_EXACT:
        return int(value)
    return value
