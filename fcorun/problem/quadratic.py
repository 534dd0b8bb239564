"""Losses that are quadratic functions of the parameters, decomposed once for each client."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.objectives.base import Objective
from fcorun.problem.operation_counts import ONE_PROX, Counts, mark
from fcorun.problem.vector import Vector
from fcorun.rows.host_rows import local_clients

_LARGEST = 2**28  # numbers in all bases together
SPAN_COORDINATES = "inside"
_WIDEST = 3000  # of a matrix whose eigenvalues are worked out for F as a whole


class Quadratic(NamedTuple):
    """f(w) = constant + sum_k curvature_k a_k^2 / 2 - slope_k a_k with a_k = <basis_k, w>, k = 1..r.

    It costs two products with an r x p matrix, whatever the number of examples; so does its prox, for any step.

    Attributes:
        basis: orthonormal rows (or zeros), each shaped as the parameters with a leading axis r; None: the parameter is
            a itself, "inside".
        curvature, slope: (r,).
        constant: ().
        passes: as of a Batch.
    """

    basis: Vector | None
    curvature: jax.Array
    linear: jax.Array
    constant: jax.Array
    full_passes: jax.Array | int = 1

    @property
    def counts(self) -> Counts:
        """As of a Batch."""
        return jnp.stack([0, self.full_passes, 0]).astype(jnp.int32)

    def to_coordinates(self, w: Vector) -> jax.Array:
        """a, shape (r,)."""
        if self.basis is None:
            return w[SPAN_COORDINATES]
        rank = len(self.curvature)
        return sum((v.reshape(rank, -1) @ w[name].ravel() for name, v in self.basis.items()), jnp.zeros((), w.dtype))

    def from_coordinates(self, a: jax.Array) -> Vector:
        """sum_k a_k basis_k."""
        assert self.basis is not None
        return Vector({name: jnp.tensordot(a, basis, 1) for name, basis in self.basis.items()})

    def value(self, w: Vector) -> jax.Array:
        a = self.to_coordinates(w)
        return self.constant + a @ (self.curvature * a / 2 - self.linear)

    def prox(self, v: Vector, s: jax.Array | float) -> Vector:
        """argmin_u s f(u) + ||u - v||^2 / 2."""
        move = s * (self.linear - self.curvature * self.to_coordinates(v)) / (1 + s * self.curvature)
        return mark(v + self.from_coordinates(move), ONE_PROX)

    def minimize(self, pull: Vector, weight: jax.Array | float) -> Vector:
        """argmin_u f(u) + weight ||u||^2 / 2 - <pull, u>; with weight 0, f must bend in every direction."""
        a, bend = self.to_coordinates(pull), self.curvature + weight
        size = sum(v.size for v in pull.values())
        whole = (
            sum(jnp.sum(v**2) for v in (self.basis or {}).values()) > size - 0.5
        )  # the basis spans all directions: then
        there = (weight > 0) & ~whole  # nothing lies outside, and rounding must not be divided by a small weight
        outside = jnp.where(there, 1 / jnp.where(there, weight, 1), 0)
        move = jnp.where(bend > 0, (self.linear + a) / jnp.where(bend > 0, bend, 1), 0) - outside * a
        return mark(outside * pull + self.from_coordinates(move), ONE_PROX)


def decompose_losses(
    objective: Objective, data: FederatedData, shapes: dict[str, tuple[int, ...]], dtype
) -> Quadratic | None:
    """The mean loss of each client that is here, stacked along a leading axis M; None where they are not quadratic, or
    too large."""
    size = sum(int(np.prod(shape)) for shape in shapes.values())
    if not can_decompose(objective, data, size):
        return None
    quadratic: Callable[..., Any] = objective.quadratic  # type: ignore[attr-defined]
    rank_of, (clients, count) = _ranks(objective, data, size), local_clients(data)
    basis, curvature, slope = (np.zeros((count, int(rank_of.max()), *rest), dtype) for rest in ((size,), (), ()))
    constant = np.zeros(count, dtype)
    for m, rows in enumerate(clients):
        found = quadratic(scaled_features(data, rows), _targets(data, rows), **_weights(data, rows))
        rank = len(found[1])
        basis[m, :rank], curvature[m, :rank], slope[m, :rank], constant[m] = found
    parts, place = {}, 0
    for name, shape in shapes.items():
        parts[name] = basis[..., place : place + int(np.prod(shape))].reshape(*basis.shape[:2], *shape)
        place += int(np.prod(shape))
    once = np.ones(count, np.int32)
    return Quadratic(Vector(parts), curvature, slope, constant, full_passes=once)  # type: ignore[arg-type]


def can_decompose(objective: Objective, data: FederatedData, size: int) -> bool:
    """Whether losses of ``size`` parameters are quadratic, and not too large to be decomposed."""
    if not hasattr(objective, "quadratic"):
        return False
    ranks = _ranks(objective, data, size)
    return len(ranks) * int(ranks.max()) * size <= _LARGEST


def _ranks(objective: Objective, data: FederatedData, size: int) -> np.ndarray:
    return np.full(len(data.sizes), size) if objective.ridge else np.minimum(data.sizes, size)


def scaled_features(data: FederatedData, rows: slice) -> np.ndarray:
    """Rows of the training examples as features in float64."""
    return data.x[rows].astype(np.float64) * data.scale


def curvature_bounds(objective: Objective, data: FederatedData, full_batch: bool = True) -> tuple[float, float]:
    """(l, L): no client's loss bends less than l or more than L; with ``whole`` false, none of any of its minibatches.

    AttributeError where the objective has no bounds.
    """
    outputs = len(data.classes) if len(data.classes) > 2 else 1
    if not full_batch:
        return _row_curvature(objective, data, outputs)
    own = _own_curvatures(objective, data, outputs)
    return min(low for low, _ in own), max(high for _, high in own)


def bound_pooled_smoothness(objective: Objective, data: FederatedData, client_weighting: str) -> float:
    """How much F, the mean of the clients' losses, bends at most: never more than the mean of their bounds.

    Where all rows weigh the same, it is that of a client with all of them, unless that takes too long.
    """
    outputs = len(data.classes) if len(data.classes) > 2 else 1
    small = data.x.size <= _LARGEST / 8 and min(data.x.shape) <= _WIDEST
    if client_weighting == "examples" and small:
        weight = {} if data.weight is None else {"weight": data.weight * (len(data.weight) / data.weight.sum())}
        return objective.curvature(scaled_features(data, slice(None)), outputs, **weight)[1]  # type: ignore[attr-defined]
    weight = data.client_weights if client_weighting == "examples" else None
    return float(np.average([high for _, high in _own_curvatures(objective, data, outputs)], weights=weight))


def _own_curvatures(objective: Objective, data: FederatedData, outputs: int) -> list[tuple[float, float]]:
    return [
        objective.curvature(scaled_features(data, rows), outputs, **_weights(data, rows))  # type: ignore[attr-defined]
        for rows in map(slice, data.offsets[:-1], data.offsets[1:])
    ]


def _row_curvature(objective: Objective, data: FederatedData, outputs: int) -> tuple[float, float]:
    """Bounds that hold for the loss of any row, and so for any minibatch: of a row, its length is all that matters."""
    lengths = np.concatenate([np.linalg.norm(scaled_features(data, slice(i, i + 1000)), axis=1)
                              for i in range(0, len(data.y), 1000)])  # fmt: skip
    longest, least, most = lengths.max(), {}, {}
    if data.row_weights is not None:  # the row that bends most, with a feature of ones or without
        own = np.argmax(data.row_weights * (lengths**2 + getattr(objective, "intercept", False)))
        longest, least, most = (
            lengths[own],
            {"weight": data.row_weights.min()[None]},
            {"weight": data.row_weights[[own]]},
        )
    high = objective.curvature(np.array([[longest]]), outputs, **most)[1]  # type: ignore[attr-defined]
    low = [objective.curvature(np.array([[r]]), outputs, **least)[0] for r in (0.0, lengths.max())]  # type: ignore[attr-defined]
    return min(low) if objective.ridge else low[0], high


def _targets(data: FederatedData, rows: slice) -> np.ndarray:
    """Targets in float64, less their offsets: what the linear predictor is to come to."""
    y = data.y[rows].astype(np.float64)
    return y if data.offset is None else y - data.offset[rows]


def _weights(data: FederatedData, rows: slice) -> dict[str, np.ndarray]:
    """What rows of one client weigh in its mean loss, as a keyword; nothing where they weigh the same."""
    return {} if data.row_weights is None else {"weight": data.row_weights[rows]}
