"""The covariance of areas under ROC curves, without resampling.

For independent rows: DeLong, DeLong and Clarke-Pearson (1988), by the ranks of Sun and Xu (2014). For rows in clusters:
Obuchowski (1997), whose formula is DeLong's if each cluster is one row.
"""

import numpy as np
from jaxtyping import Bool, Float, Int


def auc_covariance(
    positive: Bool[np.ndarray, " n"], scores: Float[np.ndarray, "k n"], cluster: Int[np.ndarray, " n"] | None = None
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, "k k"]]:
    """Return the areas under the curves of k scores of the same rows, and their covariance.

    The covariance is nan unless both classes have rows of two clusters (without ``cluster``, two rows).
    """
    k, n = scores.shape
    covariance = np.full((k, k), np.nan)
    if positive.all() or not positive.any():
        return np.full(k, np.nan), covariance
    cluster = np.arange(n) if cluster is None else np.unique(cluster, return_inverse=True)[1]
    placement = np.stack([_placements(positive, score) for score in scores])
    auc = placement[:, positive].mean(axis=1)
    deviation = placement - auc[:, None]
    sums = []
    for of_class in (positive, ~positive):
        n_clusters = len(np.unique(cluster[of_class]))
        if n_clusters < 2:
            return auc, covariance
        by_cluster = np.stack([np.bincount(cluster, row * of_class) for row in deviation]) / of_class.sum()
        sums.append((by_cluster, n_clusters / (n_clusters - 1)))
    (of_positive, correction_positive), (of_negative, correction_negative) = sums
    n_clusters = len(np.unique(cluster))
    cross = of_positive @ of_negative.T
    covariance = (
        correction_positive * of_positive @ of_positive.T
        + correction_negative * of_negative @ of_negative.T
        + n_clusters / (n_clusters - 1) * (cross + cross.T)
    )
    return auc, covariance


def _placements(positive: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return the share of the other class that each row is on the right side of; equal scores count one half."""
    rank = _average_ranks(score)
    n_positive = int(positive.sum())
    placement = np.empty(len(score))
    placement[positive] = (rank[positive] - _average_ranks(score[positive])) / (len(score) - n_positive)
    placement[~positive] = 1 - (rank[~positive] - _average_ranks(score[~positive])) / n_positive
    return placement


def _average_ranks(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return the rank of each value, from 1; equal values have the average of their ranks."""
    ordered = np.sort(values)
    return (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") + 1) / 2
