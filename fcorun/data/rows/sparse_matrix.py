"""A matrix of rows of which few numbers are not 0, in the format CSR (compressed sparse rows)."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from fcorun.base.errors import UserError
from fcorun.base.system.machine import align
from fcorun.data.rows.features import refuse_overflow
from fcorun.data.rows.never_dense import NeverDense, explain_dense_rows

MOST_INDICES = 2**31 - 1  # indices of rows and columns, and numbers of nonzeros, have 32 bits
NUMBERS_PER_NONZERO = 2  # itself and its column
_FEW_NUMBERS = 2**18  # of columns that are read at once; beyond them, at most half as many as there are nonzeros
_MOST_EIGENVALUES = 3000  # of a Gram matrix, beyond which the largest alone is computed


@dataclass(frozen=True, eq=False, repr=False)
class SparseMatrix(NeverDense):
    """A matrix (n, d) in memory, whose zeros are not stored.

    Indexing by rows returns other SparseMatrix.

    Attributes:
        csr: a scipy.sparse.csr_array of float32 or float64, whose columns increase within each row.
    """

    csr: Any

    @classmethod
    def from_scipy(cls, matrix: Any, where: str, first_row: int = 0) -> "SparseMatrix":
        """Return the rows of a matrix of scipy.sparse; integers become float64. Errors count rows from ``first_row``.

        Raises UserError, which begins with ``where``, for an entry that occurs twice, for rows whose columns do not
        increase, for NaN and infinite numbers, and for more than 2^31 - 1 of anything.
        """
        from scipy.sparse import csr_array

        if max(*matrix.shape, matrix.nnz) > MOST_INDICES:
            raise UserError(f"{where} has {matrix.shape[0]:,} rows, {matrix.shape[1]:,} columns and {matrix.nnz:,} "
                            f"nonzeros: give at most {MOST_INDICES:,} of each")  # fmt: skip
        if matrix.dtype.kind not in "fiub":
            raise UserError(f"{where} has numbers of the type {matrix.dtype}: give real numbers")
        csr: Any = csr_array(matrix.tocsr())
        if matrix.format == "coo" and csr.nnz < matrix.nnz:  # the conversion adds up entries that occur twice
            raise UserError(f"{where} has the same row and column twice: call sum_duplicates(), or drop one of them")
        if csr.dtype not in (np.float32, np.float64):
            csr = csr.astype(np.float64)
        if csr.indices.dtype != np.int32 or csr.indptr.dtype != np.int32:
            parts = csr.data, csr.indices.astype(np.int32), csr.indptr.astype(np.int32)
            csr = csr_array(parts, shape=csr.shape)
        checked = cls(csr)
        checked._check_order(where)
        nonfinite = checked.find_nonfinite()
        if nonfinite is not None:
            row, column = nonfinite
            raise UserError(f"{where} has a nonzero that is NaN or infinite, in row {first_row + row + 1}, column "
                            f"{column} (from 0): mend it, or drop the row")  # fmt: skip
        return checked

    def _check_order(self, where: str) -> None:
        """Raise UserError for a row whose columns do not increase."""
        step = np.diff(self.csr.indices)
        row_ends = self.csr.indptr[1:-1] - 1
        within_row = np.ones(len(step), bool)
        within_row[row_ends[(row_ends >= 0) & (row_ends < len(step))]] = False
        wrong = np.flatnonzero((step <= 0) & within_row)
        if not len(wrong):
            return
        row = int(np.searchsorted(self.csr.indptr, wrong[0], side="right"))
        if step[wrong[0]] == 0:
            raise UserError(f"{where} has column {self.csr.indices[wrong[0]]} (from 0) twice in row {row}: call "
                            "sum_duplicates(), or drop one of them")  # fmt: skip
        raise UserError(f"{where} has columns out of order in row {row}: call sort_indices()")

    def __repr__(self) -> str:
        return f"SparseMatrix({len(self)} rows, {self.shape[1]} columns, {self.csr.nnz} nonzeros)"

    @property
    def dtype(self) -> np.dtype:
        return self.csr.dtype

    @property
    def shape(self) -> tuple[int, int]:
        return self.csr.shape

    @property
    def nbytes(self) -> int:
        """Return the bytes in memory."""
        return self.csr.data.nbytes + self.csr.indices.nbytes + self.csr.indptr.nbytes

    @cached_property
    def width(self) -> int:
        """Return the number of nonzeros of the row that has most, at least 1."""
        return max(1, int(np.diff(self.csr.indptr).max(initial=0)))

    @cached_property
    def row_of_nonzero(self) -> Int[np.ndarray, " z"]:
        """Return the row of each nonzero. It is kept, so that all copies on a CPU share it."""
        return align(np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.csr.indptr)))

    def numbers_per_row(self) -> int:
        return NUMBERS_PER_NONZERO * self.width

    def __getitem__(self, rows: Any) -> Any:
        """Return a row as an array (d,); SparseMatrix for a slice, a mask or indices; or dense columns of rows."""
        if isinstance(rows, tuple):
            index, columns = rows
            return self._read_columns(self.csr if index == slice(None) else self.csr[index], columns)
        if isinstance(rows, (int, np.integer)):
            return self.csr[[rows]].toarray()[0]
        if isinstance(rows, slice) and rows == slice(None):
            return self
        return SparseMatrix(self.csr[rows])

    def _read_columns(self, csr: Any, columns: Any) -> np.ndarray:
        if isinstance(columns, (int, np.integer)):
            return csr[:, [columns]].toarray()[:, 0]
        selected = csr[:, columns]
        if selected.shape[0] * selected.shape[1] > max(_FEW_NUMBERS, self.csr.nnz // 2):
            raise UserError(explain_dense_rows(selected.shape))
        return selected.toarray()

    def __matmul__(self, w: np.ndarray) -> np.ndarray:
        """Return the product with w, (d,) or (d, k)."""
        return self.csr @ w

    def __mul__(self, factor: Any) -> "SparseMatrix":
        """Return the product with a number, or of each row with its number in an array (n, 1)."""
        if np.ndim(factor):
            factor = np.repeat(factor[:, 0], np.diff(self.csr.indptr))
        return self._with_values(self.csr.data * factor)

    def astype(self, dtype: Any, copy: bool = True) -> "SparseMatrix":
        """Return the rows with nonzeros of another type."""
        return self._with_values(self.csr.data.astype(dtype, copy=copy))

    def scale_columns(self, factors: Float[np.ndarray, " d"]) -> "SparseMatrix":
        """Return the rows with each column times its factor."""
        return self._with_values((self.csr.data * factors[self.csr.indices]).astype(self.dtype))

    def _with_values(self, values: np.ndarray) -> "SparseMatrix":
        from scipy.sparse import csr_array

        return SparseMatrix(csr_array((values, self.csr.indices, self.csr.indptr), shape=self.shape))

    def widen(self, n_columns: int) -> "SparseMatrix":
        """Return the rows with columns of zeros at the end, so that there are at least ``n_columns``."""
        from scipy.sparse import csr_array

        shape = len(self), max(n_columns, self.shape[1])
        return SparseMatrix(csr_array((self.csr.data, self.csr.indices, self.csr.indptr), shape=shape))

    def to_table(self) -> Any:
        return self.csr

    def tobytes(self) -> bytes:
        """Return all bytes that the rows are, for a digest."""
        return self.csr.data.tobytes() + self.csr.indices.tobytes() + self.csr.indptr.tobytes()

    def min(self, axis: int = 0) -> np.ndarray:
        """Return the least value of each column, (d,)."""
        return self.csr.min(axis=0).toarray()

    def max(self, axis: int = 0) -> np.ndarray:
        """Return the largest value of each column, (d,)."""
        return self.csr.max(axis=0).toarray()

    def scatter(self, at: np.ndarray, n_rows: int) -> "SparseMatrix":
        """Return ``n_rows`` rows: these at the places ``at`` (n,), which increase, and zeros at all others."""
        from scipy.sparse import csr_array

        bounds = np.zeros(n_rows + 1, np.int32)
        bounds[at + 1] = np.diff(self.csr.indptr)
        parts = self.csr.data, self.csr.indices, np.cumsum(bounds, dtype=np.int32)
        return SparseMatrix(csr_array(parts, shape=(n_rows, self.shape[1])))

    def varies_within_clients(self, client: np.ndarray) -> np.ndarray:
        of_clients = [self[client == number] for number in np.unique(client)]
        return np.any([rows.max() != rows.min() for rows in of_clients], axis=0)

    def standardize(self, mean: np.ndarray, factor: np.ndarray) -> "SparseMatrix":
        return self.scale_columns(factor)

    def keep_columns(self, mask: np.ndarray) -> "SparseMatrix":
        return self.scale_columns(mask)

    def to_device(self, dtype: Any, offsets: np.ndarray | None = None) -> Any:
        from fcorun.data.rows.sparse_rows import compress_rows

        with refuse_overflow("features"):
            return compress_rows(self, dtype, offsets)

    def to_solver(self) -> Any:
        """Keep the type, so that a CPU shares the nonzeros with the host: programs compute in float64."""
        return self.to_device(self.dtype)

    def find_nonfinite(self) -> np.ndarray | None:
        """Return the row and the column of the first nonzero that is NaN or infinite, or None."""
        nonfinite = np.flatnonzero(~np.isfinite(self.csr.data))
        if not len(nonfinite):
            return None
        row = np.searchsorted(self.csr.indptr, nonfinite[0], side="right") - 1
        return np.array([row, self.csr.indices[nonfinite[0]]])

    def moments(self, client: Any) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "1 d"]]:
        """Return the moments of all rows."""
        values = self.csr.data.astype(np.float64, copy=False)
        columns = self.csr.indices
        mean = np.bincount(columns, values, self.shape[1]) / len(self)
        n_zeros = len(self) - np.bincount(columns, minlength=self.shape[1])
        squares = np.bincount(columns, (values - mean[columns]) ** 2, self.shape[1])
        return mean, (squares + n_zeros * mean**2)[None]

    def append_ones(self) -> "SparseMatrix":
        from scipy.sparse import csr_array, hstack

        return SparseMatrix(hstack([self.csr, csr_array(np.ones((len(self), 1), self.dtype))], format="csr"))

    def mean_gram_range(self) -> tuple[float, float]:
        from scipy.sparse.linalg import svds

        csr = self.csr.astype(np.float64)
        if min(self.shape) > _MOST_EIGENVALUES:
            largest: Any = svds(csr, k=1, return_singular_vectors=False, rng=0)
            return 0.0, float(largest[0] ** 2) / len(self)
        gram = csr.T @ csr if self.shape[1] < self.shape[0] else csr @ csr.T
        eigenvalues = np.linalg.eigvalsh(gram.toarray())
        return float(eigenvalues[0]) / len(self), float(eigenvalues[-1]) / len(self)

    def row_norms(self) -> Float[np.ndarray, " n"]:
        return np.sqrt((self.csr.astype(np.float64) ** 2).sum(axis=1))
