"""The first sheet of an .xlsx file as a data frame."""

import warnings
from pathlib import Path
from typing import Any

from fcorun.errors import UserError


def read_excel(file: Path, where: str) -> tuple[Any, list[str], list[str]]:
    """The table of the first sheet, its head as written, and a remark where there are more sheets.

    Raises UserError where openpyxl is not installed.
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
        frame: Any = book.parse(first, dtype=object)
        frame = frame.infer_objects()  # else numbers stored as text would not be seen
        return frame, [str(name) for name in head if not pd.isna(name)], remarks
