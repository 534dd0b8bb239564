"""What an objective f is to fcorun: a model and the mean loss of its predictions."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

Params = dict[str, jax.Array]


@dataclass(frozen=True)
class Objective(ABC):
    """An objective plug-in: a frozen dataclass that turns examples into predictions and predictions into losses.

    The default model is linear, ``x @ weights + bias``; override ``shapes`` and ``predict`` for another.

    Attributes:
        tasks: the kinds of targets it fits: "regression", "binary", "multiclass".
        regularized: the parameters psi acts on. The others (the intercept) are trained, never regularised.
    """

    tasks: ClassVar[tuple[str, ...]]
    regularized: ClassVar[tuple[str, ...]] = ("weights",)

    def shapes(self, features: int, classes: int) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter. ``classes`` is 0 for a regression; more than two make one column a class."""
        return (
            {"weights": (features, classes), "bias": (classes,)}
            if classes > 2
            else {"weights": (features,), "bias": ()}
        )

    def predict(self, params: Params, x: jax.Array) -> jax.Array:
        """Predictions (n,) or (n, classes) of the examples x (n, d)."""
        return x @ params["weights"] + params["bias"]

    @abstractmethod
    def loss(self, prediction: jax.Array, y: jax.Array) -> jax.Array:
        """The loss of each example, shape (n,). The engine takes (weighted) means of it."""

    def scores(self, prediction: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
        """Further figures of each example, shape (n,), to be averaged: {"accuracy": ...}."""
        return {}

    # Optional, for a duality gap: conjugate(u, y), the convex conjugate of loss(., y) at u, shape (n,).


def binary_conjugate(u: jax.Array, y: jax.Array) -> jax.Array:
    """The conjugate of p -> log(1 + exp(p)) - y p at u: the negative entropy of u + y, which lies in [0, 1]."""
    v = jnp.clip(u + y, 0, 1)
    return jax.scipy.special.xlogy(v, v) + jax.scipy.special.xlogy(1 - v, 1 - v)
