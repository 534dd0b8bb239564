"""Sparse rows in a Parquet file of triples: a line for each nonzero, with its row, its column and its value."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from fcorun.base.errors import UserError
from fcorun.data.rows.sparse_matrix import MOST_INDICES, SparseMatrix

NAMES = ("row", "column", "value")
_MOST_EXACT = 2**53  # whole numbers up to which float64 has each


@dataclass(frozen=True)
class RowNumbers:
    """The numbers by which triples name the lines of a table.

    Attributes:
        numbers: those of the lines, (n,), each once: the column "row" of the table, or 0 to n - 1 without such a
            column.
        source: the beginning of an error about the column; "" without such a column.
    """

    numbers: Int[np.ndarray, " n"]
    source: str = ""

    @classmethod
    def from_table(cls, frame: Any, source: str) -> "RowNumbers":
        """Return the numbers of the lines of a table (n, k), a DataFrame.

        Raises UserError for a column "row" with gaps, with other values than whole numbers, or with a number twice.
        """
        import pandas as pd

        if "row" not in frame:
            return cls(np.arange(len(frame)))
        source = f"{source}: the column 'row', by which triples name the lines,"
        numbers = pd.to_numeric(frame["row"], errors="coerce").to_numpy(float, na_value=np.nan)
        wrong = np.flatnonzero(~((np.abs(numbers) <= _MOST_EXACT) & (numbers == np.floor(numbers))))
        if len(wrong):
            raise UserError(f"{source} has {frame['row'].iloc[wrong[0]]} in row {wrong[0] + 1}: give whole numbers, or "
                            "leave the column out: then the lines are counted from 0")  # fmt: skip
        unique, count = np.unique(numbers, return_counts=True)
        if len(unique) < len(numbers):
            raise UserError(f"{source} has {unique[count.argmax()]:.0f} twice: give each row of the triples one line")
        return cls(numbers.astype(np.int64), source)

    def find_lines(self, row: Int[np.ndarray, " z"], where: str) -> Int[np.ndarray, " z"]:
        """Return the line of the table, from 0, of each row of triples.

        Raises UserError, which begins with ``where``, for a row without a line. Where the table has a column "row",
        each line needs a triple, so that no row of another table counts as one of zeros.
        """
        order = np.argsort(self.numbers)
        place = np.searchsorted(self.numbers, row, sorter=order)
        line = order[np.minimum(place, len(order) - 1)]
        wrong = np.flatnonzero(self.numbers[line] != row)
        if len(wrong):
            cure = f"give numbers from 0 to {len(order) - 1:,}"
            if self.source:
                cure = "which the column 'row' of the table lacks: add its line to the table, or leave its triples out"
            raise UserError(f"{where}: line {wrong[0] + 1} has the row {row[wrong[0]]}: {cure}")
        missing = np.setdiff1d(np.arange(len(order)), line)
        if self.source and len(missing):
            raise UserError(f"{self.source} has {self.numbers[missing[0]]}, of which there are no triples: leave the "
                            "line out, or add a triple with the value 0 for a row of zeros")  # fmt: skip
        return line


def is_triples_file(file: Path) -> bool:
    """Return whether a Parquet file has the three columns of triples alone. Raises ValueError for a damaged file."""
    from pyarrow import parquet

    return sorted(parquet.read_schema(file).names) == sorted(NAMES)


def read_triples(file: Path, where: str, row_numbers: RowNumbers) -> SparseMatrix:
    """Return the rows (n, d) of a Parquet file of triples in any order, in the order of the lines of a table.

    Columns count from 0; there are as many as the largest number says.

    Raises UserError, which begins with ``where``, for other columns, gaps, rows without a line, numbers of columns out
    of range, an entry that occurs twice, and nonzeros that are not finite.
    """
    import pandas as pd
    from scipy.sparse import coo_array

    if not is_triples_file(file):
        raise UserError(f"{where} has other columns than row, column and value: write one line for each nonzero")
    frame = pd.read_parquet(file)
    if not len(frame):
        raise UserError(f"{where} has no triples: give one with data")
    for name in NAMES:
        kinds = "iu" if name != "value" else "iuf"
        if frame[name].dtype.kind not in kinds or frame[name].hasnans:
            raise UserError(f"{where}: the column '{name}' has gaps, or is {frame[name].dtype}: give "
                            f"{'numbers' if name == 'value' else 'whole numbers from 0'}")  # fmt: skip
    row, column, value = (frame[name].to_numpy() for name in NAMES)
    wrong = np.flatnonzero((column < 0) | (column >= MOST_INDICES))
    if len(wrong):
        raise UserError(f"{where}: line {wrong[0] + 1} has the column {column[wrong[0]]}: give numbers from 0 to "
                        f"{MOST_INDICES - 1:,}")  # fmt: skip
    line = row_numbers.find_lines(row, where)
    shape = (len(row_numbers.numbers), int(column.max()) + 1)
    return SparseMatrix.from_scipy(coo_array((value, (line.astype(np.int32), column.astype(np.int32))), shape), where)
