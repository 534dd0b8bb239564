"""Sparse rows as JAX computes with them: all rows in CSR, and minibatches whose rows are padded to one width.

Both layouts are pytrees that multiply vectors as dense examples do, so that an objective says ``x @ w`` of either. JAX
derives the derivative of a product in w, which is the sum of the rows' parts by column.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fcorun.base.system.machine import align
from fcorun.data.rows.never_dense import NeverDense


@dataclass(frozen=True, eq=False, kw_only=True)
class SparseRows(NeverDense):
    """Sparse rows (n, d) on the device, in one of two layouts.

    Attributes:
        values, columns: the nonzeros, and the column of each, of one shape.
        n_features: the number of columns, d.
    """

    values: Float[Array, "..."]
    columns: Int[Array, "..."]
    n_features: int = field(metadata={"static": True})

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    def __matmul__(self, w: Float[Array, " d *outputs"]) -> Float[Array, " n *outputs"]:
        raise NotImplementedError

    def matmul(self, w: Float[Array, " d *outputs"]) -> Float[Array, " n *outputs"]:
        return self @ w

    def astype(self, dtype: Any) -> Self:
        return replace(self, values=self.values.astype(dtype))

    def __mul__(self, factor: Any) -> Self:
        return replace(self, values=self.values * factor)

    def __pow__(self, power: int) -> Self:
        return replace(self, values=self.values**power)

    def mean(self) -> jax.Array:
        """Return the mean of all entries, with the zeros."""
        return self.values.sum() / self.size

    def _products(self, w: Float[Array, " d *outputs"]) -> jax.Array:
        """Return each nonzero times the entry of w of its column, with the outputs of w as a last axis."""
        entries = w.at[self.columns].get(mode="promise_in_bounds")
        return self.values.reshape(*self.values.shape, *[1] * (w.ndim - 1)) * entries

    def _sum_columns(self, products: jax.Array) -> Float[Array, " d"]:
        """Return the sum by column of products, one for each nonzero."""
        sums = jnp.zeros(self.n_features, products.dtype)
        return sums.at[self.columns].add(products, mode="promise_in_bounds")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, kw_only=True)
class PaddedRows(SparseRows):
    """Rows of one width. The leading axes number them: (B,) in a minibatch, (M, L) for the rows of each client.

    Attributes:
        values, columns: (..., width). Shorter rows end with zeros in column 0.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        return *self.values.shape[:-1], self.n_features

    def __getitem__(self, rows: Any) -> "PaddedRows":
        return replace(self, values=self.values[rows], columns=self.columns[rows])

    def __matmul__(self, w: Float[Array, " d *outputs"]) -> Float[Array, " n *outputs"]:
        return self._products(w).sum(axis=1)

    def __rmatmul__(self, u: Float[Array, " n"]) -> Float[Array, " d"]:
        return self._sum_columns(u[:, None] * self.values)

    def sum_over_rows(self, part: Callable[..., Any], others: Any, weight: Float[Array, " n"], zero: Any) -> Any:
        """Compute one row after the other, since the part of each may have all d features."""

        def add_row(total: Any, row: tuple[Any, jax.Array]) -> tuple[Any, None]:
            content, of_row = row
            return jax.tree.map(lambda sums, values: sums + of_row * values, total, part(*content)), None

        single_rows = jax.tree.map(lambda values: values[:, None], (self, others))
        return jax.lax.scan(add_row, zero, (single_rows, weight))[0]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, kw_only=True)
