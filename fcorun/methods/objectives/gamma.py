"""Gamma regression."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.metrics import Metric
from fcorun.methods.objectives.log_link import LogLink, extended_exp_conjugate


@dataclass(frozen=True)
class Gamma(LogLink):
    """Mean of half the unit deviance of positive targets y, with a log link: y / m - 1 - log(y / m), m = exp(p).

    The predictions are p = x'w + b (McCullagh and Nelder, Generalized Linear Models, 1989, chapter 8). scikit-learn's
    GammaRegressor minimizes the same loss; its penalty alpha / 2 ||w||^2 is ``ridge``.
    """

    source = "textbook"

    convex = True
    exp_name = "ratio"
    metrics = (*LogLink.metrics, Metric("beyond", label="share of ratios beyond the ceiling", bounded=True))

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

    def conjugate(self, u, y):
        return extended_exp_conjugate(1 - u, self.ceiling) + 1 + u * jnp.log(y)
