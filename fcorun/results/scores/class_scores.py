"""Scores of predicted classes: counts of right and wrong rows by class, their ratios, and errors of probabilities."""

import numpy as np

from fcorun.data.rows.row_groups import divide
from fcorun.results.scores.score import ClassScore, Places, TwoClassScore
from fcorun.results.scores.weighted_rows import ScoredRows, Sums, WeightedRows


class Prevalence(TwoClassScore):
    """The share of the positive class, which says what the other scores are about."""

    name = "prevalence"
    label = "share with the outcome"
    depends_on_model = False
    places = Places(table=1, page=1, terminal=None, verdict=None, by_client=True)

    def of_sums(self, sums: Sums) -> np.ndarray:
        return divide(sums["positive"], sums.n)


class Accuracy(ClassScore):
    name = "accuracy"
    label = "accuracy"
    metric = "val_accuracy"
    higher = True
    is_permuted = True
    needs_threshold = True
    places = Places(table=2, page=7, terminal=9, verdict=9, headline=4)

    def of_sums(self, sums: Sums) -> np.ndarray:
        return divide(sums.class_hits.sum(axis=0), sums.n)


class BalancedAccuracy(ClassScore):
    """The mean recall of the classes that the rows have, two at least."""

    name = "balanced_accuracy"
    label = "balanced accuracy"
    higher = True
    needs_threshold = True
    places = Places(table=3, terminal=None, verdict=None)

    def of_sums(self, sums: Sums) -> np.ndarray:
        recall = divide(sums.class_hits, sums.class_rows)
        n_classes = (~np.isnan(recall)).sum(axis=0)
        return divide(np.nansum(recall, axis=0), np.where(n_classes > 1, n_classes, 0))


class Sensitivity(TwoClassScore):
    """The share of the rows of the positive class that are flagged, predicted to be of this class."""

    name = "sensitivity"
    label = "sensitivity"
    higher = True
    needs_threshold = True
    places = Places(table=4, page=8, terminal=7, verdict=None, by_client=True)

    def of_sums(self, sums: Sums) -> np.ndarray:
        return divide(sums["true_positive"], sums["positive"])


class Specificity(TwoClassScore):
    """The share of the rows of the negative class that are not flagged."""

    name = "specificity"
    label = "specificity"
    higher = True
    needs_threshold = True
    places = Places(table=5, page=9, terminal=8, verdict=None, by_client=True)

    def of_sums(self, sums: Sums) -> np.ndarray:
        return divide(sums["true_negative"], sums.n - sums["positive"])


class PositivePredictiveValue(TwoClassScore):
    """The share of the positive class among the flagged rows."""

    name = "ppv"
    label = "positive predictive value"
    higher = True
    needs_threshold = True
    places = Places(table=6, page=10, terminal=None, verdict=None)

    def of_sums(self, sums: Sums) -> np.ndarray:
        return divide(sums["true_positive"], count_flagged_rows(sums))


class NegativePredictiveValue(TwoClassScore):
    """The share of the negative class among the rows that are not flagged."""

    name = "npv"
    label = "negative predictive value"
    higher = True
    needs_threshold = True
    places = Places(table=7, page=11, terminal=None, verdict=None)

    def of_sums(self, sums: Sums) -> np.ndarray:
        return divide(sums["true_negative"], sums.n - count_flagged_rows(sums))


def count_flagged_rows(sums: Sums) -> np.ndarray:
    """Return the number of rows that are predicted to be of the positive class."""
    false_positive = sums.n - sums["positive"] - sums["true_negative"]
    return sums["true_positive"] + false_positive


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
