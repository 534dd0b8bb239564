"""The scores of weighted rows, for many weightings at once.

The scores are those of ``fcorun.results.models.score_functions`` and ``score_survival`` on rows that are repeated as
often as their weight says, except for ``c_index`` of whole clients, see ``prepare_scorer``. ``log_loss``, which these
functions do not have, is the mean of -log of the probability of the true class.
"""

from collections.abc import Callable

import numpy as np

from fcorun.results.models.score_intervals.calibration_replicates import Calibration
from fcorun.results.models.score_intervals.concordance import Concordance
from fcorun.results.models.score_intervals.ranking_replicates import Ranking
from fcorun.results.models.score_intervals.scored_rows import HeldOutRows
from fcorun.results.models.score_intervals.segments import RowSegments, divide

_ROUNDING = 1e-12  # a sum of squares about the mean below this share of that about the median is rounding error

Scorer = Callable[[np.ndarray], dict[str, np.ndarray]]


def prepare_scorer(rows: HeldOutRows, segments: RowSegments, whole_clients: bool = False) -> Scorer:
    """Sort the rows once, and return the function that maps the weights of B samples to their scores.

    The weights are (B, n), and the scores are by name, each (B, C) for C segments. With ``whole_clients`` all rows of a
    client have one weight, and a weight of 2 means two clients with these rows. The C index then counts a client's own
    pairs as often as the client is drawn.
    """
    if rows.task == "regression":
        return _prepare_regression(rows, segments)
    if rows.task == "survival":
        return _prepare_survival(rows, segments, whole_clients)
    if rows.task == "binary":
        return _prepare_binary(rows, segments)
    return _prepare_multiclass(rows, segments)


def _prepare_regression(rows: HeldOutRows, segments: RowSegments) -> Scorer:
    y, prediction = rows.target, rows.prediction
    total = segments.total
    centered_y, centered_prediction = _center(y, segments), _center(prediction, segments)
    error, squares_of_y, squares_of_prediction = y - prediction, centered_y**2, centered_prediction**2
    squared_error, absolute_error, products = error**2, np.abs(error), centered_y * centered_prediction

    def score(weights: np.ndarray) -> dict[str, np.ndarray]:
        n = total(weights)
        sum_y, sum_prediction = total(weights, centered_y), total(weights, centered_prediction)
        sum_error = total(weights, error)
        sum_squared_error = total(weights, squared_error)
        variation = _squares_about_mean(total(weights, squares_of_prediction), sum_prediction, n)
        covariation = total(weights, products) - divide(sum_y * sum_prediction, n)
        return {
            "r2": 1 - divide(sum_squared_error, _squares_about_mean(total(weights, squares_of_y), sum_y, n)),
            "rmse": np.sqrt(divide(sum_squared_error, n)),
            "mae": divide(total(weights, absolute_error), n),
            "calibration_slope": divide(covariation, variation),
            "calibration_intercept": divide(sum_error, n),
        }

    return score


def _center(values: np.ndarray, segments: RowSegments) -> np.ndarray:
    """Return values minus the median of their segment, exactly 0 for constant values."""
    medians = [np.median(part) for part in np.split(values, segments.starts[1:])]
    return values - np.repeat(medians, segments.sizes)


