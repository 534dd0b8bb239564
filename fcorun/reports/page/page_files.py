"""Files of a record as a page reads and shows them: missing or broken ones are empty."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fcorun.base.records.formats import read_text
from fcorun.reports.page.elements import html_table


def read_csv(path: Path, column: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of a CSV; [] if the file is missing, cannot be read, is damaged, or lacks the ``column``."""
    try:
        rows = list(csv.DictReader(io.StringIO(read_text(path), newline="")))
    except (OSError, ValueError, csv.Error):
        return []
    is_damaged = any(None in row or None in row.values() for row in rows)  # a line is longer or shorter than the header
    return [] if is_damaged or (rows and column is not None and column not in rows[0]) else rows


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text; [] if the file is missing or cannot be read."""
    try:
        return read_text(path).splitlines()
    except (OSError, ValueError):
        return []


def parse_float(value: Any) -> float:
    """Return a value of a file as a number, nan for other text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


# columns of names: a client, a class or a feature may be called 007 or nan
_TEXT_COLUMNS = (
    *("run", "set", "model", "client", "positive", "feature", "class", "held_out"),
    *("algo", "data", "objective", "reg"),
)


def parse_cell(column: str, text: str) -> Any:
    """Return a cell of a CSV as a number if possible, else as text; a cell of a column of names is text."""
    if column in _TEXT_COLUMNS:
        return text
    try:
        return int(text) if text.lstrip("-").isdecimal() else float(text)
    except ValueError:
        return text


def csv_table(
    rows: Sequence[dict[str, Any]], name: str = "", caption: str = "", columns: Sequence[str] | None = None
) -> Markup:
    """Return rows of a CSV as a table, with numbers where cells are numbers; by default it has all their columns."""
    if columns is None:
        columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = []
    for row in rows:
        cells.append([parse_cell(key, row.get(key) or "") for key in columns])
    return html_table(columns, cells, name, caption)
