"""The effective number of rows in a weighted sum: a sum that one row makes up is that row alone."""

import numpy as np


def effective_number(c: np.ndarray) -> float:
    """Return (sum c)^2 / sum c^2 for the sizes ``c`` of terms, (N,), none below 0; 0 for no term, or terms of 0.

    This is the number of terms of equal size with the same sum and the same sum of squares.
    """
    largest = c.max(initial=0.0)
    if largest == 0:
        return 0.0
    shares = c / largest  # whose squares neither overflow nor vanish, and terms of equal size give their exact number
    return float(shares.sum() ** 2 / (shares**2).sum())