def _squares_about_mean(squares: np.ndarray, sums: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Return the sum of squares about the mean, 0 where it is rounding error."""
    about_mean = squares - divide(sums**2, n)
    return np.where(about_mean > _ROUNDING * squares, about_mean, 0.0)


def _prepare_binary(rows: HeldOutRows, segments: RowSegments) -> Scorer:
    y, label, probability, log_odds = rows.target, rows.prediction, rows.probability, rows.log_odds
    assert probability is not None
    total = segments.total
    ranking = Ranking(y == 1, log_odds, segments)
    calibration = Calibration(y, log_odds, segments)
    positives, flags = y.astype(float), label.astype(float)
    true_positives, true_negatives = positives * flags, (1 - positives) * (1 - flags)
    squared_error = (probability - y) ** 2
    loss = np.logaddexp(0, np.where(y == 1, -log_odds, log_odds))

    def score(weights: np.ndarray) -> dict[str, np.ndarray]:
        n, positive, flagged = total(weights), total(weights, positives), total(weights, flags)
        hits, rejections = total(weights, true_positives), total(weights, true_negatives)
        sensitivity, specificity = divide(hits, positive), divide(rejections, n - positive)
        auc, average_precision = ranking.score(weights)
        slope, intercept = calibration.fit(weights)
        return {
            "prevalence": divide(positive, n),
            "accuracy": divide(hits + rejections, n),
            "balanced_accuracy": (sensitivity + specificity) / 2,
            "sensitivity": sensitivity,
            "specificity": specificity,
            "ppv": divide(hits, flagged),
            "npv": divide(rejections, n - flagged),
            "auc": auc,
            "average_precision": average_precision,
            "brier": divide(total(weights, squared_error), n),
            "log_loss": divide(total(weights, loss), n),
            "expected_over_observed": divide(total(weights, probability), positive),
            "calibration_slope": slope,
            "calibration_intercept": intercept,
        }

    return score


def _prepare_multiclass(rows: HeldOutRows, segments: RowSegments) -> Scorer:
    y, label, probability = rows.target, rows.prediction, rows.probability
    total = segments.total
    classes = range(len(rows.classes))
    correct = (y == label).astype(float)
    of_class = [(y == k).astype(float) for k in classes]
    rankings, squared_error, loss = [], np.zeros(0), np.zeros(0)
    if probability is not None:
        rankings = [Ranking(y == k, probability[:, k], segments) for k in classes]
        squared_error = ((probability - np.stack(of_class, axis=1)) ** 2).sum(axis=1)
        of_true_class = probability[np.arange(len(y)), y]
        loss = -np.log(np.maximum(of_true_class, np.finfo(float).smallest_subnormal))

    def score(weights: np.ndarray) -> dict[str, np.ndarray]:
        n = total(weights)
        recall = np.stack([divide(total(weights, mask * correct), total(weights, mask)) for mask in of_class])
        n_classes = (~np.isnan(recall)).sum(axis=0)
        scores = {
            "accuracy": divide(total(weights, correct), n),
            "balanced_accuracy": divide(np.nansum(recall, axis=0), np.where(n_classes > 1, n_classes, 0)),
        }
        if probability is not None:
            scores["auc_macro"] = np.mean([ranking.score(weights)[0] for ranking in rankings], axis=0)
            scores["brier"] = divide(total(weights, squared_error), n)
            scores["log_loss"] = divide(total(weights, loss), n)
        return scores

    return score


def _prepare_survival(rows: HeldOutRows, segments: RowSegments, whole_clients: bool) -> Scorer:
    times = rows.target
    predictor = rows.prediction
    client = np.unique(rows.client, return_inverse=True)[1]
    if whole_clients:  # a client that is drawn w times counts its own pairs w times, not w^2 times
        return _prepare_survival_of_clients(times, predictor, client, segments)
    strata = {"c_index": client}
    if len(segments) == 1:
        strata["c_index_all_pairs"] = np.zeros(len(times), int)
    concordances = {name: Concordance(times, predictor, stratum, segments) for name, stratum in strata.items()}
    return lambda weights: {name: concordance.index(weights) for name, concordance in concordances.items()}


def _prepare_survival_of_clients(
    times: np.ndarray, predictor: np.ndarray, client: np.ndarray, segments: RowSegments
) -> Scorer:
    """Return the scorer of samples of whole clients, in which a client counts its own pairs."""
    concordant, pairs = Concordance(times, predictor, client, segments).count_pairs()
    all_pairs = Concordance(times, predictor, np.zeros(len(times), int), segments)

    def score(weights: np.ndarray) -> dict[str, np.ndarray]:
        of_clients = divide(segments.total(weights, concordant), segments.total(weights, pairs))
        return {"c_index": of_clients, "c_index_all_pairs": all_pairs.index(weights)}

    return score
