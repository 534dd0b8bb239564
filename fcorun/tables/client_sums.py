"""Sums of the columns of each client's rows, and the means and deviations that follow from these sums alone.

A pooled table and sites whose rows stay apart call the same functions, with the clients in the same order, so that both
compute the same numbers to the last bit.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from fcorun.rows.disk_matrix import DiskMatrix

_CACHE_BYTES = 2**20
ColumnSums = Float[np.ndarray, "M d"]


def sum_by_client(x: Any, client: Int[np.ndarray, " N"]) -> ColumnSums:
    """Return the sum of each column over the rows of each client, (M, d), in float64.

    A sum depends on the column's values at the client alone, and neither on other columns nor on other clients.

    Args:
        x: rows sorted by client, (N, d), which may stay on disk.
        client: the number of each row's client, from 0 to M - 1; each client has a row.
    """
    return _sum_by_client(x, client, lambda values, columns: values)


def sum_squares_by_client(x: Any, client: Int[np.ndarray, " N"], mean: Float[np.ndarray, " d"]) -> ColumnSums:
    """Return the sums of squared deviations from ``mean``, (M, d), as ``sum_by_client`` returns sums."""
    return _sum_by_client(x, client, lambda values, columns: (values - mean[columns, None]) ** 2)


def add_clients(sums: ColumnSums) -> Float[np.ndarray, " d"]:
    """Return the sums over all clients, (d,), added in the order of the clients."""
    return sum_by_client(sums, np.zeros(len(sums), int))[0] if len(sums) else np.zeros(sums.shape[1])


def deviation_from_sums(
    squares: Float[np.ndarray, " d"], n_rows: int, mean: Float[np.ndarray, " d"]
) -> Float[np.ndarray, " d"]:
    """Return the standard deviation of each column, 0 for a constant one, from the sum of squared deviations.

    Equal numbers have a computed deviation that rounding explains. The bound on it is scikit-learn's, of
    ``_is_constant_feature`` in ``sklearn.preprocessing``: least and largest values are not needed.
    """
    variance = squares / n_rows
    epsilon = np.finfo(float).eps
    rounding = n_rows * epsilon * variance + (n_rows * epsilon * mean) ** 2
    deviation = np.sqrt(variance)
    return np.where((variance > rounding) & (deviation > np.finfo(float).tiny), deviation, 0.0)


def _sum_by_client(
    x: Any, client: Int[np.ndarray, " N"], transform: Callable[[np.ndarray, slice], np.ndarray]
) -> ColumnSums:
    """Return the sums of the transformed columns over the rows of each client, (M, d)."""
    n_clients = int(client[-1]) + 1 if len(client) else 0
    sums = np.zeros((n_clients, x.shape[1]))
    with np.errstate(invalid="ignore", over="ignore"):  # callers report values that are not finite
        for rows, owners in _blocks(x, client):
            first = np.flatnonzero(np.diff(owners, prepend=-1))
            for columns in _column_slices(rows.shape):
                # contiguous columns are added pairwise, whatever their number
                values = np.ascontiguousarray(rows[:, columns].T, np.float64)
                sums[owners[first], columns] += np.add.reduceat(transform(values, columns), first, axis=1).T
    return sums


def _blocks(x: Any, client: Int[np.ndarray, " N"]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield blocks of rows sorted by client, and the clients of these rows; rows on disk in the order of the file."""
    if not isinstance(x, DiskMatrix):
        if len(x):
            yield x, client
        return
    order = x.file_order()
    for block in x.slices():
        rows = np.sort(order[block])
        yield x[rows].read(), client[rows]


def _column_slices(shape: tuple[int, ...]) -> Iterator[slice]:
    """Yield slices of columns whose values in float64 fit into the cache of a core."""
    n_rows, n_columns = shape
    step = max(1, _CACHE_BYTES // (8 * n_rows))
    yield from (slice(start, start + step) for start in range(0, n_columns, step))
