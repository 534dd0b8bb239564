"""Files of a record as a page reads them: missing or broken ones are empty."""

import csv
import io
from pathlib import Path
from typing import Any

from fcorun.records.formats import read_text


def read_csv(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a CSV; [] if the file is missing or cannot be read."""
    try:
        return list(csv.DictReader(io.StringIO(read_text(path), newline="")))
    except (OSError, ValueError, csv.Error):
        return []


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


_TEXT_COLUMNS = ("set", "model", "client", "positive")  # of scores.csv: a client or a class may be called 007


def parse_score(column: str, text: str) -> Any:
    """Return a cell of scores.csv as a number, but of a column of names as text."""
    return text if column in _TEXT_COLUMNS else parse_cell(text)


def parse_cell(text: str) -> Any:
    """Return a cell of a CSV as a number if possible, else as text."""
    try:
        return int(text) if text.lstrip("-").isdecimal() else float(text)
    except ValueError:
        return text
