"""Lines of tables about few rows, whose numbers tell of single patients, and stay where a record is sent."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcorun.base.errors import UserError, abbreviate
from fcorun.base.picture_style import name_picture_files
from fcorun.base.records import tables
from fcorun.base.records.contents import SUMMARY
from fcorun.base.records.formats import csv_text, read_text
from fcorun.base.records.tables import TableFile

LEAST_ROWS = 5  # that a line is about which is sent
CLIENTS_TABLE = "clients.parquet"  # rows and scores of each client at each evaluation
_SHOWN = 10  # names in a sentence
_Line = dict[str, Any]


@dataclass(frozen=True)
class CountedLines:
    """The numbers of rows that the lines of a table are about.

    Attributes:
        together: the columns that are equal in lines about parts of the same rows, and about all of these.
        count: returns the number of rows of a line, inf where it does not say.
    """

    together: tuple[str, ...]
    count: Callable[[_Line], float]

    def find_few(self, lines: Sequence[_Line]) -> list[_Line]:
        """Return the lines about 1 to LEAST_ROWS - 1 rows."""
        return [line for line in lines if 0 < self.count(line) < LEAST_ROWS]

    def leave_out_few(self, lines: Sequence[_Line]) -> list[_Line]:
        """Return the lines without those about few rows.

        With them go the next larger ones, until LEAST_ROWS rows are left out of a total: the total less the lines that
        stay tells of so many rows at least.
        """
        left_out = set()
        n_left_out: dict[tuple, float] = {}
        for index in sorted(range(len(lines)), key=lambda index: self.count(lines[index])):
            n_rows = self.count(lines[index])
            key = tuple(lines[index].get(name) for name in self.together)
            is_few = 0 < n_rows < LEAST_ROWS
            if is_few or 0 < n_left_out.get(key, 0) < LEAST_ROWS:
                left_out.add(index)
                n_left_out[key] = n_left_out.get(key, 0) + n_rows
        return [line for index, line in enumerate(lines) if index not in left_out]


def _parse_count(text: str | None) -> float:
    """Return a number of rows; inf for an empty cell, and for one that is no number."""
    try:
        return float(text or math.inf)
    except ValueError:
        return math.inf


def _count_n(line: _Line) -> float:
    return _parse_count(line.get("n"))


def _count_gaps(line: _Line) -> float:
    """Return the number of rows with a gap, or of those without one if they are fewer: a line is about both."""
    missing = int(line["missing"])
    present = int(line["rows"]) - missing
    return min(missing, present) if present else missing


OUTCOME = CountedLines(("set",), lambda line: line.get("rows", math.inf))  # of the data in summary.json
COUNTED_TABLES: dict[str, tuple[TableFile, CountedLines]] = {
    "scores.csv": (tables.SCORES, CountedLines(("set", "model"), _count_n)),
    "calibration.csv": (tables.CALIBRATION, CountedLines(("set", "model", "kind", "at"), _count_n)),
    "comparison.csv": (tables.COMPARISON, CountedLines(("candidate", "score"), _count_n)),
    "inference.csv": (tables.INTERVALS, CountedLines(("feature",), _count_n)),
    "client_estimates.csv": (
        tables.CLIENT_ESTIMATES,
        CountedLines(("feature",), lambda line: _parse_count(line.get("rows"))),
    ),
    "missing.csv": (tables.GAPS, CountedLines(("column", "outcome"), _count_gaps)),
}


def leave_out_few(path: Path) -> str:
    """Return the text of one of COUNTED_TABLES without the lines about few rows.

    The lines of inference.csv stay, without their rows and events: all rows less those of one level are another's.
    Raises UserError for a damaged table.
    """
    table, counted = COUNTED_TABLES[path.name]
    lines = table.read_texts(path.parent)
    if table is tables.INTERVALS:
        return csv_text([line | dict.fromkeys(line.keys() & {"n", "events"}, "") for line in lines])
    kept = counted.leave_out_few(lines)
    return csv_text(kept) if len(kept) < len(lines) else read_text(path)


def list_files_about_few(folder: Path) -> set[str]:
    """Return the names of the files in a folder that are about clients, one of which has few rows."""
    names = set()
    if (folder / CLIENTS_TABLE).is_file():
        import pandas as pd

        rows = pd.read_parquet(folder / CLIENTS_TABLE, columns=["rows"])["rows"]
        if min(rows.tolist(), default=LEAST_ROWS) < LEAST_ROWS:
            names |= {CLIENTS_TABLE, *name_picture_files("clients")}
    if _find_few(folder, "comparison.csv"):
        names |= {*name_picture_files("comparison")}
    return names


def name_few(folders: Iterable[Path]) -> str:
    """Return the clients, levels and columns that lines about few rows in some folders are of; "" without any."""
    few = []
    for folder in folders:
        few += OUTCOME.find_few(SUMMARY.read(folder).get("data", {}).get("outcome") or [])
        for name in COUNTED_TABLES:
            few += _find_few(folder, name)
    names = [line.get("column") or line.get("client") or line.get("feature") or "all clients" for line in few]
    return abbreviate([*dict.fromkeys(names)], _SHOWN)


def _find_few(folder: Path, name: str) -> list[_Line]:
    """Return the lines about few rows of a table in a folder; [] of one that is missing or damaged."""
    table, counted = COUNTED_TABLES[name]
    try:
        return counted.find_few(table.read_texts(folder))
    except UserError:
        return []
