"""Statistics of all rows that are worked out from counts and sums over clients."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float, Int

_FLIP = np.int64(0x7FFF_FFFF_FFFF_FFFF)


def count_values(sites: Sequence[Float[np.ndarray, "_ d"]]) -> Int[np.ndarray, " d"]:
    """How many values each column has over the rows of all clients, of one matrix each; NaN is none."""
    return np.sum([np.isfinite(x).sum(axis=0) for x in sites], axis=0)


def column_means(sites: Sequence[Float[np.ndarray, "_ d"]]) -> Float[np.ndarray, " d"]:
    """The mean of the values of each column, from each client's sum and count."""
    return np.sum([np.nansum(x, axis=0) for x in sites], axis=0) / count_values(sites)


def column_medians(sites: Sequence[Float[np.ndarray, "_ d"]]) -> Float[np.ndarray, " d"]:
    """The median of the values of each column, exactly, by bisection of counts.

    In each of 64 rounds the server sends a threshold for each column and clients say how many of their values lie at
    or below it. Thresholds halve the whole numbers that order float64 as numbers do, so they end at the very value; the
    mean of the middle two where their number is even.
    """
    there = count_values(sites)
    keys = [_keys(x) for x in sites]
    ranks = np.stack([(there - 1) // 2, there // 2])
    low, high = (np.broadcast_to(_keys(np.array(end)), ranks.shape) for end in (-np.inf, np.inf))
    while (low < high).any():
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        below = sum((np.stack([(x <= t).sum(axis=0) for t in middle]) for x in keys), np.int64(0))
        enough = below > ranks
        low, high = np.where(enough, low, np.minimum(middle + 1, high)), np.where(enough, middle, high)
    return (low ^ np.where(low < 0, _FLIP, 0)).view(np.float64).mean(axis=0)


def count_levels(sites: Iterable[Sequence[str]]) -> Counter[str]:
    """How often each level stands in the rows of all clients, from each client's counts."""
    found: Counter[str] = Counter()
    for values in sites:
        found.update(Counter(values))
    return found


def _keys(x: np.ndarray) -> Int[np.ndarray, "..."]:
    """Whole numbers in the order of these float64; those that are NaN come last."""
    bits = (x.astype(np.float64) + 0.0).view(np.int64)  # -0.0 is 0.0
    return np.where(np.isnan(x), _FLIP, bits ^ np.where(bits < 0, _FLIP, 0))
