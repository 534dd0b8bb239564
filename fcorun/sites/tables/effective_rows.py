"""The effective number of rows in a weighted sum: a sum that one row makes up is that row alone."""

import numpy as np

_ROUNDING = 1e-9


def effective_number(c: np.ndarray) -> float:
    """Return (sum c)^2 / sum c^2 for the sizes ``c`` of terms, (N,), none below 0; 0 for no term, or terms of 0.

    This is the number of terms of equal size with the same sum and the same sum of squares.
    """
    largest = c.max(initial=0.0)
    if largest == 0:
        return 0.0
    shares = c / largest  # whose squares neither overflow nor vanish, and terms of equal size give their exact number
    return float(shares.sum() ** 2 / (shares**2).sum())


def least_effective_number(values: np.ndarray) -> float:
    """Return the least effective number of |values - c| over all numbers c; infinity for equal values, (N,).

    Between two neighbouring values the sum is linear in c, and the root of the sum of squares is convex, so that the
    least number is at one of the values.
    """
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) < 2:
        return np.inf
    least = distinct[0]
    c = (distinct / 2 - least / 2) / (distinct[-1] / 2 - least / 2)  # from 0 to 1; halves do not overflow
    below = np.cumsum(counts)
    total = len(values)
    sum_below = np.cumsum(counts * c)
    sum_of_all = (counts * c).sum()
    sums = c * (2 * below - total) + sum_of_all - 2 * sum_below
    squares = (counts * c**2).sum() - 2 * c * sum_of_all + total * c**2
    return float((sums**2 / squares).min()) * (1 + _ROUNDING)
