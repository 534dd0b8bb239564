"""Poisson and gamma regression, by a log link."""

import math
from abc import abstractmethod
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy

from fcorun.base.errors import word
from fcorun.base.metrics import Metric
from fcorun.methods.objectives.objective import LinearModel, Margins

_LARGEST_EXPONENT = 700  # of exp in float64
_POWERS = 0.25, 1.5  # of an exposure that the mean is about proportional to
_CLEAR_GAIN = 20  # of twice a log-likelihood; 10 is very strong evidence (Kass and Raftery, JASA 1995)


def _exp_conjugate(v: jax.Array) -> jax.Array:
    """Return the conjugate of exp at v >= 0, v log v - v."""
    v = jnp.maximum(v, 0)
    return xlogy(v, v) - v


def _exp(p: np.ndarray) -> np.ndarray:
    """Compute exp(p), infinity where exp overflows."""
    with np.errstate(over="ignore"):
        return np.exp(p)


def are_exposures(offset: np.ndarray, y: np.ndarray) -> bool:
    """Return whether targets y (n,) follow the logarithm of their offsets (n,), and not the offsets themselves.

    Both are judged by the quasi-likelihood of counts with a constant and no features (McCullagh and Nelder, Generalized
    Linear Models, 1989, chapter 9). Offsets below 0, or 0 in a row with a target, are no exposures.
    """
    exposed = offset > 0
    total = y.sum()
    if not exposed.any() or (offset < 0).any() or y[~exposed].any() or total <= 0:
        return False
    exposure = offset[exposed]
    logarithm = np.log(exposure)

    def differentiate_in_power(power: float) -> float:
        share = exposure**power / (exposure**power).sum()
        return float(y[exposed] @ logarithm - total * (share @ logarithm))

    # the best power of the exposure lies between, which a logarithm of days, above 0 too, has no reason for
    if not differentiate_in_power(_POWERS[0]) > 0 > differentiate_in_power(_POWERS[1]):
        return False
    return compare_exposures(exposure, y[exposed], np.logaddexp.reduce(offset)) > _CLEAR_GAIN


def compare_exposures(exposure: np.ndarray, y: np.ndarray, log_sum: float) -> float:
    """Return how much better targets y (n,) are proportional to their exposure (n,) than to the exp of it.

    The gain is that of twice the quasi-likelihood, per dispersion. ``log_sum`` is the logarithm of the sum of the exp
    of the exposures.
    """
    total = y.sum()
    as_exposure = y @ np.log(exposure) - total * np.log(exposure.sum())
    as_logarithm = y @ exposure - total * log_sum
    mean = total * exposure / exposure.sum()
    dispersion = float(((y - mean) ** 2 / mean).mean())
    return 2 * float(as_exposure - as_logarithm) / max(dispersion, np.finfo(float).tiny)


@dataclass(frozen=True)
class LogLink(LinearModel):
    """Mean of half the unit deviance of targets y, whose means are exp(p) for predictions p.

    The curvature of a loss has no upper bound.
    """

    takes_client_intercepts = True
    tasks = ("regression",)
    metrics = (
        Metric("deviance", label="mean deviance", higher=False, log=True),
        Metric("absolute_error", label="mean |y - m|", higher=False, log=True),
    )

    @abstractmethod
    def exponent(self, prediction: jax.Array, y: jax.Array) -> jax.Array:
        """Return the argument of exp in the deviance, (n,)."""

    @abstractmethod
    def half_deviance(self, exp_value: jax.Array, prediction: jax.Array, y: jax.Array) -> jax.Array:
        """Return half the unit deviance, (n,), given ``exp_value``, the exp of ``exponent``."""

    def second_derivative_bounds(self, outputs):
        return 0.0, float("inf")

    def loss(self, prediction, y):
        return self.half_deviance(jnp.exp(self.exponent(prediction, y)), prediction, y)

    def scores(self, prediction, y):
        exp_value = jnp.exp(self.exponent(prediction, y))
        error = jnp.abs(y - jnp.exp(prediction))
        return {"deviance": 2 * self.half_deviance(exp_value, prediction, y), "absolute_error": error}

    def response(self, prediction):
        return jnp.exp(prediction)

    def remark_on_offset(self, offset, y):
        if offset is None or not are_exposures(offset, y):
            return super().remark_on_offset(offset, y)
        least, most = (f"{math.exp(min(value, _LARGEST_EXPONENT)):,.4g}" for value in (offset.min(), offset.max()))
        return [word(f"`data.offset` multiplies the mean by its exp, {least} to {most}, and the targets follow its "
                     "logarithm better: if it is an exposure such as years, give its logarithm")]  # fmt: skip


