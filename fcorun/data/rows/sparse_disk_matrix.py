"""A matrix of sparse rows that stay in a file larger than memory, and are read when a computation needs them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from fcorun.data.rows.disk_matrix import DeviceCapacity, DiskMatrix, release_pages
from fcorun.data.rows.never_dense import NeverDense
from fcorun.data.rows.sparse_matrix import NUMBERS_PER_NONZERO, SparseMatrix

NONZERO = np.dtype([("column", np.int32), ("value", np.float64)])


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SparseDiskMatrix(NeverDense, DiskMatrix):
    """A matrix (n, d) on disk in CSR: rows of a memory map of nonzeros, in any order.

    ``read`` and ``astype`` read rows into memory, as a SparseMatrix.

    Attributes:
        values: the memory map, (z,), of NONZERO; columns increase within each row, and values are finite.
        bounds: the bounds of the rows' nonzeros in the file, (N + 1,).
        n_features: the number of columns, d.
        first_column: the number that the first column has in the file, 0 or 1.
    """

    bounds: Int[np.ndarray, " N+1"]
    n_features: int
    first_column: int = 0

    @property
    def dtype(self) -> np.dtype:
        return NONZERO["value"]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.indices), self.n_features

    @property
    def nbytes(self) -> int:
        """Return the bytes of the nonzeros."""
        return int(self._lengths.sum()) * NONZERO.itemsize

    @cached_property
    def _lengths(self) -> Int[np.ndarray, " n"]:
        """The number of nonzeros of each row."""
        return self.bounds[self.indices + 1] - self.bounds[self.indices]

    def numbers_per_row(self) -> int:
        return NUMBERS_PER_NONZERO * max(1, int(self._lengths.max(initial=0)))

    def most_numbers(self, bounds: Int[np.ndarray, " k+1"]) -> int:
        n_nonzeros = np.concatenate([[0], np.cumsum(self._lengths)])[bounds]
        return NUMBERS_PER_NONZERO * max(1, int(np.diff(n_nonzeros).max(initial=0)))

    def astype(self, dtype: Any, copy: bool = True) -> SparseMatrix:  # type: ignore[override]
        """Read all rows, with values of another type."""
        return self.read().astype(dtype)

    def read(self) -> SparseMatrix:
        """Read all rows. Reads in the order of the file, which is faster than the order of the rows."""
        from scipy.sparse import csr_array

        order = self.file_order()
        lengths = self._lengths[order]
        bounds = np.concatenate([[0], np.cumsum(lengths)])
        position = np.arange(bounds[-1]) + np.repeat(self.bounds[self.indices[order]] - bounds[:-1], lengths)
        nonzeros = self.values[position]
        release_pages(self.values)
        parts = nonzeros["value"].copy(), nonzeros["column"] - self.first_column, bounds.astype(np.int32)
        rows = SparseMatrix(csr_array(parts, shape=self.shape))
        if self.factor is not None:
            rows = rows.scale_columns(self.factor)
        is_in_order = (order == np.arange(len(order))).all()
        return rows if is_in_order else rows[np.argsort(order)]

    def read_padded(
        self, is_row: np.ndarray, dtype: Any, allocate: Callable[..., np.ndarray], capacity: DeviceCapacity
    ) -> Any:
        from fcorun.data.rows.sparse_rows import compress_rows

        padded = self.read().scatter(np.flatnonzero(is_row), len(is_row))
        total, width, most_joined = (numbers // NUMBERS_PER_NONZERO for numbers in capacity)
        return replace(compress_rows(padded, dtype, n_stored=total), width=width, most_joined=most_joined)

    def find_nonfinite(self) -> None:
        """Return None: the values were checked when the file was written."""

    def moments(self, client: Any) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "1 d"]]:
        """Return the moments of all rows. Blocks are joined by the formula of Chan, Golub and LeVeque (1983)."""
        ordered = self[self.file_order()]
        mean, squares = np.zeros(self.n_features), np.zeros(self.n_features)
        for block in ordered.slices():
            block_mean, block_squares = ordered[block].read().moments(client)
            deviation = block_mean - mean
            n_rows = block.stop - block.start
            mean += deviation * n_rows / block.stop
            squares += block_squares[0] + deviation**2 * (block.start * n_rows / block.stop)
        return mean, squares[None]
