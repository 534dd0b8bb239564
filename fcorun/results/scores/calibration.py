"""Scores of calibration: whether predictions are as large as what they predict, and not too extreme.

For numbers these are the slope of the line of the targets on the predictions, and the mean error. For two classes
they are those of Cox's model logit P(y = 1) = a + b log odds (Biometrika 1958): b = 1 and a = 0 are ideal, and b < 1
means that predictions are too extreme. The intercept is fitted with b held at 1, as usual (Van Calster et al., BMC
Medicine 2019).
"""

import math
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from fcorun.data.tasks import Task
from fcorun.results.scores.number_errors import sum_about_means
from fcorun.results.scores.score import Places, Score, TwoClassScore
from fcorun.results.scores.weighted_rows import RowGroups, ScoredRows, Sums, WeightedRows, divide

Numbers = np.ndarray | float


class CalibrationSlope(Score):
    """The slope b. It is nan for rows of one class, and if the log odds separate the classes (Silvapulle 1981)."""

    name = "calibration_slope"
    label = "calibration slope"
    long_label = "calibration slope (1: ideal)"
    needs_probability = True
    places = Places(table=17, page=14, terminal=None, verdict=None, by_client=True)

    def judges(self, task: Task) -> bool:
        return task.is_quantity or task.has_two_classes

    def of_rows(self, rows: WeightedRows) -> np.ndarray:
        return rows.shared(fit_calibration)[0]

    def of_sums(self, sums: Sums) -> np.ndarray:
        if "products" in sums:
            return divide(sums["products"], sums["prediction_squares"])
        return sums["calibration_slope"]


class CalibrationIntercept(Score):
    """The intercept a, or the mean error of numbers.

    It is nan for rows of one class, and if all calibrated probabilities would be 0 or 1 up to rounding.
    """

    name = "calibration_intercept"
    label = "calibration intercept"
    long_label = "calibration intercept (0: ideal)"
    needs_probability = True
    places = Places(table=18, page=15, terminal=None, verdict=None)

    def judges(self, task: Task) -> bool:
        return task.is_quantity or task.has_two_classes

    def of_rows(self, rows: WeightedRows) -> np.ndarray:
        return rows.shared(fit_calibration)[1]

    def of_sums(self, sums: Sums) -> np.ndarray:
        if "error" in sums:
            return divide(sums["error"], sums.n)
        return sums["calibration_intercept"]


class ExpectedOverObserved(TwoClassScore):
    """The sum of the probabilities over the number of positive rows."""

    name = "expected_over_observed"
    label = "expected / observed events"
    long_label = "expected / observed events (1: ideal)"
    needs_probability = True
    places = Places(table=16, page=13, terminal=None, verdict=None, by_client=True, brief=True)

    def of_sums(self, sums: Sums) -> np.ndarray:
        return divide(sums["probability"], sums["positive"])


def fit_calibration(rows: WeightedRows) -> tuple[Float[np.ndarray, "B G"], Float[np.ndarray, "B G"]]:
    """Return the slope and the intercept of each group under each weighting."""
    if rows.rows.task.has_classes:
        return rows.rows.once(_prepare_logistic).fit(rows.weights)
    sums = rows.shared(sum_about_means)
    return divide(sums["products"], sums["prediction_squares"]), divide(rows["error"], rows.n)


def _prepare_logistic(rows: ScoredRows) -> "LogisticCalibration":
    return LogisticCalibration(rows.target, rows.column("log_odds"), rows.groups)


