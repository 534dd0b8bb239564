"""Scores of predicted probabilities, row by row."""

import numpy as np

from fcorun.data.rows.row_groups import divide
from fcorun.results.scores.score import ClassScore, Places
from fcorun.results.scores.weighted_rows import ScoredRows, Sums, WeightedRows


class Brier(ClassScore):
    """The mean squared error of the probability of the positive class, or the sum of it over several classes (1950)."""

    name = "brier"
    label = "Brier score"
    long_label = "Brier score (0: perfect)"
    higher = False
    needs_probability = True
    places = Places(table=14, page=12, terminal=6, verdict=5)

    def of_sums(self, sums: Sums) -> np.ndarray:
        return divide(sums["brier"], sums.n)


class LogLoss(ClassScore):
    """The mean of -log of the probability of the true class."""

    name = "log_loss"
    label = "log loss"
    higher = False
    needs_probability = True
    in_scores_csv = False  # which has the loss of the objective
    places = Places(table=15, terminal=None, verdict=1)

    def of_rows(self, rows: WeightedRows) -> np.ndarray:
        return divide(rows.total(rows.rows.once(_compute_log_losses)), rows.n)


def _compute_log_losses(rows: ScoredRows) -> np.ndarray:
    if rows.log_odds is not None:
        return np.logaddexp(0, np.where(rows.target == 1, -rows.log_odds, rows.log_odds))
    of_true_class = rows.column("probability")[np.arange(len(rows)), rows.target]
    return -np.log(np.maximum(of_true_class, np.finfo(float).smallest_subnormal))


class ScaledBrier(ClassScore):
    """One minus the Brier score over that of predictions that are each class's share of the rows.

    1 is perfect, and 0 is no better than the shares (Steyerberg et al., Epidemiology 2010).
    """

    name = "scaled_brier"
    label = "scaled Brier score"
    long_label = "scaled Brier score (1: perfect, 0: as the prevalence)"
    higher = True
    needs_probability = True
    places = Places(table=14, page=12, terminal=None, verdict=None)

    def of_sums(self, sums: Sums) -> np.ndarray:
        share = divide(sums.class_rows, sums.n)
        of_shares = (share * (1 - share)).sum(axis=0)
        if "positive" in sums:  # of two classes, the Brier score has the error of one
            of_shares = of_shares / 2
        return 1 - divide(divide(sums["brier"], sums.n), of_shares)