@dataclass(frozen=True)
class Poisson(LogLink):
    """Mean of half the unit deviance of counts y, with a log link: m - y p - y + y log y for the mean m = exp(p).

    The predictions are p = x'w + b, and an offset adds the logarithm of an exposure (McCullagh and Nelder, Generalized
    Linear Models, 1989, chapter 6). scikit-learn's PoissonRegressor minimizes the same loss; its penalty
    alpha / 2 ||w||^2 is ``ridge``.
    """

    source = "textbook"

    convex = True
    is_log_likelihood = True
    unbounded_reason = (
        "alone or together they have one value wherever the count is positive, and lie on one side of it where it is 0"
    )

    def check_targets(self, y, y_val):
        smallest = min((split.min() for split in (y, y_val) if len(split)), default=0)
        if smallest < 0:
            raise ValueError(
                f"the targets contain {smallest:g}, and counts are 0 or more: correct them, or choose another objective"
            )
        if len(y) and not y.any():  # a site may have held-out rows alone
            raise ValueError(
                word("every target is 0, so that the optimum has no finite parameters: check `data.target`")
            )

    def remark_on_targets(self, y):
        is_fraction = y != np.round(y)
        if not is_fraction.any():
            return []
        return [word(f"{is_fraction.sum():,} of {len(y):,} targets are no counts, such as {y[is_fraction][0]:g}: a "
                     "rate is a count with `data.offset`, the logarithm of its exposure, and `objective=gamma` is for "
                     "positive numbers")]  # fmt: skip

    def margins(self, x, y, client):
        design = self.add_intercept_columns(x, client)
        return Margins(falling=-design[y == 0], fixed=design[y > 0])

    def exponent(self, prediction, y):
        return prediction

    def half_deviance(self, exp_value, prediction, y):
        return exp_value - y * prediction - y + xlogy(y, y)

    def row_derivatives(self, prediction, y):
        mean = _exp(prediction)
        loss = mean - y * prediction - y + y * np.log(np.where(y > 0, y, 1))
        return loss, mean - y, mean

    def conjugate(self, u, y):
        return _exp_conjugate(u + y) + y - xlogy(y, y)


@dataclass(frozen=True)
class Gamma(LogLink):
    """Mean of half the unit deviance of positive targets y, with a log link: y / m - 1 - log(y / m), m = exp(p).

    The predictions are p = x'w + b (McCullagh and Nelder, Generalized Linear Models, 1989, chapter 8). scikit-learn's
    GammaRegressor minimizes the same loss; its penalty alpha / 2 ||w||^2 is ``ridge``.
    """

    source = "textbook"

    convex = True

    def check_targets(self, y, y_val):
        smallest = min((split.min() for split in (y, y_val) if len(split)), default=1)
        if smallest <= 0:
            raise ValueError(
                f"the targets contain {smallest:g}, and must be positive: correct them, or choose another objective"
            )

    def exponent(self, prediction, y):
        return jnp.log(y) - prediction

    def half_deviance(self, exp_value, prediction, y):
        return exp_value - 1 - self.exponent(prediction, y)

    def row_derivatives(self, prediction, y):
        exponent = np.log(y) - prediction
        ratio = _exp(exponent)
        return ratio - 1 - exponent, 1 - ratio, ratio

    def conjugate(self, u, y):
        return _exp_conjugate(1 - u) + 1 + u * jnp.log(y)
