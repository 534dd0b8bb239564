"""The tables of records, CSV: the types of their columns, and their reader, which checks each cell.

A table may come from somebody else, or from a disk that failed: a cell of another type is told by its column and row
when the table is read, so that nobody who uses a cell needs to look at its type.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fcorun.base.errors import UserError
from fcorun.base.metrics import INTEGER_COUNTERS
from fcorun.base.records.contents import RUN_AGAIN, STUDY_AGAIN
from fcorun.base.records.formats import read_text

MAX_PREDICTED_ROWS = 1_000_000  # held-out rows of predictions.csv, some 100 MB
_LARGEST_COUNT = 2**63 - 1  # of NumPy
_LARGEST_ESTIMATE = 1e100  # whose square, and that of its error, are numbers
_SHOWN = 40  # characters of a cell in a sentence


@dataclass(frozen=True)
class CellType:
    """The type of the cells of a column.

    Attributes:
        words: what a cell must be.
        parse: returns the value of a cell, or raises ValueError.
    """

    words: str
    parse: Callable[[str], Any]


def _parse_count(text: str) -> int:
    count = int(text)
    if not 0 <= count <= _LARGEST_COUNT:
        raise ValueError
    return count


def _parse_estimate(text: str) -> float:
    estimate = float(text or "nan")
    if abs(estimate) > _LARGEST_ESTIMATE:
        raise ValueError
    return estimate


TEXT = CellType("text", str)
NUMBER = CellType("a number", float)
NUMBER_OR_GAP = CellType("a number, or empty", lambda text: float(text or "nan"))
ESTIMATE = CellType(f"a number up to {_LARGEST_ESTIMATE:g}, or empty", _parse_estimate)
COUNT = CellType("a whole number, 0 or more", _parse_count)


@dataclass(frozen=True)
class TableFile:
    """A table of a record, or of a study, with the types of its columns.

    Attributes:
        name: the name of the file.
        columns: the types of the columns that the table must have.
        optional: the types of columns that it may have.
        others: the type of all other columns.
        cure: the end of a sentence about a damaged file.
        max_rows: the largest number of rows that are read.
    """

    name: str
    columns: dict[str, CellType]
    optional: dict[str, CellType] = field(default_factory=dict)
    others: CellType = TEXT
    cure: str = RUN_AGAIN
    max_rows: int = 10_000_000

    def read(self, folder: Path) -> dict[str, list[Any]]:
        """Return the values of each column, nan for a gap; {} for a table that is missing, or has no columns.

        Raises UserError, which names the file, the column and the row, for a table that is damaged.
        """
        return self._read(folder)[1]

    def read_names(self, folder: Path) -> list[str]:
        """Return the names of the columns alone, which is faster; [] for a table that is missing. Raises UserError."""
        with self._describing_damage(folder):
            return next(self._read_lines(folder))
        return []

    def read_rows(self, folder: Path) -> list[dict[str, Any]]:
        """Return the rows of the table as ``read`` does, the values of each by column."""
        columns = self.read(folder)
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def read_texts(self, folder: Path) -> list[dict[str, str]]:
        """Return the rows of the table as ``read_rows`` does, with cells as they are written."""
        rows, columns = self._read(folder)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def describe_damage(self, folder: Path, fault: str) -> UserError:
        """Return the error that the table is damaged."""
        return UserError(f"{folder / self.name} is damaged ({fault}): {self.cure}")

    def _read(self, folder: Path) -> tuple[list[list[str]], dict[str, list[Any]]]:
        """Return the rows as they are written, and the values by column."""
        rows: list[list[str]] = []
        columns: dict[str, list[Any]] = {}
        with self._describing_damage(folder):
            names, *rows = self._read_lines(folder)
            for index, name in enumerate(names):
                columns[name] = self._parse_cells(name, [row[index] for row in rows])
        return rows, columns

    def _read_lines(self, folder: Path) -> Iterator[list[str]]:
        """Yield the names of the columns, and each row as it is written. Raises OSError, ValueError and csv.Error."""
        lines = csv.reader(io.StringIO(read_text(folder / self.name), newline=""))
        names = next(lines, None)
        if names is None:
            raise ValueError("it is empty")
        self._check_names(names)
        yield names
        for number, line in enumerate(lines, start=1):
            if len(line) != len(names):
                raise ValueError(f"row {number} has {len(line)} values for {len(names)} columns")
            if number > self.max_rows:
                raise ValueError(f"more than {self.max_rows:,} rows")
            yield line

    @contextmanager
    def _describing_damage(self, folder: Path) -> Iterator[None]:
        """Raise UserError in place of the errors of a damaged table; end the block for one that is missing."""
        try:
            yield
        except FileNotFoundError:
            return
        except UnicodeDecodeError as error:
            raise self.describe_damage(folder, "it is no text in UTF-8") from error
        except (OSError, ValueError, csv.Error) as error:
            raise self.describe_damage(folder, str(error)) from error

    def _check_names(self, names: Sequence[str]) -> None:
        """Raise ValueError for a column that is missing or is there twice."""
        missing = self.columns.keys() - set(names) if names else ()
        if missing:
            raise ValueError(f"no column {min(missing)}")
        if len(set(names)) < len(names):
            raise ValueError("two columns of one name")

    def _parse_cells(self, name: str, cells: Sequence[str]) -> list[Any]:
        """Return the values of the cells of a column. Raises ValueError for a cell of another type."""
        cell_type = (self.columns | self.optional).get(name, self.others)
        values = []
        try:
            values.extend(map(cell_type.parse, cells))
        except ValueError as error:  # of the cell after those that are in values
            where = f"'{name[:_SHOWN]}' of row {len(values) + 1}"
            cell = cells[len(values)][:_SHOWN]
            raise ValueError(f"{where} must be {cell_type.words}, not '{cell}'") from error
        return values


def find_damaged(tables: Iterable[TableFile], folders: Iterable[Path]) -> list[str]:
    """Return a sentence about each of some tables that is damaged in one of some folders."""
    sentences = []
    for folder in folders:
        for table in tables:
            try:
                table.read(folder)
            except UserError as error:
                sentences.append(str(error))
    return sentences


# The tables.

METRICS = TableFile("metrics.csv", {}, dict.fromkeys(INTEGER_COUNTERS, COUNT), NUMBER)
SCORES = TableFile(
    "scores.csv",
    {"set": TEXT, "model": TEXT, "client": TEXT, "n": COUNT},
    {"positive": TEXT, "events": COUNT},
    NUMBER_OR_GAP,
)
PREDICTIONS = TableFile(
    "predictions.csv",
    {"set": TEXT, "client": TEXT, "row": COUNT, "target": TEXT, "prediction": TEXT, "model": TEXT},
    {"probability": NUMBER, "table_row": COUNT},
    max_rows=2 * MAX_PREDICTED_ROWS,  # of the shared model, and of personal models
)
COEFFICIENTS = TableFile(
    "coefficients.csv",
    {"parameter": TEXT, "feature": TEXT, "class": TEXT, "value": NUMBER, "value_original": NUMBER_OR_GAP},
)
_ENDS = [f"{name}{kind}" for name in ("estimate", "low", "high") for kind in ("", "_standardized")]
INTERVALS = TableFile(
    "inference.csv",
    {"feature": TEXT, "method": TEXT} | dict.fromkeys([*_ENDS, "p_value", "p_holm"], NUMBER_OR_GAP),
    dict.fromkeys(["standard_error", "tau2", "cochran_q", "q_p_value", "i2", "level"], NUMBER_OR_GAP),
)
CLIENT_ESTIMATES = TableFile(
    "client_estimates.csv",
    {"feature": TEXT, "client": TEXT} | dict.fromkeys(["estimate", "standard_error", "deviation"], ESTIMATE),
    {"rows": NUMBER_OR_GAP},
)
BASELINE_HAZARD = TableFile("baseline_hazard.csv", {"client": TEXT, "time": NUMBER, "cumulative_hazard": NUMBER})
GAPS = TableFile(
    "missing.csv",
    {"column": TEXT, "client": TEXT, "outcome": TEXT, "rows": COUNT, "missing": COUNT},
    others=NUMBER_OR_GAP,
)
CALIBRATION = TableFile("calibration.csv", {})
COMPARISON = TableFile("comparison.csv", {}, cure=STUDY_AGAIN)
STABILITY_FEATURES = TableFile("stability.csv", {"feature": TEXT}, cure=STUDY_AGAIN)
NESTED = TableFile("nested.csv", {}, cure=STUDY_AGAIN)
SELECTION_CURVE = TableFile("curve.csv", {}, cure=STUDY_AGAIN)
FIGURE_TABLE = TableFile("table.csv", {}, cure=STUDY_AGAIN)
CLAIMS = TableFile("claims.csv", {"figure": TEXT}, cure="remove it, or give another --out")
PAGE_TABLES = (
    *(SCORES, PREDICTIONS, COEFFICIENTS, INTERVALS, GAPS, CALIBRATION),
    *(STABILITY_FEATURES, NESTED, SELECTION_CURVE, FIGURE_TABLE, CLAIMS),
)
