"""Sparse rows in a Parquet file of triples: a line for each nonzero, with its row, its column and its value."""

from pathlib import Path

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.rows.sparse_matrix import MOST_INDICES, SparseMatrix

NAMES = ("row", "column", "value")


def is_triples_file(file: Path) -> bool:
    """Return whether a Parquet file has the three columns of triples alone. Raises ValueError for a damaged file."""
    from pyarrow import parquet

    return sorted(parquet.read_schema(file).names) == sorted(NAMES)


def read_triples(file: Path, where: str, n_rows: int) -> SparseMatrix:
    """Return the ``n_rows`` rows of a Parquet file of triples, whose rows and columns count from 0, in any order.

    There are as many columns as the largest number says.

    Raises UserError, which begins with ``where``, for other columns, gaps, numbers of rows and columns out of range,
    an entry that occurs twice, and nonzeros that are not finite.
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
    for name, numbers, most in (("row", row, n_rows), ("column", column, MOST_INDICES)):
        wrong = np.flatnonzero((numbers < 0) | (numbers >= most))
        if len(wrong):
            raise UserError(f"{where}: line {wrong[0] + 1} has the {name} {numbers[wrong[0]]}: give numbers from 0 to "
                            f"{most - 1:,}")  # fmt: skip
    shape = (n_rows, int(column.max()) + 1)
    return SparseMatrix.from_scipy(coo_array((value, (row.astype(np.int32), column.astype(np.int32))), shape), where)
