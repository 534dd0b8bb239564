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
        import openpyxl  # noqa: F401
    except ImportError as error:
        raise UserError(f"{where} needs openpyxl: pip install 'fcorun[xlsx]', or save it as .csv") from error
    with warnings.catch_warnings(), pd.ExcelFile(file, engine="openpyxl") as book:
        warnings.simplefilter("ignore")  # of styles and validations, which are not read
        first, *others = map(str, book.sheet_names)
        head = book.parse(first, header=None, nrows=1).to_numpy().ravel().tolist()
        remarks = [f"of {len(others) + 1} sheets the first, '{first}', is read"] if others else []
        frame = book.parse(first, dtype=object).infer_objects()  # else numbers stored as text would not be seen
        return frame, [str(name) for name in head if not pd.isna(name)], remarks
