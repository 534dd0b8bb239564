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
    """The table of the first sheet, its head as written, and a remark where there are more sheets.

    Words such as NA are as in ``fcorun.tables.csv_text.read_text``. Raises UserError where openpyxl is not installed.
    """
    import pandas as pd

    try:
        import openpyxl  # noqa: F401  # pyright: ignore[reportMissingModuleSource]
    except ImportError as error:
        raise UserError(f"{where} needs openpyxl: pip install 'fcorun[xlsx]', or save it as .csv") from error
    with warnings.catch_warnings(action="ignore"), pd.ExcelFile(file, engine="openpyxl") as book:  # of its styles
        first, *others = map(str, book.sheet_names)
        head: Any = book.parse(first, header=None, nrows=1)
        head = head.to_numpy().ravel().tolist()
        remarks = [f"of {len(others) + 1} sheets the first, '{first}', is read"] if others else []
        frame: Any = book.parse(first, dtype=object, keep_default_na=False, na_values=[""])
        frame = frame.infer_objects()  # else numbers stored as text would not be seen
    words = find_missing_tokens(frame, client)
    written = {name: frame[name] for name in words}
    for name, series in written.items():
        frame[name] = series.mask(series.isin(MISSING_TOKENS)).infer_objects()
    restore_level_columns(frame, written, target, kinds or {})
    told = ParsedTable(frame, missing_tokens={str(name): found for name, found in words.items()})
    return told, [str(name) for name in head if not pd.isna(name)], remarks