def _find_newton_step(
    gradient_a: Numbers,
    gradient_b: Numbers,
    curvature_aa: Numbers,
    curvature_ab: Numbers,
    curvature_bb: Numbers,
    floor: Numbers,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return Newton's step in a and in b, and the product of the gradient and the step.

    A step divides by curvatures of at least ``floor``.
    """
    curvature_aa = np.maximum(curvature_aa, floor)
    schur = np.maximum(curvature_bb - curvature_ab**2 / curvature_aa, floor)
    step_b = (gradient_b - curvature_ab / curvature_aa * gradient_a) / schur
    step_a = (gradient_a - curvature_ab * step_b) / curvature_aa
    return step_a, step_b, gradient_a * step_a + gradient_b * step_b


# The fit where rows lie here: a damped Newton method without a line search. The step length log(1 + d) / d, where d
# bounds the change of any row's log odds, decreases the loss in every step (Sun and Tran-Dinh, Math. Program. 178,
# 2019). No weighting then needs its own line search, and array operations fit them all.

_MAX_STEPS = 60
_TOLERANCE = 1e-16  # of the squared Newton decrement per row: one more step is exact
_FLOOR = 1e-8  # the least curvature per row: below, all probabilities are 0 or 1 up to rounding


class LogisticCalibration:
    """The logistic model logit P(y = 1) = a + b score of weighted rows.

    The slope is b. The intercept is a with b held at 1.
    """

    def __init__(self, y: Int[np.ndarray, " n"], score: Float[np.ndarray, " n"], groups: RowGroups):
        self._y = y == 1
        self._score = score
        self._groups = groups
        centered = groups.center(score)
        deviation = np.sqrt(np.add.reduceat(centered**2, groups.starts) / groups.sizes)
        self._scale = np.where(deviation > 0, deviation, 1.0)
        self._z = centered / groups.spread(self._scale)
        zeros = np.zeros(len(groups))
        self._slope_start = self._intercept_start = (zeros, zeros)
        slope_fit, intercept_fit = self._fit_both(np.ones((1, len(y))))
        self._slope_start = (np.nan_to_num(slope_fit[0][0]), np.nan_to_num(slope_fit[1][0]))
        self._intercept_start = (np.nan_to_num(intercept_fit[0][0]), zeros)

    def fit(self, weights: Float[np.ndarray, "B n"]) -> tuple[Float[np.ndarray, "B G"], Float[np.ndarray, "B G"]]:
        """Return slopes and intercepts, each (B, G), for B weightings and G groups.

        They are nan for groups of one class, and slopes also if the scores separate the classes.
        """
        slope_fit, intercept_fit = self._fit_both(weights)
        return slope_fit[1] / self._scale, intercept_fit[0]

    def _fit_both(self, weights: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Return a and b of the model of the slope, and of the model of the intercept."""
        lowest_of_positive, highest_of_positive = self._find_range(weights, self._y)
        lowest_of_negative, highest_of_negative = self._find_range(weights, ~self._y)
        has_both_classes = np.isfinite(lowest_of_positive) & np.isfinite(lowest_of_negative)
        overlap = has_both_classes & (lowest_of_positive < highest_of_negative)
        overlap &= lowest_of_negative < highest_of_positive
        slope_fit = self._maximize(weights, 0.0, self._z, overlap, self._slope_start)
        return slope_fit, self._maximize(weights, self._score, None, has_both_classes, self._intercept_start)

    def _find_range(self, weights: np.ndarray, where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the lowest and the highest score of the rows in ``where`` whose weight is positive."""
        counted = (weights > 0) & where
        starts = self._groups.starts
        lowest = np.minimum.reduceat(np.where(counted, self._score, np.inf), starts, axis=1)
        return lowest, np.maximum.reduceat(np.where(counted, self._score, -np.inf), starts, axis=1)

    def _maximize(
        self,
        weights: np.ndarray,
        offset: np.ndarray | float,
        z: np.ndarray | None,
        mask: np.ndarray,
        start: tuple[np.ndarray, np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return a and b, (B, G), that maximize the likelihood of logit P(y = 1) = offset + a + b z.

        Without ``z``, b is 0. ``start`` has the first a and b, (G,) each. Values are nan outside of ``mask``, and where
        the method has not converged, or all probabilities are 0 or 1 up to rounding.
        """
        groups = self._groups
        total = groups.total
        n = np.maximum(total(weights), 1.0)
        floor = _FLOOR * n
        a = np.broadcast_to(start[0], mask.shape)
        b = np.broadcast_to(start[1], mask.shape)
        done = ~mask
        largest_z: np.ndarray | float = 0.0
        gradient_b = curvature_ab = curvature_bb = np.zeros(mask.shape)
        if z is not None:
            largest_z = np.maximum.reduceat(np.abs(z), groups.starts)
        for _ in range(_MAX_STEPS):
            log_odds = offset + groups.spread(a)
            if z is not None:
                log_odds = log_odds + groups.spread(b) * z
            with np.errstate(over="ignore"):
                p = 1 / (1 + np.exp(-log_odds))
            residual = weights * (p - self._y)
            curvature = weights * p * (1 - p)
            curvature_aa = total(curvature)
            if z is not None:
                gradient_b = total(residual, z)
                curvature_ab = total(curvature, z)
                curvature_bb = total(curvature, z**2)
            step_a, step_b, decrement = _find_newton_step(
                total(residual), gradient_b, curvature_aa, curvature_ab, curvature_bb=curvature_bb, floor=floor
            )
            close = decrement <= _TOLERANCE * n
            change = np.abs(step_a) + largest_z * np.abs(step_b)
            length = np.where(change > 0, np.log1p(change) / np.where(change > 0, change, 1.0), 1.0)
            length = np.where(done, 0.0, length)
            a = a - length * step_a
            b = b - length * step_b
            mask = mask & ~(close & (curvature_aa <= floor))  # all probabilities are 0 or 1 up to rounding
            done |= close
            if done.all():
                break
        converged = mask & done
        return np.where(converged, a, np.nan), np.where(converged, b, np.nan)


# The fit where rows lie at sites. A step of Newton's method needs the sums of the losses, gradients and curvatures at
# one point: ``sum_calibration`` of the rows of each site.

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
            floor = _FLOOR * self.n_rows
            derivatives = sums[1:]
            if not self.has_slope:
                derivatives = derivatives * [1, 0, 1, 0, 0]  # without rounding of secure sums in the others
            step_a, step_b, decrement = _find_newton_step(*derivatives.tolist(), floor=floor)
            self._step = np.array([step_a, step_b])
            self.trial = self._point - self._step
            is_rounding = np.abs(sums[1:3]).max() <= 2 * error
            if decrement <= _TOLERANCE * self.n_rows or is_rounding:  # one more step is exact
                least = max(floor, 1e3 * error)
                if sums[3] <= least:
                    self.give_up()  # all probabilities are 0 or 1 up to rounding
                elif self.has_slope and _slope_curvature(sums) <= least:
                    self.give_up()  # the classes touch at one score alone, so that the slope has no bound
                else:
                    self.result = self.trial


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
