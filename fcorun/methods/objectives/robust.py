"""Regression that outliers move little: by Huber's function, and of a quantile."""

from dataclasses import dataclass, replace
from statistics import NormalDist

import jax.numpy as jnp
import numpy as np

from fcorun.base.config import AUTO, AutoPositive, Level, Positive
from fcorun.base.errors import word
from fcorun.base.metrics import Metric
from fcorun.methods.objectives.objective import LinearModel


@dataclass(frozen=True)
class Huber(LinearModel):
    """Mean of Huber's function of the residual r: r^2 / 2 up to |r| = delta, delta |r| - delta^2 / 2 beyond.

    The scale is fixed by delta. scikit-learn's HuberRegressor estimates the scale together with the weights.
    """

    source = "@huber1964"

    delta: Positive = 1.345

    convex = True
    nonnegative = True
    has_hessian = False  # it is 0 beyond delta
    tasks = ("regression",)
    metrics = (
        Metric("absolute_error", label="mean |y - p|", higher=False, log=True),
        Metric("outlying", label="share of residuals beyond delta", bounded=True),
    )

    def second_derivative_bounds(self, outputs):
        return 0.0, 1.0

    def loss(self, prediction, y):
        size = jnp.abs(y - prediction)
        return jnp.where(size <= self.delta, size**2 / 2, self.delta * size - self.delta**2 / 2)

    def scores(self, prediction, y):
        size = jnp.abs(y - prediction)
        return {"absolute_error": size, "outlying": (size > self.delta).astype(prediction.dtype)}

    def response(self, prediction):
        return prediction

    def conjugate(self, u, y):
        return u * y + u**2 / 2  # for |u| <= delta, which derivatives of the loss satisfy


_NORMAL_RANGE = 1.349  # the interquartile range of a standard normal distribution
_TOLERATED_SHARE = 0.01  # a fitted share may be off the level by so much, or by a row
_RESIDUAL_FRACTION = 0.05  # the spread of residuals over that of targets where the features explain all but 0.25 %


@dataclass(frozen=True)
class Quantile(LinearModel):
    """Mean of the Moreau envelope of the pinball loss of the residual r = y - p, of width h.

    The pinball loss is level * r for r > 0 and (level - 1) * r otherwise. Its envelope
    min_s pinball(s) + (r - s)^2 / (2 h) is r^2 / (2 h) within the band -h (1 - level) <= r <= h level. Outside the band
    the envelope is linear, h level^2 / 2 or h (1 - level)^2 / 2 below the pinball loss. For level 1/2 it is Huber's
    function of delta = h / 2, divided by h.

    At the optimum, the objective with the pinball loss itself is at most h max(level, 1 - level)^2 / 2 above its own
    minimum. With an intercept, which is not regularized, the share of targets up to p + h level, the upper end of the
    band, is at least ``level``, and the share of targets below the lower end is at most ``level``. The smoothness
    constant of a loss is 1 / h.

    The share of targets up to p is off the level by at most the share of residuals in the band, which is about h times
    the density of the residuals at 0. The default width makes that 1 %, or one of n rows where 1 / n is more, of
    normal residuals with a twentieth of the spread of the targets. As without smoothing, up to as many residuals as the
    model has coefficients are within any band.
    """

    source = "@koenker1978"

    level: Level = 0.5
    smoothing: AutoPositive = AUTO

    convex = True
    nonnegative = True
    has_hessian = False  # it is 0 outside of the band
    tasks = ("regression",)
    metrics = (
        Metric("pinball", label="mean pinball loss", higher=False, log=True),
        Metric("absolute_error", label="mean |y - p|", higher=False, log=True),
        Metric("coverage", label="share of targets at most p", bounded=True),
        Metric("smoothed", label="share of residuals within the smoothing", bounded=True),
    )

    def resolve_auto(self, targets):
        if self.smoothing != AUTO:
            return self
        low, high = np.quantile(targets, (0.25, 0.75))
        spread = (high - low) / _NORMAL_RANGE or targets.std() or 1.0
        normal = NormalDist(sigma=float(_RESIDUAL_FRACTION * spread))
        share = max(_TOLERATED_SHARE, 1 / len(targets))
        return replace(self, smoothing=share / normal.pdf(normal.inv_cdf(self.level)))

    @property
    def has_curvature_bound(self):
        return True

    def second_derivative_bounds(self, outputs):
        return 0.0, 1 / self.smoothing

    def loss(self, prediction, y):
        r = y - prediction
        h = self.smoothing
        clipped = jnp.clip(r, -h * (1 - self.level), h * self.level)  # r - s for the minimizer s of the envelope
        return clipped**2 / (2 * h) + self._pinball(r - clipped)

    def _pinball(self, r):
        return jnp.maximum(self.level * r, (self.level - 1) * r)

    def scores(self, prediction, y):
        r = y - prediction
        h = self.smoothing
        in_band = (r >= -h * (1 - self.level)) & (r <= h * self.level)
        return {
            "pinball": self._pinball(r),
            "absolute_error": jnp.abs(r),
            "coverage": (r <= 0).astype(prediction.dtype),
            "smoothed": in_band.astype(prediction.dtype),
        }

    def conjugate(self, u, y):
        return u * y + self.smoothing * u**2 / 2

    def remark_on_targets(self, y):
        quantile = np.quantile(y, self.level, method="inverted_cdf")
        below = np.mean(y < quantile)
        up_to = np.mean(y <= quantile)
        n_equal = int((y == quantile).sum())
        if n_equal == 1 or min(self.level - below, up_to - self.level) <= _TOLERATED_SHARE:
            return []
        return [word(f"{n_equal:,} of {len(y):,} training targets equal {quantile:g}, their quantile of "
                     f"`objective.level={self.level:g}`: {below:.1%} of the targets are below it and {up_to:.1%} at or "
                     "below it, and no `objective.smoothing` gives a share between")]  # fmt: skip

    def final_warning(self, final):
        smoothed = final.get("train_smoothed", 0.0)
        coverage = final.get("train_coverage", self.level)
        deviation = abs(coverage - self.level)
        share = (f"{coverage:.1%} of the training targets are at or below the fitted quantile of "
                 f"`objective.level={self.level:g}`")  # fmt: skip
        if deviation > max(smoothed, _TOLERATED_SHARE):
            return word(f"{share}, farther off than at an optimum with an intercept: give more rounds, or "
                        "`objective.intercept=true`")  # fmt: skip
        if max(deviation, smoothed / 10) > _TOLERATED_SHARE:
            return word(f"{share}, and {smoothed:.1%} of the residuals are within `objective.smoothing="
                        f"{self.smoothing:g}`: lower `objective.smoothing`, unless these are no more rows than the "
                        "model has coefficients, or have equal targets, which no smoothing parts")  # fmt: skip
        return ""
