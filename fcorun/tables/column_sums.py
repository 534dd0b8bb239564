"""Sums of the columns of each client's rows, and the means, deviations, medians and counts that follow from sums.

A pooled table and sites whose rows stay apart call the same functions, with the clients in the same order, so that
both compute the same numbers to the last bit.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from fcorun.rows.disk_matrix import DiskMatrix

_CACHE_BYTES = 2**20
ColumnSums = Float[np.ndarray, "M d"]
_SIGN_FLIP = np.int64(0x7FFF_FFFF_FFFF_FFFF)


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


def sum_in_order(sums: ColumnSums) -> Float[np.ndarray, " d"]:
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


def count_values(matrices: Sequence[Float[np.ndarray, "_ d"]]) -> Int[np.ndarray, " d"]:
    """Count the finite values of each column over the clients' matrices."""
    return np.sum([np.isfinite(x).sum(axis=0) for x in matrices], axis=0)


def column_means(matrices: Sequence[Float[np.ndarray, "_ d"]]) -> Float[np.ndarray, " d"]:
    """Compute the mean of each column over the clients' matrices, NaN left out, from sums and counts."""
    return sum_in_order(np.stack([sum_values(x) for x in matrices])) / count_values(matrices)


def sum_values(x: Float[np.ndarray, "_ d"]) -> Float[np.ndarray, " d"]:
    """Return the sum of each column over the rows of one client, NaN left out."""
    return sum_in_order(np.where(np.isnan(x), 0.0, x))


def column_medians(matrices: Sequence[Float[np.ndarray, "_ d"]]) -> Float[np.ndarray, " d"]:
    """Compute the exact median of each column over the clients' matrices by bisection of counts.

    In each of 64 rounds the server sends a threshold for each column, and clients return the number of their values at
    or below the threshold. The thresholds bisect the integers that order float64 as numbers do, so the bisection ends
    at a value of the data. The median of an even number of values is the mean of the middle two.
    """
    n_values = count_values(matrices)
    keys = [_order_keys(x) for x in matrices]
    ranks = np.stack([(n_values - 1) // 2, n_values // 2])
    low, high = (np.broadcast_to(_order_keys(np.array(end)), ranks.shape) for end in (-np.inf, np.inf))
    while (low < high).any():
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        below = np.zeros(ranks.shape, np.int64)
        for x in keys:
            below = below + np.stack([(x <= threshold).sum(axis=0) for threshold in middle])
        enough = below > ranks
        low = np.where(enough, low, np.minimum(middle + 1, high))
        high = np.where(enough, middle, high)
    return (low ^ np.where(low < 0, _SIGN_FLIP, 0)).view(np.float64).mean(axis=0)


def count_levels(values_by_client: Iterable[Sequence[str]]) -> Counter[str]:
    """Count the rows of each level over all clients, from each client's counts."""
    totals: Counter[str] = Counter()
    for values in values_by_client:
        totals.update(Counter(values))
    return totals


def _order_keys(x: np.ndarray) -> Int[np.ndarray, "..."]:
    """Return integers in the order of the numbers x as float64; NaN come last."""
    bits = (x.astype(np.float64) + 0.0).view(np.int64)  # -0.0 becomes 0.0
    return np.where(np.isnan(x), _SIGN_FLIP, bits ^ np.where(bits < 0, _SIGN_FLIP, 0))
