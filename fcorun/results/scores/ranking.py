"""Scores of how predictions rank the rows of a class against the others: areas under curves, and their covariance."""

import numpy as np
from jaxtyping import Bool, Float, Int

from fcorun.data.rows.row_groups import Ranking, RowGroups
from fcorun.data.tasks import Task
from fcorun.results.scores.score import Places, Score, TwoClassScore
from fcorun.results.scores.weighted_rows import ScoredRows, Sums, WeightedRows


class Auc(TwoClassScore):
    """The area under the ROC curve, from the ranks of the positive rows (Mann and Whitney 1947)."""

    name = "auc"
    label = "AUC"
    metric = "val_auc"
    long_label = "AUC (0.5: chance, 1: perfect)"
    higher = True
    is_permuted = True
    ranks_rows = True
    has_delong_intervals = True
    places = Places(table=8, page=2, terminal=1, verdict=2, headline=1, by_client=True, brief=True)

    def of_rows(self, rows: WeightedRows) -> np.ndarray:
        return rows.shared(_score_positive)[0]

    def bounds_of_sums(self, sums: Sums) -> tuple[float, float] | None:
        positive, negative = (tuple(sums[name]) for name in BINS)
        return bound_auc(positive, negative)


class AveragePrecision(TwoClassScore):
    """The mean over the positive rows of the precision at their score, in which ties count together."""

    name = "average_precision"
    label = "average precision"
    metric = "val_ap"
    higher = True
    ranks_rows = True
    places = Places(table=9, terminal=None, verdict=4)

    def of_rows(self, rows: WeightedRows) -> np.ndarray:
        return rows.shared(_score_positive)[1]


class AucMacro(Score):
    """The mean over all classes of the AUC against the rest, for groups that have all classes."""

    name = "auc_macro"
    label = "macro AUC"
    higher = True
    needs_probability = True
    ranks_rows = True
    places = Places(table=10, terminal=2, verdict=3)

    def judges(self, task: Task) -> bool:
        return task.has_classes and not task.has_two_classes

    def of_rows(self, rows: WeightedRows) -> np.ndarray:
        areas = []
        for ranking in rows.rows.once(_rank_each_class):
            areas.append(ranking.score(rows.weights)[0])
        return np.mean(areas, axis=0)


def _score_positive(rows: WeightedRows) -> tuple[np.ndarray, np.ndarray]:
    return rows.rows.once(_rank_positive).score(rows.weights)


def _rank_positive(rows: ScoredRows) -> Ranking:
    return Ranking(rows.target == 1, rows.column("log_odds"), rows.groups)


def _rank_each_class(rows: ScoredRows) -> list[Ranking]:
    probability = rows.column("probability")
    rankings = []
    for k in range(rows.n_classes):
        rankings.append(Ranking(rows.target == k, probability[:, k], rows.groups))
    return rankings


# The covariance of areas under ROC curves, without resampling. For independent rows: DeLong, DeLong and Clarke-Pearson
# (1988), by the ranks of Sun and Xu (2014). For rows in clusters: Obuchowski (1997), whose formula is DeLong's if each
# cluster is one row.


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
    one_group = RowGroups(np.zeros(n, int))
    placement = np.stack([Ranking(positive, score, one_group).find_placements() for score in scores])
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


EDGES = np.linspace(-8, 8, 513)  # of the scores of rows, log odds of a logistic model; the outer bins are open
N_BINS = len(EDGES) + 1
BINS: tuple[str, str] = ("positive_bins", "negative_bins")  # the names of the counts of both classes


def count_scores(score: Float[np.ndarray, " n"]) -> Int[np.ndarray, " b"]:
    """Return the number of scores in each bin, lowest scores first."""
    return np.bincount(find_bins(score), minlength=N_BINS)


def find_bins(score: Float[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Return the bin of each score."""
    return np.searchsorted(EDGES, score, side="right")


def spread_cells(counts: Int[np.ndarray, " b"]) -> tuple[Int[np.ndarray, " b"], Int[np.ndarray, " b"]]:
    """Return counts whose small cells were added to later ones, at the lowest and at the highest bins of their rows.

    The rows of a cell may come from any bin after the last cell; those of the last cell from any later bin, too.
    """
    lowest = np.zeros_like(counts)
    highest = np.zeros_like(counts)
    start = 0
    ends = np.flatnonzero(counts).tolist()
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
