"""Sparse rows in a Parquet file of triples: a line for each nonzero, with its row, its column and its value."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from fcorun.base.errors import UserError
from fcorun.base.system.files import file_digest
from fcorun.data.rows.disk_matrix import READ_BYTES
from fcorun.data.rows.sparse_disk_matrix import NONZERO
from fcorun.data.rows.sparse_matrix import MOST_INDICES, SparseMatrix
from fcorun.data.tables.array_files import NonzeroBlock, cache_nonzeros, stays_on_disk

NAMES = ("row", "column", "value")
_TRIPLE_BYTES = 24  # of a triple in memory
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
        numbers = np.asarray(pd.to_numeric(frame["row"], errors="coerce"), float)
        wrong = np.flatnonzero(~((np.abs(numbers) <= _MOST_EXACT) & (numbers == np.floor(numbers))))
        if len(wrong):
            raise UserError(f"{source} has {frame['row'].iloc[wrong[0]]} in row {wrong[0] + 1}: give whole numbers, or "
                            "leave the column out: then the lines are counted from 0")  # fmt: skip
        unique, count = np.unique(numbers, return_counts=True)
        if len(unique) < len(numbers):
            raise UserError(f"{source} has {unique[count.argmax()]:.0f} twice: give each row of the triples one line")
        return cls(numbers.astype(np.int64), source)

    def find_lines(self, row: Int[np.ndarray, " z"], where: str, first_line: int = 0) -> Int[np.ndarray, " z"]:
        """Return the line of the table, from 0, of each row of triples, of which the first is line ``first_line``.

        Raises UserError, which begins with ``where``, for a row without a line.
        """
        place = np.searchsorted(self.numbers, row, sorter=self.order)
        line = self.order[np.minimum(place, len(self.order) - 1)]
        wrong = np.flatnonzero(self.numbers[line] != row)
        if len(wrong):
            cure = f": give numbers from 0 to {len(self.order) - 1:,}"
            if self.source:
                cure = ", which the column 'row' of the table lacks: add its line, or leave its triples out"
            raise UserError(f"{where}: line {first_line + wrong[0] + 1} has the row {row[wrong[0]]}{cure}")
        return line

    def check_lines(self, counts: Int[np.ndarray, " n"]) -> None:
        """Raise UserError for a line without triples in ``counts``, where the table has a column "row".

        A row of another table would count as one of zeros.
        """
        missing = np.flatnonzero(counts == 0)
        if self.source and len(missing):
            raise UserError(f"{self.source} has {self.numbers[missing[0]]}, of which there are no triples: leave the "
                            "line out, or add a triple with the value 0 for a row of zeros")  # fmt: skip

    @cached_property
    def order(self) -> Int[np.ndarray, " n"]:
        """The lines in the order of their numbers, (n,)."""
        return np.argsort(self.numbers)


def is_triples_file(file: Path) -> bool:
    """Return whether a Parquet file has the three columns of triples alone. Raises ValueError for a damaged file."""
    from pyarrow import parquet

    return sorted(parquet.read_schema(file).names) == sorted(NAMES)


def read_triples(file: Path, where: str, row_numbers: RowNumbers, resident: bool | str = True) -> Any:
    """Return the rows (n, d) of a Parquet file of triples, in the order of the lines of a table.

    Columns count from 0; there are as many as the largest number says. The rows are a SparseMatrix, or, where they are
    not ``resident``, a SparseDiskMatrix; triples that stay on disk are in the order of row and column.

    Raises UserError, which begins with ``where``, for other columns, gaps, rows without a line, numbers of columns out
    of range, an entry that occurs twice, nonzeros that are not finite, and triples on disk in another order.
    """
    import pandas as pd
    from pyarrow import parquet
    from scipy.sparse import coo_array

    if not is_triples_file(file):
        raise UserError(f"{where} has other columns than row, column and value: write one line for each nonzero")
    n_triples = parquet.read_metadata(file).num_rows
    if not n_triples:
        raise UserError(f"{where} has no triples: give one with data")
    if stays_on_disk(n_triples * NONZERO.itemsize, resident):
        numbers = hashlib.sha256(row_numbers.numbers[row_numbers.order].tobytes()).hexdigest()
        key = [file_digest(file), numbers, bool(row_numbers.source)]
        blocks = _read_triple_blocks(file, where, row_numbers)
        x, _ = cache_nonzeros(key, n_triples * NONZERO.itemsize, blocks, where, from_zero=True)
        return x[np.argsort(row_numbers.order)]
    row, column, value = _check_triples(pd.read_parquet(file), where)
    line = row_numbers.find_lines(row, where)
    n_rows = len(row_numbers.numbers)
    row_numbers.check_lines(np.bincount(line, minlength=n_rows))
    shape = (n_rows, int(column.max()) + 1)
    return SparseMatrix.from_scipy(coo_array((value, (line.astype(np.int32), column.astype(np.int32))), shape), where)


def _check_triples(frame: Any, where: str, first_line: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows, columns and values of triples, of which the first is line ``first_line`` of the file.

    Raises UserError, which begins with ``where``, for gaps, other types, and numbers of columns out of range.
    """
    for name in NAMES:
        kinds = "iu" if name != "value" else "iuf"
        if frame[name].dtype.kind not in kinds or frame[name].hasnans:
            raise UserError(f"{where}: the column '{name}' has gaps, or is {frame[name].dtype}: give "
                            f"{'numbers' if name == 'value' else 'whole numbers from 0'}")  # fmt: skip
    row, column, value = (frame[name].to_numpy() for name in NAMES)
    wrong = np.flatnonzero((column < 0) | (column >= MOST_INDICES))
    if len(wrong):
        raise UserError(f"{where}: line {first_line + wrong[0] + 1} has the column {column[wrong[0]]}: give numbers "
                        f"from 0 to {MOST_INDICES - 1:,}")  # fmt: skip
    return row, column, value


