"""What an objective f is to fcorun: a model and the mean loss of its predictions."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from fcorun.config import NonNegative
from fcorun.metrics import Metric
from fcorun.objectives.matmul import matmul

Params = dict[str, jax.Array]


@dataclass(frozen=True, kw_only=True)
class Objective(ABC):
    """An objective plug-in: a frozen dataclass that turns examples into predictions and predictions into losses.

    Attributes:
        ridge: adds ridge / 2 times the squared norm of the regularised parameters to every client's loss. Part of the
            losses f, not of psi: client proxes and bounds on the curvature know of it.
        tasks: the kinds of targets it fits: "regression", "binary", "multiclass".
        convex: whether the mean loss is convex in the parameters, so that there is one optimum to measure against. Not
            inherited: of a class that does not say so itself it is not known (None), and no optimum of it is certified.
        regularized: the parameters psi acts on. The others (the intercept) are trained, never regularised.
        metrics: what is known of the figures that ``scores`` gives, beside loss and accuracy: with
            Metric("auc", higher=True), train_auc, val_auc and those of own models are metrics like any other.
        source: where it comes from, as fcorun.sources.catalogue says; not inherited.
    """

    tasks: ClassVar[tuple[str, ...]]
    convex: ClassVar[bool | None] = None
    regularized: ClassVar[tuple[str, ...]] = ("weights",)
    metrics: ClassVar[tuple[Metric, ...]] = ()
    source: ClassVar[str]

    ridge: NonNegative = 0.0

    @abstractmethod
    def shapes(self, features: tuple[int, ...], classes: int) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter, from that of an example, (d,) or that of a matrix.

        ``classes`` is 0 for a regression; more than two make one column a class.
        """

    def initial_parameters(self, shapes: dict[str, tuple[int, ...]], rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Where to start from, before the regularizer and the mirror map have their say: zeros."""
        return {name: np.zeros(shape) for name, shape in shapes.items()}

    @abstractmethod
    def predict(self, params: Params, x: Float[Array, " n d"]) -> Float[Array, " n *outputs"]:
        """Predictions (n,) or (n, classes) of the examples x (n, d), matrices raveled."""

    @abstractmethod
    def loss(self, prediction: Float[Array, " n *outputs"], y: Shaped[Array, " n"]) -> Float[Array, " n"]:
        """The loss of each example, shape (n,). The engine takes (weighted) means of it."""

    def scores(self, prediction: Float[Array, " n *outputs"], y: Shaped[Array, " n"]) -> dict[str, Float[Array, " n"]]:
        """Further figures of each example, shape (n,), to be averaged: {"accuracy": ...}."""
        return {}

    def resolve_auto(self, targets: np.ndarray) -> Self:
        """Return the same objective with numbers for its fields that are "auto", from the training targets (N,), which
        are less their offsets."""
        return self

    @property
    def has_curvature_bound(self) -> bool:
        """Whether bounds on the curvature of its losses are known, wherever the parameters are."""
        return hasattr(self, "curvature")

    def check_targets(self, y: np.ndarray, y_val: np.ndarray) -> None:
        """Raise ValueError, with what would do, if it is not for targets y (N,) to train on, y_val to validate on."""
        return

    def final_warning(self, final: Mapping[str, float]) -> str:
        """What a user should know of a run that ended with these metrics, or nothing."""
        return ""

    # Optional, for a duality gap: conjugate(u, y), the convex conjugate of loss(., y) at u, shape (n,).
    # Optional, for scores and predictions: probabilities(prediction) of the classes, (n, classes), see Logistic; of a
    # regression response(prediction), what is expected of the target, (n,), see LeastSquares.
    # Optional, for steps that are "auto": curvature(features, outputs, weight=None), see LinearModel.
    # Optional, for client proxes in closed form: quadratic(features, y, weight=None), see LeastSquares.


@dataclass(frozen=True, kw_only=True)
class LinearModel(Objective):
    """Predictions ``<x, weights> + bias``, one column of weights a class if there are more than two.

    Attributes:
        intercept: whether there is a bias.
    """

    intercept: bool = True

    @abstractmethod
    def second_derivative(self, outputs: int) -> tuple[float, float]:
        """Bounds on that of an example's loss in its prediction; of several outputs, on its eigenvalues; inf: none."""

    @property
    def has_curvature_bound(self):
        return math.isfinite(self.second_derivative(1)[1])

    def shapes(self, features, classes):
        outputs = (classes,) if classes > 2 else ()
        return {"weights": (*features, *outputs), **({"bias": outputs} if self.intercept else {})}

    def predict(self, params, x):
        weights = params["weights"]
        outputs = weights.size // x.shape[1]
        prediction = matmul(x, weights.reshape(x.shape[1], *((outputs,) if outputs > 1 else ())))
        return prediction + params["bias"][None] if self.intercept else prediction

    def design(self, features: np.ndarray) -> np.ndarray:
        """The examples (n, d), with a feature of ones if there is an intercept."""
        return np.column_stack([features, np.ones(len(features))]) if self.intercept else features

    def curvature(self, features: np.ndarray, outputs: int, weight: np.ndarray | None = None) -> tuple[float, float]:
        """Bounds (l, L) on the eigenvalues of the Hessian of the mean loss over examples (n, d), float64.

        ``weight`` (n,) is what each loss is multiplied by in the mean; None: 1.
        """
        x = scale_by_root_weight(self.design(features), weight)
        n, d = x.shape
        eigenvalues = np.linalg.eigvalsh((x.T @ x if d < n else x @ x.T) / n)
        low, high = self.second_derivative(outputs)
        least = max(float(eigenvalues[0]), 0.0) if d <= n else 0.0
        return low * least + (0 if self.intercept else self.ridge), high * float(eigenvalues[-1]) + self.ridge


def is_linear_model(kind: type) -> bool:
    """Whether predictions of an objective of this class are ``<x, weights> + bias``."""
    return issubclass(kind, LinearModel) and kind.predict is LinearModel.predict


def scale_by_root_weight(x: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Rows of x (n, ...) times the roots of their weights (n,), so that x'x is the weighted sum; None: 1."""
    return x if weight is None else x * np.sqrt(weight).reshape(-1, *[1] * (x.ndim - 1))


def logistic_conjugate(u: jax.Array, y: jax.Array) -> jax.Array:
    """The conjugate of p -> log(1 + exp(p)) - y p at u: the negative entropy of u + y, which lies in [0, 1]."""
    v = jnp.clip(u + y, 0, 1)
    return jax.scipy.special.xlogy(v, v) + jax.scipy.special.xlogy(1 - v, 1 - v)
