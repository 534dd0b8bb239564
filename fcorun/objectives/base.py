"""What an objective f is to fcorun: a model and the mean loss of its predictions."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.product import product

Params = dict[str, jax.Array]


@dataclass(frozen=True)
class Objective(ABC):
    """An objective plug-in: a frozen dataclass that turns examples into predictions and predictions into losses.

    The default model is linear, ``<x, weights> + bias``; override ``shapes``, ``predict`` and ``start`` for another.

    Attributes:
        tasks: the kinds of targets it fits: "regression", "binary", "multiclass".
        convex: whether the mean loss is convex in the parameters, so that there is one optimum to measure against.
        regularized: the parameters psi acts on. The others (the intercept) are trained, never regularised.
    """

    tasks: ClassVar[tuple[str, ...]]
    convex: ClassVar[bool] = True
    regularized: ClassVar[tuple[str, ...]] = ("weights",)

    def shapes(self, features: tuple[int, ...], classes: int) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter, from that of an example, (d,) or that of a matrix.

        ``classes`` is 0 for a regression; more than two make one column a class.
        """
        outputs = (classes,) if classes > 2 else ()
        return {"weights": (*features, *outputs), "bias": outputs}

    def start(self, shapes: dict[str, tuple[int, ...]], rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Where to start from, before the regularizer and the mirror map have their say: zeros."""
        return {name: np.zeros(shape) for name, shape in shapes.items()}

    def predict(self, params: Params, x: jax.Array) -> jax.Array:
        """Predictions (n,) or (n, classes) of the examples x (n, d), matrices raveled."""
        weights, bias = params["weights"], params["bias"]
        return product(x, weights.reshape(x.shape[1], *bias.shape)) + bias

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
