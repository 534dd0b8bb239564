"""Workbooks of Excel, .xlsx, as data frames."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fcorun.base.errors import UserError
from fcorun.data.tables.cells import MISSING_TOKENS, find_missing_tokens
from fcorun.data.tables.columns import Column
from fcorun.data.tables.parsed_table import ParsedTable, restore_level_columns


def read_excel(
    file: Path, where: str, target: str | None, text_columns: Sequence[str], kinds: Mapping[str, Column]
) -> ParsedTable:
    """Read the first sheet, with a warning about more sheets. Errors of formulas are gaps.

    Tokens such as NA are treated as in ``read_csv_text``. Raises UserError where openpyxl is not installed.
    """
    import pandas as pd

    try:
        import openpyxl  # noqa: F401  # pyright: ignore[reportMissingModuleSource]
    except ImportError as error:
        raise UserError(f"{where} needs openpyxl: pip install 'fcorun[xlsx]', or save it as .csv") from error
    with warnings.catch_warnings(action="ignore"), pd.ExcelFile(file, engine="openpyxl") as book:  # styles are ignored
        first, *others = map(str, book.sheet_names)
        first_row: Any = book.parse(first, header=None, nrows=1)
        header = [str(name) for name in first_row.to_numpy().ravel().tolist() if not pd.isna(name)]
        frame: Any = book.parse(first, dtype=object, keep_default_na=False, na_values=[""])
        frame = frame.infer_objects()  # numbers stored as text stay objects, and are reported later
    sheet_warnings = [f"of {len(others) + 1} sheets the first, '{first}', is read"] if others else []
    tokens = find_missing_tokens(frame, text_columns)
    original = {name: frame[name] for name in tokens}
    for name, column in original.items():
        frame[name] = column.mask(column.isin(MISSING_TOKENS)).infer_objects()
    restore_level_columns(frame, original, target, kinds)
    return ParsedTable(frame, {str(name): tokens[name] for name in tokens}, header=header, warnings=sheet_warnings)
