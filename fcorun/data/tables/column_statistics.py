"""Means, deviations, medians and counts of columns over clients, each from sums over the rows of a client.

A table in one place and sites whose rows stay apart add the same sums in the same order, so that both compute the same
means and deviations to the last bit. Medians are those of a table in one place: sites use histograms instead.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float, Int

from fcorun.data.rows.rows import ColumnSums, sum_columns_by_client

_SIGN_FLIP = np.int64(0x7FFF_FFFF_FFFF_FFFF)


def sum_in_order(sums: ColumnSums) -> Float[np.ndarray, " d"]:
    """Return the sums of the rows of ``sums``, (d,), added in a fixed order."""
    return sum_columns_by_client(sums, np.zeros(len(sums), int))[0] if len(sums) else np.zeros(sums.shape[1])


def deviation_from_sums(
    squares: Float[np.ndarray, " d"], n_rows: int, mean: Float[np.ndarray, " d"]
) -> Float[np.ndarray, " d"]:
    """Return the standard deviation of each column, 0 for a constant one, from the sum of squared deviations.

    Rounding makes the computed variance of a constant column slightly positive. A variance below scikit-learn's bound
    on this rounding, of ``_is_constant_feature`` in ``sklearn.preprocessing``, counts as 0.
    """
    variance = squares / n_rows
    epsilon = np.finfo(float).eps
    rounding = n_rows * epsilon * variance + (n_rows * epsilon * mean) ** 2
    deviation = np.sqrt(variance)
    return np.where((variance > rounding) & (deviation > np.finfo(float).tiny), deviation, 0.0)


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

    A step needs of each client only the number of its values at or below a threshold for each column. The thresholds
    bisect the integers that order float64 as numbers do, so that at most 64 steps end at a value of the data. The
    median of an even number of values is the mean of the middle two.
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