def _read_triple_blocks(file: Path, where: str, row_numbers: RowNumbers) -> Iterator[NonzeroBlock]:
    """Yield triples in the order of row and column, and after them the numbers of nonzeros of all rows in that order.

    Raises UserError as ``read_triples``.
    """
    from pyarrow import parquet

    counts = np.zeros(len(row_numbers.numbers), np.int64)
    last_row, last_column = [], []
    first_line = 0
    with parquet.ParquetFile(file) as content:
        for batch in content.iter_batches(max(1, READ_BYTES // _TRIPLE_BYTES), columns=list(NAMES)):
            row, column, value = _check_triples(batch.to_pandas(), where, first_line)
            row_step = np.diff(np.concatenate([last_row, row]).astype(np.int64))
            column_step = np.diff(np.concatenate([last_column, column]).astype(np.int64))
            is_next = (row_step > 0) | ((row_step == 0) & (column_step > 0))
            wrong = np.flatnonzero(~is_next) + len(row) - len(row_step)
            if len(wrong):
                raise UserError(f"{where}: triples that stay on disk are read in order, and line "
                                f"{first_line + wrong[0] + 1} has row {row[wrong[0]]}, column {column[wrong[0]]} after "
                                "larger or equal ones: sort the file by row and column, each pair once, or give "
                                "`data.resident=true`")  # fmt: skip
            wrong = np.flatnonzero(~np.isfinite(value))
            if len(wrong):
                raise UserError(f"{where}: line {first_line + wrong[0] + 1} has a value that is infinite: mend it, or "
                                "drop the line")  # fmt: skip
            line = row_numbers.find_lines(row, where, first_line)
            counts += np.bincount(line, minlength=len(counts))
            last_row, last_column = row[-1:], column[-1:]
            first_line += len(row)
            yield NonzeroBlock(column, value, np.empty(0, np.int64))
    row_numbers.check_lines(counts)
    yield NonzeroBlock(np.empty(0, np.int32), np.empty(0), counts[row_numbers.order])
