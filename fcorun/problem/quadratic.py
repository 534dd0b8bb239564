"""Quadratic losses, decomposed once for each client, and bounds on the curvature of losses."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.objectives.base import Objective
from fcorun.problem.operation_counts import ONE_PROX, Counts, mark
from fcorun.problem.vector import Vector

_MAX_NUMBERS = 2**28  # in all bases together
_MAX_EIGENVALUES = 3000  # of the matrix for the curvature of F
SPAN_COORDINATES = "inside"  # the parameter of a quadratic in its own coordinates


class Quadratic(NamedTuple):
    """The loss f(w) = constant + sum_k curvature_k a_k^2 / 2 - linear_k a_k with a_k = <basis_k, w>, k = 1..r.

    A value or a prox, for any step, costs two products with an r x p matrix, whatever the number of examples.

    Attributes:
        basis: orthonormal rows (or zeros), each shaped as the parameters with a leading axis r. None means that the
            parameter is a itself, under the name ``SPAN_COORDINATES``.
        curvature, linear: (r,).
        constant: ().
        full_passes: 1, the number of passes over a client's whole data, as in a Batch.
    """

    basis: Vector | None
    curvature: jax.Array
    linear: jax.Array
    constant: jax.Array
    full_passes: jax.Array | int = 1

    @property
    def counts(self) -> Counts:
        """The cost of a gradient: gradients of examples, gradients of whole clients, proxes."""
        return jnp.stack([0, self.full_passes, 0]).astype(jnp.int32)

    def to_coordinates(self, w: Vector) -> jax.Array:
        """Return a, shape (r,)."""
        if self.basis is None:
            return w[SPAN_COORDINATES]
        rank = len(self.curvature)
        products = (basis.reshape(rank, -1) @ w[name].ravel() for name, basis in self.basis.items())
        return sum(products, jnp.zeros((), w.dtype))

    def from_coordinates(self, a: jax.Array) -> Vector:
        """Return sum_k a_k basis_k."""
        assert self.basis is not None
        return Vector({name: jnp.tensordot(a, basis, 1) for name, basis in self.basis.items()})

    def value(self, w: Vector) -> jax.Array:
        """Return f(w)."""
        a = self.to_coordinates(w)
        return self.constant + a @ (self.curvature * a / 2 - self.linear)

    def prox(self, v: Vector, s: jax.Array | float) -> Vector:
        """Return argmin_u s f(u) + ||u - v||^2 / 2."""
        move = s * (self.linear - self.curvature * self.to_coordinates(v)) / (1 + s * self.curvature)
        return mark(v + self.from_coordinates(move), ONE_PROX)

    def minimize(self, pull: Vector, weight: jax.Array | float) -> Vector:
        """Return argmin_u f(u) + weight ||u||^2 / 2 - <pull, u>; with weight 0, f must be strongly convex."""
        assert self.basis is not None
        a = self.to_coordinates(pull)
        curvature = self.curvature + weight
        # If the basis spans all directions, nothing lies outside of the span but rounding, which a small weight would
        # magnify.
        size = sum(v.size for v in pull.values())
        spans_all = sum(jnp.sum(v**2) for v in self.basis.values()) > size - 0.5
        has_outside = (weight > 0) & ~spans_all
        outside = jnp.where(has_outside, 1 / jnp.where(has_outside, weight, 1), 0)
        positive = curvature > 0
        move = jnp.where(positive, (self.linear + a) / jnp.where(positive, curvature, 1), 0) - outside * a
        return mark(outside * pull + self.from_coordinates(move), ONE_PROX)


def decompose_losses(
    objective: Objective, data: FederatedData, shapes: dict[str, tuple[int, ...]], dtype
) -> Quadratic | None:
    """Return the mean loss of each client on this host, stacked along a leading axis M.

    Returns None if the losses are not quadratic, or if the decomposition is too large.
    """
    size = sum(int(np.prod(shape)) for shape in shapes.values())
    if not can_decompose(objective, data, size):
        return None
    quadratic: Callable[..., Any] = objective.quadratic  # type: ignore[attr-defined]
    largest_rank = int(_ranks(objective, data, size).max())
    clients = data.train.most_clients_of_a_host
    bases = np.zeros((clients, largest_rank, size), dtype)
    curvatures = np.zeros((clients, largest_rank), dtype)
    linear = np.zeros((clients, largest_rank), dtype)
    constants = np.zeros(clients, dtype)
    for m, rows in enumerate(data.train.local_client_slices):
        basis, curvature, slope, constant = quadratic(
            scaled_features(data, rows), _targets_without_offset(data, rows), **_row_weights(data, rows)
        )
        rank = len(curvature)
        bases[m, :rank] = basis
        curvatures[m, :rank] = curvature
        linear[m, :rank] = slope
        constants[m] = constant
    parameters, start = {}, 0
    for name, shape in shapes.items():
        stop = start + int(np.prod(shape))
        parameters[name] = bases[..., start:stop].reshape(*bases.shape[:2], *shape)
        start = stop
    full_passes = np.ones(clients, np.int32)
    return Quadratic(Vector(parameters), curvatures, linear, constants, full_passes)  # type: ignore[arg-type]


def can_decompose(objective: Objective, data: FederatedData, size: int) -> bool:
    """Return True if losses of ``size`` parameters are quadratic, and small enough to be decomposed."""
    if not hasattr(objective, "quadratic"):
        return False
    ranks = _ranks(objective, data, size)
    return len(ranks) * int(ranks.max()) * size <= _MAX_NUMBERS


def _ranks(objective: Objective, data: FederatedData, size: int) -> np.ndarray:
    return np.full(len(data.train.sizes), size) if objective.ridge else np.minimum(data.train.sizes, size)


def scaled_features(data: FederatedData, rows: slice) -> np.ndarray:
    """Return rows of the training examples as features in float64."""
    return data.train.x[rows].astype(np.float64) * data.features.scale


def curvature_bounds(objective: Objective, data: FederatedData, full_batch: bool = True) -> tuple[float, float]:
    """Return bounds (l, L) on the curvature of any client's loss.

    Without ``full_batch`` the bounds also hold for any minibatch of a client. Raises AttributeError for an objective
    without bounds.
    """
    outputs = len(data.classes) if len(data.classes) > 2 else 1
    if not full_batch:
        return _bound_row_curvature(objective, data, outputs)
    bounds = _bound_client_curvatures(objective, data, outputs)
    return min(low for low, _ in bounds), max(high for _, high in bounds)


def bound_pooled_smoothness(objective: Objective, data: FederatedData, client_weighting: str) -> float:
    """Return an upper bound on the curvature of F, the mean of the clients' losses.

    The bound is never more than the mean of the bounds of the clients. If clients weigh as their rows do, a loss is
    that of a row alone, and the data are small enough, the bound is that of one client with all rows.
    """
    outputs = len(data.classes) if len(data.classes) > 2 else 1
    is_small = data.train.x.size <= _MAX_NUMBERS / 8 and min(data.train.x.shape) <= _MAX_EIGENVALUES
    if client_weighting == "examples" and is_small and not objective.has_client_losses:
        weight = (
            {}
            if data.train.weight is None
            else {"weight": data.train.weight * (len(data.train.weight) / data.train.weight.sum())}
        )
        return objective.curvature(scaled_features(data, slice(None)), outputs, **weight)[1]  # type: ignore[attr-defined]
    client_weights = data.train.client_weights if client_weighting == "examples" else None
    bounds = [high for _, high in _bound_client_curvatures(objective, data, outputs)]
    return float(np.average(bounds, weights=client_weights))


def _bound_client_curvatures(objective: Objective, data: FederatedData, outputs: int) -> list[tuple[float, float]]:
    return [
        objective.curvature(scaled_features(data, rows), outputs, **_curvature_options(objective, data, rows))  # type: ignore[attr-defined]
        for rows in map(slice, data.train.offsets[:-1], data.train.offsets[1:])
    ]


def _curvature_options(objective: Objective, data: FederatedData, rows: slice) -> dict[str, np.ndarray]:
    """Return the weights of a client's rows, and the targets for losses that compare rows, as keyword arguments."""
    targets = {"y": data.train.y[rows]} if objective.has_client_losses else {}
    return _row_weights(data, rows) | targets


