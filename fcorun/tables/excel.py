"""The first sheet of an .xlsx file as a data frame."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fcorun.errors import UserError
from fcorun.tables.columns import ColumnKind
from fcorun.tables.csv_text import ParsedTable
from fcorun.tables.missing_tokens import MISSING_TOKENS, find_missing_tokens, restore_level_columns


def read_excel(
    file: Path, where: str, target: str | None, client: str | None, kinds: Mapping[str, ColumnKind] | None = None
) -> tuple[ParsedTable, list[str], list[str]]:
    """Return the table of the first sheet, its header as written, and a warning if the file has more sheets.

    Tokens such as NA are treated as in ``fcorun.tables.csv_text.read_csv_text``. Raises UserError where openpyxl is
    not installed.
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
    tokens = find_missing_tokens(frame, client)
    original = {name: frame[name] for name in tokens}
    for name, column in original.items():
        frame[name] = column.mask(column.isin(MISSING_TOKENS)).infer_objects()
    restore_level_columns(frame, original, target, kinds or {})
    table = ParsedTable(frame, missing_tokens={str(name): column_tokens for name, column_tokens in tokens.items()})
    return table, header, sheet_warnings
