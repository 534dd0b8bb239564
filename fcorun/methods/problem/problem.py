"""The problem min F(w) + psi(w) as functions of a vector w and of a batch of rows, or of a quadratic loss."""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.errors import UserError
from fcorun.methods.mirror_maps.mirror_map import MirrorMap
from fcorun.methods.objectives.objective import Objective, matmul
from fcorun.methods.problem.operation_counts import ONE_PROX, Counts, mark, mark_derivatives, mark_value
from fcorun.methods.regularizers.regularizer import NoRegularizer, Regularizer

KeyBits = jax.Array | tuple[int, int]  # of a random key, uint32 (2,): they travel as ordinary arrays


def wrap_key(bits: KeyBits) -> jax.Array:
    """Return the key for ``jax.random`` of these bits."""
    return jax.random.wrap_key_data(jnp.asarray(bits, jnp.uint32), impl="threefry2x32")


def fold_key(bits: KeyBits, number: jax.Array | int) -> jax.Array:
    """Return the bits of a further key, which depends on the key of ``bits`` and on a number."""
    return jax.random.key_data(jax.random.fold_in(wrap_key(bits), number))


# Points of the parameter space: named arrays with the arithmetic of a vector.


@jax.tree_util.register_pytree_with_keys_class
class Vector(dict):
    """Named arrays that add, subtract and scale like one vector, so that an algorithm reads as in its paper.

    A vector is a pytree. The arrays are not raveled into one, since slicing and joining cost as much as the gradients.

    >>> w = Vector(weights=jnp.ones(2), bias=jnp.zeros(()))
    >>> (w - 0.5 * w)["weights"]
    Array([0.5, 0.5], dtype=float32)
    """

    def tree_flatten_with_keys(self):
        return [(jax.tree_util.DictKey(k), v) for k, v in self.items()], tuple(self)

    def tree_flatten(self):
        return tuple(self.values()), tuple(self)

    @classmethod
    def tree_unflatten(cls, names, values):
        return cls(zip(names, values, strict=True))

    def _combine(self, other, function):
        if isinstance(other, Vector):
            return Vector({k: function(v, other[k]) for k, v in self.items()})
        return Vector({k: function(v, other) for k, v in self.items()})

    def __add__(self, other):
        return self._combine(other, operator.add)

    def __sub__(self, other):
        return self._combine(other, operator.sub)

    def __mul__(self, scalar):
        return self._combine(scalar, operator.mul)

    __rmul__ = __mul__

    def __truediv__(self, scalar):
        return self._combine(scalar, operator.truediv)

    def __neg__(self):
        return self * -1

    @property
    def dtype(self):
        return next(iter(self.values())).dtype

    def map(self, function: Callable[..., jax.Array], *others: "Vector") -> "Vector":
        """Return ``function(v, ...)`` of each parameter ``v`` and of the same parameter of the ``others``.

        >>> w = Vector(weights=jnp.array([1.0, -2.0]), bias=jnp.zeros(()))
        >>> w.map(jnp.abs)["weights"]
        Array([1., 2.], dtype=float32)
        >>> w.map(jnp.maximum, 0.5 * w)["weights"]
        Array([ 1., -1.], dtype=float32)
        """
        return Vector({name: function(v, *(other[name] for other in others)) for name, v in self.items()})

    def dot(self, other: "Vector") -> jax.Array:
        """Return the inner product, a scalar."""
        return sum((jnp.vdot(v, other[k]) for k, v in self.items()), jnp.zeros((), self.dtype))

    def norm(self) -> jax.Array:
        """Return the Euclidean norm, a scalar."""
        return jnp.sqrt(self.dot(self))


