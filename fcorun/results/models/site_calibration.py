"""The calibration of two classes from sums over sites: the fits of ``fit_calibration``, step by step.

A step of Newton's method needs the sums of the losses, gradients and curvatures at one point: ``sum_calibration`` of
the rows of each site.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

MAX_REQUESTS = 30  # for the sums of a run's calibration
_SEPARATED = 2 * math.log(2)  # the total loss is larger if the scores do not separate the classes
N_SUMS = 6  # at a point: the loss, 2 derivatives and 3 second derivatives


def sum_logistic(
    y: Int[np.ndarray, " n"],
    offset: Float[np.ndarray, " n"],
    z: Float[np.ndarray, " n"],
    at: tuple[float, float],
    min_cell: int,
) -> Float[np.ndarray, " 6"]:
    """Return the sums over rows of the loss of logit P(y = 1) = offset + a + b z and of its derivatives, ``at`` a, b.

    Returns nan if fewer rows than ``min_cell`` make up one of the sums: the sum would tell of these rows. Rows count by
    their effective number, (sum |t|)^2 / sum t^2 of their terms t (Kish, Survey Sampling 1965).
    """
    a, b = at
    eta = offset + a + b * z
    p = np.exp(-np.logaddexp(0, -eta))
    curvature = p * (1 - p)
    loss = np.logaddexp(0, eta) - y * eta
    terms = np.stack([loss, p - y, (p - y) * z, curvature, curvature * z, curvature * z**2])
    sizes = np.abs(terms)
    sizes = sizes / np.maximum(sizes.max(axis=1, keepdims=True, initial=0), np.finfo(float).tiny)
    if min_cell and not (curvature.any() and (sizes.sum(axis=1) ** 2 >= min_cell * (sizes**2).sum(axis=1)).all()):
        return np.full(N_SUMS, np.nan)
    return terms.sum(axis=1)


@dataclass
class LogisticSearch:
    """A search for a and b that minimize the loss of ``sum_logistic``, or for a alone.

    Attributes:
        n_rows: the number of rows.
        has_slope: whether b is searched, too; otherwise b is 0.
        trial: a and b at which the sums are needed next.
        result: a and b at the end of the search, nan if none were found; None before.
    """

    n_rows: int
    has_slope: bool
    trial: np.ndarray = field(default_factory=lambda: np.zeros(2))
    result: np.ndarray | None = None
    _point: np.ndarray = field(default_factory=lambda: np.zeros(2))
    _loss: float = math.inf
    _step: np.ndarray = field(default_factory=lambda: np.zeros(2))

    def give_up(self) -> None:
        """End the search; a result that it has found stays."""
        if self.result is None:
            self.result = np.full(2, np.nan)

    def advance(self, sums: Float[np.ndarray, " 6"], error: float) -> None:
        """Take a step, given the sums over all rows at ``trial``, each up to an ``error``."""
        if self.result is not None:
            return
        loss = float(sums[0])
        if not np.isfinite(sums).all():
            self.give_up()
        elif loss > self._loss + 1e-12 * abs(self._loss) + 2 * error:
            self._step = self._step / 2
            self.trial = self._point - self._step
        elif self.has_slope and loss <= _SEPARATED * (1 + 1e-9):
            self.give_up()
        else:
            self._point, self._loss = self.trial, loss
            self._step, decrement = self._find_step(sums)
            self.trial = self._point - self._step
            is_rounding = np.abs(sums[1:3]).max() <= 2 * error
            if decrement <= 1e-16 * self.n_rows or is_rounding:  # one more step is exact
                least = max(self._floor, 1e3 * error)
                if sums[3] <= least:
                    self.give_up()  # all probabilities are 0 or 1 up to rounding
                elif self.has_slope and _slope_curvature(sums) <= least:
                    self.give_up()  # the classes touch at one score alone, so that the slope has no bound
                else:
                    self.result = self.trial

    @property
    def _floor(self) -> float:
        """The least curvature that a step divides by."""
        return 1e-8 * self.n_rows

    def _find_step(self, sums: np.ndarray) -> tuple[np.ndarray, float]:
        """Return Newton's step, and the product of the gradient and the step."""
        gradient, floor = sums[1:3], self._floor
        a_a, a_b = max(sums[3], floor), sums[4]
        if not self.has_slope:
            return np.array([gradient[0] / a_a, 0.0]), float(gradient[0] ** 2 / a_a)
        schur = max(_slope_curvature(sums), floor)
        step_b = (gradient[1] - a_b / a_a * gradient[0]) / schur
        step = np.array([(gradient[0] - a_b * step_b) / a_a, step_b])
        return step, float(gradient @ step)


def _slope_curvature(sums: np.ndarray) -> float:
    """Return the curvature of the loss in the slope, with the intercept at its best."""
    a_a, a_b, b_b = sums[3:6]
    return float(b_b - a_b**2 / a_a) if a_a > 0 else 0.0


class CalibrationSearch:
    """A search for the slope and the intercept of ``fit_calibration`` on the rows of a set.

    Attributes:
        center, scale: the mean and the standard deviation of the scores, about: z = (score - center) / scale.
    """

    def __init__(self, n_rows: int, n_positive: int, score_sum: float, score_squares: float):
        mean = score_sum / n_rows
        variance = score_squares / n_rows - mean**2
        varies = variance > 1e-12 * max(mean**2, 1e-300)
        self.center, self.scale = mean, math.sqrt(variance) if varies else 1.0
        self._slope_search, self._intercept_search = (LogisticSearch(n_rows, has_slope) for has_slope in (True, False))
        if not 0 < n_positive < n_rows:
            self.give_up()
        if not varies:
            self._slope_search.give_up()

    @property
    def done(self) -> bool:
        """Return whether the slope and the intercept are found, or given up."""
        return self._slope_search.result is not None and self._intercept_search.result is not None

    def give_up(self) -> None:
        """End the search."""
        self._slope_search.give_up()
        self._intercept_search.give_up()

    @property
    def point(self) -> Float[np.ndarray, " 5"]:
        """The numbers that a request sends: center, scale, a and b of the slope's model, a of the intercept's."""
        return np.array([self.center, self.scale, *self._slope_search.trial, self._intercept_search.trial[0]])

    def advance(self, sums: Float[np.ndarray, "2 6"], error: float) -> None:
        """Take a step, given the sums of ``sum_calibration`` over all rows at ``point``."""
        self._slope_search.advance(sums[0], error)
        self._intercept_search.advance(sums[1], error)

    @property
    def scores(self) -> dict[str, float]:
        """The slope and the intercept, nan where none exists or none was found."""
        assert self._slope_search.result is not None
        assert self._intercept_search.result is not None
        slope = float(self._slope_search.result[1] / self.scale)
        return {"calibration_slope": slope, "calibration_intercept": float(self._intercept_search.result[0])}


def sum_calibration(
    y: Int[np.ndarray, " n"], score: Float[np.ndarray, " n"], point: Float[np.ndarray, " 5"], min_cell: int
) -> Float[np.ndarray, "2 6"]:
    """Return the sums of ``sum_logistic`` for the slope's model, and for the intercept's, at the point of a request."""
    center, scale, a, b, intercept = point.tolist()
    zeros = np.zeros(len(y))
    slope_sums = sum_logistic(y, zeros, (score - center) / scale, (a, b), min_cell)
    return np.stack([slope_sums, sum_logistic(y, score, zeros, (intercept, 0.0), min_cell)])
