"""Means and deviations of columns over clients, each from sums over the rows of a client.

A table in one place and sites whose rows stay apart add the same sums in the same order, so that both compute the same
means and deviations to the last bit.
"""

import numpy as np
from jaxtyping import Float

from fcorun.data.rows.rows import ColumnSums, sum_columns_by_client


def sum_in_order(sums: ColumnSums) -> Float[np.ndarray, " d"]:
    """Return the sums of the rows of ``sums``, (d,), added in a fixed order."""
    if len(sums):
        return sum_columns_by_client(sums, np.zeros(len(sums), int))[0]
    return np.zeros(sums.shape[1])


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