# Losses of rows: a quadratic, or a batch of examples.

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
        n_rows: the number of rows of positive weight, an int32, as of a Batch.
    """

    basis: Vector | None
    curvature: jax.Array
    linear: jax.Array
    constant: jax.Array
    full_passes: jax.Array | int = 1
    n_rows: jax.Array | int = 0

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
        if self.basis is None:
            return Vector({SPAN_COORDINATES: a})
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


class Batch(NamedTuple):
    """Examples, targets and weights of a minibatch or of a client's whole data.

    Attributes:
        x: the stored examples (n, d), dense or sparse; with a ``basis``, the coordinates (n, r) of their features in
            the basis.
        y: the targets (n,).
        weight: the weights (n,) in the mean, which sum to one. If rows have weights of their own, the weights of a
            minibatch sum to one on average over all minibatches.
        mask: True for the rows (n,) of a padded batch that are examples; None means all rows.
        full_passes: 1 for a client's whole data, whose gradients are counted by passes; None for a minibatch.
        offset: the terms (n,) added to the predictions, or None.
        basis: orthonormal rows or zeros (r, d), or None.
        client: the client of each row (n,), where losses depend on it; None: all rows are of one client.
        noise_key: the bits of the key of the noise in the gradient of this batch; None: no noise.
    """

    x: Any
    y: jax.Array
    weight: jax.Array
    mask: jax.Array | None = None
    full_passes: jax.Array | int | None = None
    offset: jax.Array | None = None
    basis: jax.Array | None = None
    client: jax.Array | None = None
    noise_key: KeyBits | None = None

    @property
    def n_rows(self) -> jax.Array:
        """The number of rows of positive weight, an int32, without those that pad the batch."""
        return (self.weight > 0).sum(dtype=jnp.int32)

    @property
    def counts(self) -> Counts:
        """The cost of a gradient of the mean loss: gradients of examples, gradients of whole clients, proxes."""
        if self.full_passes is not None:
            return jnp.stack([0, self.full_passes, 0]).astype(jnp.int32)
        rows = len(self.y) if self.mask is None else self.mask.sum(dtype=jnp.int32)
        return jnp.stack([rows, 0, 0]).astype(jnp.int32)


def to_coordinates(w: Vector, basis: jax.Array) -> Vector:
    """Return w with its weights (d, *outputs), or of the shape of an example, in a ``basis`` (r, d): (r, *outputs)."""
    weights, features = w["weights"], basis.shape[1]
    outputs = (weights.size // features,) if weights.size > features else ()
    return Vector({**w, "weights": matmul(basis, weights.reshape(features, *outputs))})


# The problem min F(w) + psi(w) as functions of a vector w.


@dataclass(frozen=True)
class Problem:
    """The problem min_w F(w) + psi(w) with the mirror map h.

    w is a Vector of named parameters. psi and h act on each regularized parameter separately: those in the
    regularizer's ``apply_to``, or without it those that the objective names. For the other parameters, such as the
    intercept, psi = 0 and h is Euclidean.

    Attributes:
        shapes: the shape of each parameter.
        scale: the factor that turns stored examples into features.
        share: the sum of the weights in F of the clients in the round's cohort, 1 for all clients.
        n_clients: the number of clients, M, for algorithms that collect the messages of single clients.
        cohort_size: the number of clients that a round computes, S.
        curvature: (l, L), bounds on the curvature of each client's loss, computed only for algorithms that need them.
        key_bits: the bits of the round's key, from which ``key`` is derived, or None.
        accessed: a set to which "server_key" is added when ``key`` is read, or None.
        levels, references: the numbers of the features that are levels of text columns, and of the levels among them
            that clients which fit alone compare the others with.
    """

    objective: Objective
    regularizer: Regularizer
    mirror: MirrorMap
    shapes: dict[str, tuple[int, ...]]
    scale: float = 1.0
    share: jax.Array | float = 1.0
    n_clients: int = 1
    cohort_size: int = 1
    curvature: tuple[float, float] | None = None
    key_bits: KeyBits | None = None
    accessed: set[str] | None = field(default=None, compare=False, repr=False)
    levels: tuple[int, ...] = ()
    references: tuple[int, ...] = ()

    @property
    def key(self) -> jax.Array:
        """A key for ``jax.random`` in an algorithm's functions ``init``, ``server``, ``edge`` and ``root``.

        The key depends on the seed, the round and the edge alone. Raises UserError in other functions.
        """
        if self.accessed is not None:
            self.accessed.add("server_key")
        if self.key_bits is None:
            raise UserError("problem.key is the random key of init, server, edge and root: in local, read data.key")
        return jax.random.fold_in(wrap_key(self.key_bits), 1)  # the channel uses the key of ``key_bits`` itself

    @property
    def regularized(self) -> tuple[str, ...]:
        """The names of the parameters that psi acts on."""
        names = self.regularizer.apply_to
        return self.objective.regularized if names is None else tuple(names)

    def with_numbers(self, reg: dict, mirror: dict | None = None) -> "Problem":
        """Return the problem with other numbers, which may be traced, in its regularizer and mirror map."""
        regularizer = replace(self.regularizer, **reg)
        mirror_map = replace(self.mirror, **(mirror or {}))
        return replace(self, regularizer=regularizer, mirror=mirror_map)

    def for_side(self, side: str) -> "Problem":
        """Return the problem of the "client" or the "server", with psi = 0 if that side does not apply psi."""
        if self.regularizer.applied_by in ("both", side):
            return self
        return self.without_psi()

    def without_psi(self) -> "Problem":
        """Return the problem with psi = 0."""
        return replace(self, regularizer=NoRegularizer(apply_to=list(self.regularized)))

    def zeros(self, dtype) -> Vector:
        """Return w = 0."""
        return Vector({name: jnp.zeros(shape, dtype) for name, shape in self.shapes.items()})

    def start(self, dtype) -> Vector:
        """Return the parameters at which the objective has its runs start, w = 0 for most objectives."""
        parameters = self.objective.initial_parameters(self.shapes, np.random.default_rng(0))
        return Vector({name: jnp.asarray(values, dtype) for name, values in parameters.items()})

    def initial_point(self, z: Vector) -> Vector:
        """Return the point of the domain of psi with the dual z; for z = 0 it minimizes h on the domain."""
        return self.retrieve(z, 0.0)

    def _map(self, function, vector: Vector, others=lambda v: v) -> Vector:
        """Apply ``function`` to each regularized parameter and ``others`` to the rest."""
        regularized = self.regularized
        return Vector({name: function(v) if name in regularized else others(v) for name, v in vector.items()})

    def features(self, x: Any, dtype) -> Any:
        """Return stored examples (n, d) as features."""
        x = x.astype(dtype)
        return x if self.scale == 1 else x * jnp.asarray(self.scale, dtype)

    def predict(self, w: Vector, x: Any, offset: jax.Array | None = None) -> jax.Array:
        """Return the predictions of stored examples x (n, d), plus their ``offset`` (n,) if they have one."""
        predictions = self.objective.predict(w, self.features(x, w.dtype))
        return predictions if offset is None else predictions + offset

    def _predict_batch(self, w: Vector, batch: Batch) -> jax.Array:
        if batch.basis is None:
            return self.predict(w, batch.x, batch.offset)
        predictions = self.objective.predict(to_coordinates(w, batch.basis), batch.x)
        return predictions if batch.offset is None else predictions + batch.offset

    def ridge(self, w: Vector) -> jax.Array:
        """Return ridge / 2 ||w||^2 over the parameters that the objective regularizes."""
        weights = Vector({name: w[name] for name in self.objective.regularized})
        return self.objective.ridge / 2 * weights.dot(weights)

    def loss(self, w: Vector, batch: Batch | Quadratic) -> jax.Array:
        """Return f(w; batch), the weighted mean loss plus the ridge of the objective.

        Each derivative of the loss, by ``jax.grad`` for example, counts as a gradient, and so does a value without one.
        """
        return mark_value(self.line_search_loss(w, batch), batch.counts)

    def line_search_loss(self, w: Vector, batch: Batch | Quadratic) -> jax.Array:
        """Return f(w; batch) as ``loss`` does, for a solver that tries steps: derivatives count, and values do not."""
        related = (batch.curvature, batch.linear) if isinstance(batch, Quadratic) else (batch.x, batch.y, batch.weight)
        related = jax.tree.leaves(related)  # sparse examples are several arrays
        return self._loss(mark_derivatives(w, batch.counts, *related), batch)

    def _loss(self, w: Vector, batch: Batch | Quadratic) -> jax.Array:
        if isinstance(batch, Quadratic):
            return batch.value(w)
        predictions = self._predict_batch(w, batch)
        mean = batch.weight @ self.objective.client_losses(predictions, batch.y, batch.weight, batch.client)
        return mean + self.ridge(w) if self.objective.ridge else mean

    def row_shares(self, w: Vector, batch: Batch) -> jax.Array:
        """Return how much each row counts in the gradient, and in the Hessian, of the loss at w, (2, n)."""
        return self.objective.row_shares(self._predict_batch(w, batch), batch.y, batch.weight, batch.client)

    def gradient(self, w: Vector, batch: Batch | Quadratic) -> Vector:
        """Return the gradient of f(. ; batch) at w."""
        return jax.grad(self.loss)(w, batch)

    def hessian_product(self, w: Vector, direction: Vector, batch: Batch | Quadratic) -> Vector:
        """Return the product of the Hessian of f(. ; batch) at w with a direction, counted as a gradient."""
        gradient = jax.grad(self._loss)
        return mark(jax.jvp(lambda point: gradient(point, batch), (w,), (direction,))[1], batch.counts)

    def psi(self, w: Vector) -> jax.Array:
        """Return the value of the regularizer."""
        return sum((self.regularizer.value(w[n]) for n in self.regularized), jnp.zeros((), w.dtype))

    def structure(self, w: Vector, cutoff: float) -> dict[str, jax.Array]:
        """Return the structure metrics of the regularizer, averaged over its parameters with their sizes as weights.

        ``violation`` is the distance from the constraint in all parameters together.
        """
        parts = [(w[name].size, self.regularizer.structure(w[name], cutoff)) for name in self.regularized]
        if not parts:
            return {}
        total = sum(size for size, _ in parts)
        metrics = {name: jnp.stack([size / total * part[name] for size, part in parts]).sum() for name in parts[0][1]}
        if "violation" in metrics:
            metrics["violation"] = jnp.sqrt(sum(part["violation"] ** 2 for _, part in parts))
        return metrics

    def subgradient(self, w: Vector) -> Vector:
        """Return a subgradient of psi at w."""
        return self._map(self.regularizer.subgradient, w, others=jnp.zeros_like)  # type: ignore[attr-defined]

    def prox(self, w: Vector, t: jax.Array | float) -> Vector:
        """Return argmin_u t psi(u) + ||u - w||^2 / 2."""
        return self._count_prox(self._map(lambda p: self.regularizer.prox(p, t), w))

    def nearest_in_domain(self, w: Vector) -> Vector:
        """Return w if psi(w) is finite, else the nearest point where it is."""
        nearest = self._map(lambda p: self.regularizer.prox(p, float(jnp.finfo(p.dtype).eps)), w)
        is_inside = jnp.isfinite(self.psi(w))
        return w.map(lambda p, q: jnp.where(is_inside, p, q), nearest)

    def linear_minimizer(self, gradient: Vector) -> Vector:
        """Return argmin_s <gradient, s> over the domain of psi, which must bound every parameter. Counts as no prox."""
        return self._map(self.regularizer.linear_minimizer, gradient)  # type: ignore[attr-defined]

    def to_dual(self, w: Vector) -> Vector:
        """Return grad h(w)."""
        return self._map(self.mirror.to_dual, w)

    def to_primal(self, z: Vector) -> Vector:
        """Return grad h*(z)."""
        return self._map(self.mirror.to_primal, z)

    def retrieve(self, z: Vector, t: jax.Array | float) -> Vector:
        """Return grad (h + t psi)*(z) = argmin_w h(w) + t psi(w) - <z, w>."""
        return self._count_prox(self._map(lambda p: self.mirror.retrieve(p, t, self.regularizer), z))

    def _count_prox(self, point: Vector) -> Vector:
        return point if isinstance(self.regularizer, NoRegularizer) else mark(point, ONE_PROX)
