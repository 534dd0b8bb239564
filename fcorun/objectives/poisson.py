"""Poisson regression."""

from dataclasses import dataclass

import jax.numpy as jnp
from jax.scipy.special import xlogy

from fcorun.config import Positive
from fcorun.metrics import Metric
from fcorun.objectives.base import LinearModel
from fcorun.objectives.exponential import growth, growth_conjugate


@dataclass(frozen=True)
class Poisson(LinearModel):
    """Mean of half the unit deviance of counts y, with a log link: m - y p - y + y log y for the mean m = exp(p).

    p = x'w + b, to which an offset adds the logarithm of an exposure (McCullagh and Nelder, Generalized Linear Models,
    1989, chapter 6). scikit-learn's PoissonRegressor minimises the same and alpha / 2 ||w||^2: that is ``ridge``.

    Attributes:
        ceiling: the largest mean that is expected. Beyond it exp goes on as its parabola, so that a loss bends so much
            at most, whatever p, and steps may be "auto"; the optimum is Poisson's where no row is beyond, and the
            metric ``beyond`` is the share of rows that are. None: exp, which no bound holds for.
    """

    source = "textbook"

    ceiling: Positive | None = None

    convex = True
    tasks = ("regression",)
    metrics = (
        Metric("deviance", label="mean deviance", higher=False, log=True),
        Metric("absolute_error", label="mean |y - m|", higher=False, log=True),
        Metric("beyond", label="share of means beyond the ceiling", share=True),
    )

    def second_derivative(self, outputs):
        return 0.0, float("inf") if self.ceiling is None else self.ceiling

    def check_targets(self, y, y_val):
        least = min(part.min() for part in (y, y_val) if len(part))
        if least < 0:
            raise ValueError(
                f"the targets hold {least:g}, and counts are 0 or more: mend them, or choose another objective"
            )
        if not y.any():
            raise ValueError("every target is 0, so that no model with finite parameters fits best: check data.target")

    def loss(self, prediction, y):
        return growth(prediction, self.ceiling) - y * prediction - y + xlogy(y, y)

    def scores(self, prediction, y):
        mean = jnp.exp(prediction)
        found = {"deviance": 2 * (mean - y * prediction - y + xlogy(y, y)), "absolute_error": jnp.abs(y - mean)}
        if self.ceiling is not None:
            found["beyond"] = (mean > self.ceiling).astype(prediction.dtype)
        return found

    def response(self, prediction):
        return jnp.exp(prediction)

    def conjugate(self, u, y):
        return growth_conjugate(u + y, self.ceiling) + y - xlogy(y, y)

    def remark(self, final):
        share = final.get("train_beyond", 0.0)
        return (f"{share:.2%} of the rows ended with a mean beyond objective.ceiling={self.ceiling:g}, where the loss "
                "is no longer Poisson's: raise it") if share else ""  # fmt: skip
