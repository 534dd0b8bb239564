"""The effective number of rows, by its definition."""

import numpy as np


def effective_number(sizes: np.ndarray) -> float:
    """Return the number of equal terms with the same sum and the same sum of squares as these, (N,), none below 0."""
    return float(sizes.sum() ** 2 / (sizes**2).sum())
