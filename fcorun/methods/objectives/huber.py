"""Huber's robust regression."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import Positive
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
