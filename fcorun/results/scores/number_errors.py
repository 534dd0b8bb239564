"""Scores of predicted numbers: errors, and the share of the variance that they leave unexplained."""

import numpy as np

from fcorun.data.rows.row_groups import divide
from fcorun.results.scores.score import NumberScore, Places
from fcorun.results.scores.weighted_rows import ScoredRows, Sums, WeightedRows

_ROUNDING = 1e-12  # a sum of squares about the mean below this share of that about a center is rounding error


class R2(NumberScore):
    """1 minus the sum of squared errors over that of the targets' deviations from their mean."""

    name = "r2"
    label = "R\N{SUPERSCRIPT TWO}"
    long_label = "R\N{SUPERSCRIPT TWO}, share of the variance explained"
    higher = True
    is_permuted = True
    places = Places(table=11, page=4, terminal=4, verdict=7, headline=3, by_client=True, brief=True)

    def of_rows(self, rows: WeightedRows) -> np.ndarray:
        return 1 - divide(rows["squared_error"], rows.shared(sum_about_means)["target_squares"])

    def of_sums(self, sums: Sums) -> np.ndarray:
        return 1 - divide(sums["squared_error"], sums["target_squares"])


class RootMeanSquaredError(NumberScore):
    name = "rmse"
    label = "root mean squared error"
    higher = False
    places = Places(table=12, page=5, terminal=5, verdict=6, by_client=True)

    def of_sums(self, sums: Sums) -> np.ndarray:
        # rounded sums of sites may be negative where all errors are almost 0
        return np.sqrt(np.maximum(divide(sums["squared_error"], sums.n), 0.0))


class MeanAbsoluteError(NumberScore):
    name = "mae"
    label = "mean absolute error"
    higher = False
    places = Places(table=13, page=6, terminal=10, verdict=None)

    def of_sums(self, sums: Sums) -> np.ndarray:
        return divide(sums["absolute_error"], sums.n)


def sum_about_means(rows: WeightedRows) -> dict[str, np.ndarray]:
    """Return the weighted sums of squares and products of targets and predictions about their means, (B, G) each.

    Squares are 0 where they are rounding error, as those of equal values.
    """
    target, prediction = rows.rows.once(_center_columns)
    sum_target = rows.total(target)
    sum_prediction = rows.total(prediction)
    return {
        "target_squares": _subtract_mean(rows.total(target**2), sum_target, rows.n),
        "prediction_squares": _subtract_mean(rows.total(prediction**2), sum_prediction, rows.n),
        "products": rows.total(target * prediction) - divide(sum_target * sum_prediction, rows.n),
    }


def _center_columns(rows: ScoredRows) -> tuple[np.ndarray, np.ndarray]:
    return rows.groups.center(rows.target), rows.groups.center(rows.prediction)


def _subtract_mean(squares: np.ndarray, sums: np.ndarray, n: np.ndarray) -> np.ndarray:
    about_mean = squares - divide(sums**2, n)
    return np.where(about_mean > _ROUNDING * squares, about_mean, 0.0)
