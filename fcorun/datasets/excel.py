"""The first sheet of an .xlsx file as a data frame."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fcorun.datasets.columns import Kind
from fcorun.datasets.text import Written
from fcorun.datasets.words import WORDS, take_names, words_in
from fcorun.errors import UserError


def read_excel(
    file: Path, where: str, target: str | None, client: str | None, kinds: Mapping[str, Kind] | None = None
) -> tuple[Written, list[str], list[str]]:
    """The table of the first sheet, its head as written, and a remark where there are more sheets.

    Words such as NA are as in ``fcorun.datasets.text.read_text``. Raises UserError where openpyxl is not installed.
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
    words = words_in(frame, client)
    written = {name: frame[name] for name in words}
    for name, series in written.items():
        frame[name] = series.mask(series.isin(WORDS)).infer_objects()
    take_names(frame, written, target, kinds or {})
    told = Written(frame, words={str(name): found for name, found in words.items()})
    return told, [str(name) for name in head if not pd.isna(name)], remarks
