"""Statistics of the rows of all clients, computed from each client's counts and sums alone."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float, Int

_SIGN_FLIP = np.int64(0x7FFF_FFFF_FFFF_FFFF)


def count_values(matrices: Sequence[Float[np.ndarray, "_ d"]]) -> Int[np.ndarray, " d"]:
    """Count the finite values of each column over the clients' matrices."""
    return np.sum([np.isfinite(x).sum(axis=0) for x in matrices], axis=0)


def column_means(matrices: Sequence[Float[np.ndarray, "_ d"]]) -> Float[np.ndarray, " d"]:
    """Compute the mean of each column over the clients' matrices, NaN left out, from sums and counts."""
    return np.sum([np.nansum(x, axis=0) for x in matrices], axis=0) / count_values(matrices)


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