def _bound_row_curvature(objective: Objective, data: FederatedData, outputs: int) -> tuple[float, float]:
    """Return bounds for the loss of any row, and so of any minibatch, from the lengths of the rows."""
    starts = range(0, len(data.train.y), 1000)
    lengths = np.concatenate([np.linalg.norm(scaled_features(data, slice(i, i + 1000)), axis=1) for i in starts])
    steepest = lengths.max()
    lightest: dict[str, np.ndarray] = {}
    heaviest: dict[str, np.ndarray] = {}
    if data.train.relative_weight is not None:  # the row of the largest curvature, with or without a feature of ones
        row = np.argmax(data.train.relative_weight * (lengths**2 + getattr(objective, "intercept", False)))
        steepest = lengths[row]
        lightest = {"weight": data.train.relative_weight.min()[None]}
        heaviest = {"weight": data.train.relative_weight[[row]]}

    def bounds(length: float, weight: dict[str, np.ndarray]) -> tuple[float, float]:
        return objective.curvature(np.array([[length]]), outputs, **weight)  # type: ignore[attr-defined]

    low = bounds(0.0, lightest)[0]
    if objective.ridge:
        low = min(low, bounds(lengths.max(), lightest)[0])
    return low, bounds(steepest, heaviest)[1]


def _targets_without_offset(data: FederatedData, rows: slice) -> np.ndarray:
    """Return targets in float64 minus their offsets, the values that the linear predictor is to approach."""
    y = data.train.y[rows].astype(np.float64)
    return y if data.train.offset is None else y - data.train.offset[rows]


def _row_weights(data: FederatedData, rows: slice) -> dict[str, np.ndarray]:
    """Return the weights of rows in a client's mean loss as a keyword argument; none for equal weights."""
    return {} if data.train.relative_weight is None else {"weight": data.train.relative_weight[rows]}
