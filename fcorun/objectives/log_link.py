"""Losses with a log link, and exp, as they have it, continued by a parabola, which bounds its curvature."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy

from fcorun.config import Positive
from fcorun.metrics import Metric
from fcorun.objectives.base import LinearModel


def extended_exp(p: jax.Array, ceiling: float | None) -> jax.Array:
    """exp(p); where that is more than ``ceiling``, its Taylor polynomial of second order there, which bends no more.

    It is convex, and both its derivatives are continuous.
    """
    if ceiling is None:
        return jnp.exp(p)
    edge = math.log(ceiling)
    over = jnp.maximum(p - edge, 0)
    return jnp.where(p <= edge, jnp.exp(jnp.minimum(p, edge)), ceiling * (1 + over + over**2 / 2))


def extended_exp_conjugate(v: jax.Array, ceiling: float | None) -> jax.Array:
    """The convex conjugate of ``growth`` at v >= 0: v log v - v up to the ceiling, a parabola beyond."""
    v = jnp.maximum(v, 0)
    if ceiling is None:
        return xlogy(v, v) - v
    over = jnp.maximum(v / ceiling - 1, 0)
    beyond = ceiling * ((1 + over) * math.log(ceiling) + over**2 / 2 - 1)
    return jnp.where(v <= ceiling, xlogy(v, v) - v, beyond)


@dataclass(frozen=True)
class LogLink(LinearModel):
    """Mean of half the unit deviance of targets y, whose means are exp(p) for predictions p.

    Attributes:
        ceiling: the largest value of exp that is expected. Beyond it exp goes on as its parabola, so that a loss bends
            so much at most, whatever p, and steps may be "auto"; the optimum is that of the deviance where no row is
            beyond, and the metric ``beyond`` is the share of rows that are. None: exp, which no bound holds for.
        grows: what exp gives in the deviance, in a word.
    """

    ceiling: Positive | None = None

    tasks = ("regression",)
    exp_name: ClassVar[str]
    metrics = (
        Metric("deviance", label="mean deviance", higher=False, log=True),
        Metric("absolute_error", label="mean |y - m|", higher=False, log=True),
    )

    @abstractmethod
    def exponent(self, prediction: jax.Array, y: jax.Array) -> jax.Array:
        """What exp is taken of, (n,)."""

    @abstractmethod
    def half_deviance(self, grown: jax.Array, prediction: jax.Array, y: jax.Array) -> jax.Array:
        """Half the unit deviance, (n,), where exp of ``exponent`` is ``grown``."""

    def second_derivative(self, outputs):
        return 0.0, float("inf") if self.ceiling is None else self.ceiling

    def loss(self, prediction, y):
        return self.half_deviance(extended_exp(self.exponent(prediction, y), self.ceiling), prediction, y)

    def scores(self, prediction, y):
        grown = jnp.exp(self.exponent(prediction, y))
        error = jnp.abs(y - jnp.exp(prediction))
        found = {"deviance": 2 * self.half_deviance(grown, prediction, y), "absolute_error": error}
        if self.ceiling is not None:
            found["beyond"] = (grown > self.ceiling).astype(prediction.dtype)
        return found

    def response(self, prediction):
        return jnp.exp(prediction)

    def final_warning(self, final):
        share = final.get("train_beyond", 0.0)
        return (
            (
                f"{share:.2%} of the rows ended with a {self.exp_name} beyond objective.ceiling={self.ceiling:g}, "
                f"where "
                "the loss is no longer half the deviance: raise it"
            )
            if share
            else ""
        )
