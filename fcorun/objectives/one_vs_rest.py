"""One logistic regression a class."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fcorun.objectives.base import LinearModel


@dataclass(frozen=True)
class OneVsRest(LinearModel):
    """Mean over examples of sum_k log(1 + exp(-b_k p_k)), b_k = 1 for the example's class and -1 for the others.

    The classes share nothing but the examples.
    """

    source = "equation (21) of @pathak2020"
    convex = True
    tasks = ("multiclass",)

    def second_derivative(self, outputs):
        return 0.0, 0.25

    def loss(self, prediction, y):
        there = jnp.take_along_axis(prediction, y[:, None], axis=1)[:, 0]
        return jax.nn.softplus(prediction).sum(axis=1) - there

    def scores(self, prediction, y):
        return {"accuracy": (prediction.argmax(axis=1) == y).astype(prediction.dtype)}

    def probabilities(self, prediction):
        """Those of each class against the rest, divided by their sum (Zadrozny and Elkan, KDD 2002)."""
        each = jax.nn.sigmoid(prediction)
        return each / each.sum(axis=1, keepdims=True)
