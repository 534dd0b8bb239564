"""Slope and intercept of calibration of weighted rows, by a damped Newton method without a line search.

The step length log(1 + d) / d, where d bounds the change of any row's log odds, decreases the loss in every step (Sun
and Tran-Dinh, Math. Program. 178, 2019). No sample then needs its own line search, and array operations fit them all.
"""

import numpy as np
from jaxtyping import Float, Int

from fcorun.results.models.score_intervals.segments import RowSegments

_MAX_STEPS = 60
_TOLERANCE = 1e-16  # of the squared Newton decrement per row: one more step is exact


class Calibration:
    """The logistic model logit P(y = 1) = a + b score, as ``fit_calibration`` of the score functions has it.

    The slope is b. The intercept is a with b held at 1.
    """

    def __init__(self, y: Int[np.ndarray, " n"], score: Float[np.ndarray, " n"], segments: RowSegments):
        self._y, self._score, self._segments = y == 1, score, segments
        ones = np.ones((1, len(y)))
        n = segments.total(ones)
        z = score - segments.spread((segments.total(ones, score) / n)[0])
        deviation = np.sqrt(segments.total(ones, z**2) / n)
        self._scale = np.where(deviation > 0, deviation, 1.0)
        self._z = z / segments.spread(self._scale[0])
        at_zero = (np.zeros(len(segments)), np.zeros(len(segments)))
        self._slope_start, self._intercept_start = at_zero, at_zero
        self._slope_start, self._intercept_start = (
            tuple(np.nan_to_num(values[0]) for values in fit) for fit in self._fit_both(ones)
        )

    def fit(self, weights: Float[np.ndarray, "B n"]) -> tuple[Float[np.ndarray, "B C"], Float[np.ndarray, "B C"]]:
        """Return slopes and intercepts, each (B, C), for B samples and C segments.

        They are nan for segments of one class, and slopes also if the scores separate the classes.
        """
        (_, slope), (intercept, _) = self._fit_both(weights)
        return slope / self._scale, intercept

    def _fit_both(self, weights: np.ndarray) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        """Return a and b of the model of the slope, and of the model of the intercept."""
        lowest_of_positive, highest_of_positive = self._range(weights, self._y)
        lowest_of_negative, highest_of_negative = self._range(weights, ~self._y)
        has_both_classes = np.isfinite(lowest_of_positive) & np.isfinite(lowest_of_negative)
        overlap = has_both_classes & (lowest_of_positive < highest_of_negative)
        overlap &= lowest_of_negative < highest_of_positive
        of_slope = self._maximize(weights, None, self._z, overlap, self._slope_start)
        return of_slope, self._maximize(weights, self._score, None, has_both_classes, self._intercept_start)

    def _range(self, weights: np.ndarray, where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the lowest and the highest score of the rows in ``where`` whose weight is positive."""
        counted = (weights > 0) & where
        starts = self._segments.starts
        lowest = np.minimum.reduceat(np.where(counted, self._score, np.inf), starts, axis=1)
        return lowest, np.maximum.reduceat(np.where(counted, self._score, -np.inf), starts, axis=1)

    def _maximize(
        self,
        weights: np.ndarray,
        offset: np.ndarray | None,
        z: np.ndarray | None,
        mask: np.ndarray,
        start: tuple[np.ndarray, ...],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return a and b, (B, C), that maximize the likelihood of logit P(y = 1) = offset + a + b z.

        Without ``z``, b is 0. ``start`` has the first a and b, (C,) each. Values are nan outside of ``mask``, and where
        the method has not converged, or all probabilities are 0 or 1 up to rounding.
        """
        from scipy.special import expit  # takes long to import, and a report page needs it for few records

        segments, y = self._segments, self._y
        total = segments.total
        n = np.maximum(total(weights), 1.0)
        floor = 1e-12 * n
        a, b = (np.broadcast_to(values, mask.shape) for values in start)
        done = ~mask
        largest_z = 0.0 if z is None else np.maximum.reduceat(np.abs(z), segments.starts)
        for _ in range(_MAX_STEPS):
            eta = segments.spread(a)
            if offset is not None:
                eta = eta + offset
            if z is not None:
                eta = eta + segments.spread(b) * z
            p = expit(eta)
            residual = weights * (p - y)
            curvature = weights * p * (1 - p)
            gradient_a, hessian_aa = total(residual), np.maximum(total(curvature), floor)
            step_b, gradient_b = np.zeros_like(a), np.zeros_like(a)
            step_a = gradient_a / hessian_aa
            if z is not None:
                gradient_b, hessian_ab = total(residual, z), total(curvature, z)
                schur = np.maximum(total(curvature, z**2) - hessian_ab**2 / hessian_aa, floor)
                step_b = (gradient_b - hessian_ab / hessian_aa * gradient_a) / schur
                step_a = (gradient_a - hessian_ab * step_b) / hessian_aa
            close = gradient_a * step_a + gradient_b * step_b <= _TOLERANCE * n
            change = np.abs(step_a) + largest_z * np.abs(step_b)
            length = np.where(change > 0, np.log1p(change) / np.where(change > 0, change, 1.0), 1.0)
            length = np.where(done, 0.0, length)
            a, b = a - length * step_a, b - length * step_b
            mask = mask & ~(close & (hessian_aa <= floor))  # all probabilities are 0 or 1 up to rounding
            done |= close
            if done.all():
                break
        converged = mask & done
        return np.where(converged, a, np.nan), np.where(converged, b, np.nan)
