"""Gamma regression."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.config import Positive
from fcorun.metrics import Metric
from fcorun.objectives.base import LinearModel
from fcorun.objectives.exponential import growth, growth_conjugate


@dataclass(frozen=True)
class Gamma(LinearModel):
    """Mean of half the unit deviance of positive targets y, with a log link: y / m - 1 - log(y / m), m = exp(p).

    p = x'w + b (McCullagh and Nelder, Generalized Linear Models, 1989, chapter 8). scikit-learn's GammaRegressor
    minimises the same and alpha / 2 ||w||^2: that is ``ridge``.

    Attributes:
        ceiling: the largest ratio y / m that is expected. Beyond it exp(log y - p) goes on as its parabola, so that a
            loss bends so much at most, whatever p, and steps may be "auto"; the optimum is that of the deviance where
            no row is beyond, and the metric ``beyond`` is the share of rows that are. None: no bound.
    """

    source = "textbook"

    ceiling: Positive | None = None

    convex = True
    tasks = ("regression",)
    metrics = (
        Metric("deviance", label="mean deviance", higher=False, log=True),
        Metric("absolute_error", label="mean |y - m|", higher=False, log=True),
        Metric("beyond", label="share of ratios beyond the ceiling", share=True),
    )

    def second_derivative(self, outputs):
        return 0.0, float("inf") if self.ceiling is None else self.ceiling

    def check_targets(self, y, y_val):
        least = min(part.min() for part in (y, y_val) if len(part))
        if least <= 0:
            raise ValueError(
                f"the targets hold {least:g}, and must be positive: mend them, or choose another objective"
            )

    def loss(self, prediction, y):
        ratio = jnp.log(y) - prediction  # its logarithm
        return growth(ratio, self.ceiling) - 1 - ratio

    def scores(self, prediction, y):
        ratio = jnp.log(y) - prediction
        found = {"deviance": 2 * (jnp.exp(ratio) - 1 - ratio), "absolute_error": jnp.abs(y - jnp.exp(prediction))}
        if self.ceiling is not None:
            found["beyond"] = (jnp.exp(ratio) > self.ceiling).astype(prediction.dtype)
        return found

    def response(self, prediction):
        return jnp.exp(prediction)

    def conjugate(self, u, y):
        return growth_conjugate(1 - u, self.ceiling) + 1 + u * jnp.log(y)

    def remark(self, final):
        share = final.get("train_beyond", 0.0)
        return (f"{share:.2%} of the rows ended with a ratio beyond objective.ceiling={self.ceiling:g}, where the loss "
                "is no longer the deviance: raise it") if share else ""  # fmt: skip