class CompressedRows(SparseRows):
    """Rows one after the other, in CSR.

    Attributes:
        values, columns: (z,), in the order of the rows.
        row: the row of each nonzero, (z,).
        bounds: the bounds of the rows' nonzeros, (n + 1,): row i has ``values[bounds[i]:bounds[i + 1]]``.
        width: the number of nonzeros of the row that has most.
        most_joined: the largest number of nonzeros of rows that are joined, such as those of a client.
    """

    row: Int[Array, " z"]
    bounds: Int[Array, " n+1"]
    width: int = field(metadata={"static": True})
    most_joined: int = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bounds.shape[0] - 1, self.n_features

    def __getitem__(self, rows: Int[Array, "..."]) -> PaddedRows:
        """Return the rows of these numbers, padded to ``width``."""
        start = self.bounds[rows][..., None]
        position = start + jnp.arange(self.width, dtype=start.dtype).reshape(*[1] * (start.ndim - 1), -1)
        is_of_row = position < self.bounds[rows + 1][..., None]
        values = self.values.at[position].get(mode="clip")
        columns = self.columns.at[position].get(mode="clip")
        return PaddedRows(
            values=jnp.where(is_of_row, values, 0),
            columns=jnp.where(is_of_row, columns, 0),
            n_features=self.n_features,
        )

    def take_client(self, rows: Int[Array, " L"]) -> "CompressedRows":
        """Return the rows of these numbers one after the other; -1 stands for a row of zeros."""
        lengths = jnp.where(rows >= 0, self.bounds[rows + 1] - self.bounds[rows], 0)
        ends = jnp.cumsum(lengths, dtype=self.bounds.dtype)
        bounds = jnp.concatenate([jnp.zeros(1, ends.dtype), ends])
        row = jnp.repeat(jnp.arange(len(rows), dtype=ends.dtype), lengths, total_repeat_length=self.most_joined)
        position = jnp.arange(self.most_joined, dtype=ends.dtype)
        source = self.bounds[rows][row] + position - bounds[row]
        is_stored = position < bounds[-1]
        values = jnp.where(is_stored, self.values.at[source].get(mode="clip"), 0)
        columns = jnp.where(is_stored, self.columns.at[source].get(mode="clip"), 0)
        return replace(self, values=values, columns=columns, row=row, bounds=bounds)

    def reshape(self, *shape: int) -> "CompressedRows":
        """Return the rows in parts of equal numbers of rows, stacked; ``shape`` is (parts, rows, -1)."""
        return jax.vmap(self.take_client)(jnp.arange(len(self), dtype=self.bounds.dtype).reshape(shape[:-1]))

    def __matmul__(self, w: Float[Array, " d *outputs"]) -> Float[Array, " n *outputs"]:
        return jax.ops.segment_sum(self._products(w), self.row, len(self), indices_are_sorted=True)

    def __rmatmul__(self, u: Float[Array, " n"]) -> Float[Array, " d"]:
        return self._sum_columns(u.at[self.row].get(mode="promise_in_bounds") * self.values)

    def sum_over_rows(self, part: Callable[..., Any], others: Any, weight: Float[Array, " n"], zero: Any) -> Any:
        return self[jnp.arange(len(self))].sum_over_rows(part, others, weight, zero)

    def to_numpy(self) -> Any:
        from scipy.sparse import csr_array

        parts = np.asarray(self.values, np.float64), np.asarray(self.columns), np.asarray(self.bounds)
        return csr_array(parts, shape=self.shape)


def compress_rows(x: Any, dtype: Any, offsets: np.ndarray | None = None, n_stored: int = 0) -> CompressedRows:
    """Put a SparseMatrix on the device, with nonzeros of a type.

    A CPU takes the arrays of ``x`` without a copy: rows and columns, and the nonzeros if they have the type.
    ``offsets`` (M + 1,) are the bounds of the clients' rows, where the rows of a client are joined. ``n_stored`` is the
    least number of nonzeros, to which zeros pad them.
    """
    csr = x.csr
    csr.data, csr.indices = align(csr.data), align(csr.indices)
    n_stored = max(csr.nnz, n_stored, 1)  # rows of zeros alone store one, since JAX takes nothing from an empty array
    values = _lengthen(csr.data.astype(dtype, copy=False), n_stored, 0)
    columns = _lengthen(csr.indices, n_stored, 0)
    row = _lengthen(x.row_of_nonzero, n_stored, len(x) - 1)  # so that rows increase
    return CompressedRows(
        values=jax.device_put(align(values)),
        columns=jax.device_put(align(columns)),
        row=jax.device_put(align(row)),
        bounds=jax.device_put(csr.indptr),
        n_features=x.shape[1],
        width=x.width,
        most_joined=n_stored if offsets is None else max(1, int(np.diff(csr.indptr[offsets]).max())),
    )


def _lengthen(array: np.ndarray, length: int, fill: int) -> np.ndarray:
    """Return the array, with ``fill`` up to this length where it is shorter."""
    n_missing = length - len(array)
    return np.pad(array, (0, n_missing), constant_values=fill) if n_missing else array
