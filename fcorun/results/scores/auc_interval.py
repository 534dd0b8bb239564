"""An interval that contains the area under the ROC curve, from counts of scores in fixed bins by class.

A pair of a positive and a negative row in different bins is in a known order, a pair within a bin may be in either. The
exact area lies between the two shares of pairs that follow.
"""

import numpy as np
from jaxtyping import Float, Int

EDGES = np.linspace(-8, 8, 513)  # of the scores of rows, log odds of a logistic model; the outer bins are open
N_BINS = len(EDGES) + 1
BINS: tuple[str, str] = ("positive_bins", "negative_bins")  # the names of the counts of both classes


def count_scores(score: Float[np.ndarray, " n"]) -> Int[np.ndarray, " b"]:
    """Return the number of scores in each bin, lowest scores first."""
    return np.bincount(np.searchsorted(EDGES, score, side="right"), minlength=N_BINS)


def spread_cells(counts: Int[np.ndarray, " b"]) -> tuple[Int[np.ndarray, " b"], Int[np.ndarray, " b"]]:
    """Return counts whose small cells were added to later ones, at the lowest and at the highest bins of their rows.

    The rows of a cell may come from any bin after the last cell; those of the last cell from any later bin, too.
    """
    lowest, highest = np.zeros_like(counts), np.zeros_like(counts)
    start, ends = 0, np.flatnonzero(counts).tolist()
    for end in ends:
        lowest[start] += counts[end]
        highest[end if end != ends[-1] else len(counts) - 1] += counts[end]
        start = end + 1
    return lowest, highest


def bound_auc(
    positive: tuple[Int[np.ndarray, " b"], Int[np.ndarray, " b"]],
    negative: tuple[Int[np.ndarray, " b"], Int[np.ndarray, " b"]],
) -> tuple[float, float]:
    """Return bounds on the area under the ROC curve; nan without rows of both classes.

    Args:
        positive: the counts of the positive rows at the lowest and at the highest bins that they may come from.
        negative: the counts of the negative rows in the same way.
    """
    n_pairs = float(positive[0].sum()) * float(negative[0].sum())
    if n_pairs == 0:
        return float("nan"), float("nan")
    wins = _count_pairs(positive[0], negative[1])
    losses = _count_pairs(negative[0], positive[1])
    return wins / n_pairs, 1 - losses / n_pairs


def _count_pairs(above: np.ndarray, below: np.ndarray) -> float:
    """Return the number of pairs whose row of ``above`` is in a higher bin than its row of ``below``."""
    return float(np.asarray(above, float) @ (np.cumsum(below, dtype=float) - below))
