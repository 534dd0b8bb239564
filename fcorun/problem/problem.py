"""The problem min F(w) + psi(w), as an algorithm sees it: functions of a vector w."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fcorun.mirror_maps.base import MirrorMap
from fcorun.objectives.base import Objective
from fcorun.objectives.matmul import matmul
from fcorun.problem.operation_counts import ONE_PROX, Counts, mark, mark_derivatives
from fcorun.problem.quadratic import Quadratic
from fcorun.problem.vector import Vector
from fcorun.regularizers.base import Regularizer
from fcorun.regularizers.none import NoRegularizer


class Batch(NamedTuple):
    """Examples x (n, d), targets y (n,), and the weight of each in the mean (n,), which sum to one.

    Where rows have weights of their own, those of a minibatch sum to one in the mean of all that may be drawn.
    ``offset`` (n,) is added to the predictions; None: nothing. With a ``basis`` (r, d), of orthonormal rows or zeros,
    x (n, r) are the features' coordinates in it; None: they are the examples as stored.

    ``present`` (n,) says which rows are examples, where a batch is filled up to a length; None: all are. ``passes`` is
    1 where the batch is a client's whole data, which are counted by their number, and else None.
    """

    x: jax.Array
    y: jax.Array
    weight: jax.Array
    mask: jax.Array | None = None
    full_passes: jax.Array | int | None = None
    offset: jax.Array | None = None
    basis: jax.Array | None = None

    @property
    def counts(self) -> Counts:
        """What a gradient of the mean loss counts: gradients of examples' losses, of a client's whole loss, proxes."""
        if self.full_passes is not None:
            return jnp.stack([0, self.full_passes, 0]).astype(jnp.int32)
        rows = len(self.y) if self.mask is None else self.mask.sum(dtype=jnp.int32)
        return jnp.stack([rows, 0, 0]).astype(jnp.int32)


def to_coordinates(w: Vector, basis: jax.Array) -> Vector:
    """w with its weights (d, *outputs), or of the shape of an example, in a ``basis`` (r, d): (r, *outputs)."""
    weights, features = w["weights"], basis.shape[1]
    outputs = (weights.size // features,) if weights.size > features else ()
    return Vector({**w, "weights": matmul(basis, weights.reshape(features, *outputs))})


@dataclass(frozen=True)
class Problem:
    """min over w of F(w) + psi(w), with the mirror map h.

    w is a Vector of named parameters. psi and h act, parameter by parameter, on those that the regularizer's
    ``apply_to`` or else the objective says are regularised; for the others, the intercept, psi = 0 and h is Euclidean.

    Attributes:
        shapes: of each parameter.
        scale: what stored examples are multiplied by to be features.
        share: of the round's cohort in F: the sum of its clients' weights there, 1 if all take part.
        curvature: (l, L), bounds on the curvature of each client's loss; only where an algorithm asks for them.
    """

    objective: Objective
    regularizer: Regularizer
    mirror: MirrorMap
    shapes: dict[str, tuple[int, ...]]
    scale: float = 1.0
    share: jax.Array | float = 1.0
    curvature: tuple[float, float] | None = None

    @property
    def regularized(self) -> tuple[str, ...]:
        """The parameters that psi acts on."""
        chosen = self.regularizer.apply_to
        return self.objective.regularized if chosen is None else tuple(chosen)

    def with_numbers(self, reg: dict, mirror: dict | None = None) -> "Problem":
        """The same problem with other numbers in its regularizer and mirror map; they may be traced."""
        regularizer, mirror_map = replace(self.regularizer, **reg), replace(self.mirror, **(mirror or {}))
        return replace(self, regularizer=regularizer, mirror=mirror_map)

    def for_side(self, side: str) -> "Problem":
        """The problem as the "client" or the "server" sees it: psi = 0 where it is not the one to apply it."""
        if self.regularizer.applied_by in ("both", side):
            return self
        return replace(self, regularizer=NoRegularizer(apply_to=list(self.regularized)))

    def zeros(self, dtype) -> Vector:
        """w = 0."""
        return Vector({name: jnp.zeros(shape, dtype) for name, shape in self.shapes.items()})

    def initial_point(self, z: Vector) -> Vector:
        """Where to start from: the point of the domain of psi whose dual is z; for z = 0, the minimiser of h there."""
        return self.retrieve(z, 0.0)

    def _map(self, function, vector: Vector, others=lambda v: v) -> Vector:
        """``function`` on each regularised parameter, ``others`` on the rest."""
        chosen = self.regularized
        return Vector({name: (function if name in chosen else others)(v) for name, v in vector.items()})

    def features(self, x: jax.Array, dtype) -> jax.Array:
        """Stored examples (n, d) as features."""
        x = x.astype(dtype)
        return x if self.scale == 1 else x * jnp.asarray(self.scale, dtype)

    def predict(self, w: Vector, x: jax.Array, offset: jax.Array | None = None) -> jax.Array:
        """Predictions of the stored examples x (n, d), to which their ``offset`` (n,) is added, if they have one."""
        found = self.objective.predict(w, self.features(x, w.dtype))
        return found if offset is None else found + offset

    def _predictions(self, w: Vector, batch: Batch) -> jax.Array:
        if batch.basis is None:
            return self.predict(w, batch.x, batch.offset)
        found = self.objective.predict(to_coordinates(w, batch.basis), batch.x)
        return found if batch.offset is None else found + batch.offset

    def ridge(self, w: Vector) -> jax.Array:
        """ridge / 2 ||w||^2 over the parameters that the objective regularises."""
        chosen = Vector({name: w[name] for name in self.objective.regularized})
        return self.objective.ridge / 2 * chosen.dot(chosen)

    def loss(self, w: Vector, batch: Batch | Quadratic) -> jax.Array:
        """f(w; batch), the weighted mean loss, with the objective's ridge.

        Each derivative that is taken of it, by ``jax.grad`` for example, counts as a gradient.
        """
        related = (batch.curvature, batch.linear) if isinstance(batch, Quadratic) else (batch.x, batch.y, batch.weight)
        return self._loss(mark_derivatives(w, batch.counts, *related), batch)

    def _loss(self, w: Vector, batch: Batch | Quadratic) -> jax.Array:
        if isinstance(batch, Quadratic):
            return batch.value(w)
        mean = batch.weight @ self.objective.loss(self._predictions(w, batch), batch.y)
        return mean + self.ridge(w) if self.objective.ridge else mean

    def gradient(self, w: Vector, batch: Batch | Quadratic) -> Vector:
        """The gradient of f(. ; batch) at w."""
        return jax.grad(self.loss)(w, batch)

    def hessian_product(self, w: Vector, direction: Vector, batch: Batch | Quadratic) -> Vector:
        """The product of the Hessian of f(. ; batch) at w with a direction, which counts as a gradient."""
        gradient = jax.grad(self._loss)
        return mark(jax.jvp(lambda at: gradient(at, batch), (w,), (direction,))[1], batch.counts)

    def psi(self, w: Vector) -> jax.Array:
        """The value of the regularizer."""
        return sum((self.regularizer.value(w[n]) for n in self.regularized), jnp.zeros((), w.dtype))

    def structure(self, w: Vector, cutoff: float) -> dict[str, jax.Array]:
        """The regularizer's figures of structure; of several parameters, the mean weighted by their sizes.

        Of ``violation`` it is the distance in all of them together.
        """
        parts = [(w[n].size, self.regularizer.structure(w[n], cutoff)) for n in self.regularized]
        total = sum(size for size, _ in parts)
        names = parts[0][1] if parts else ()
        found = {name: jnp.stack([size / total * part[name] for size, part in parts]).sum() for name in names}
        if "violation" in found:
            found["violation"] = jnp.sqrt(sum(part["violation"] ** 2 for _, part in parts))
        return found

    def subgradient(self, w: Vector) -> Vector:
        """An element of the subdifferential of psi at w."""
        return self._map(self.regularizer.subgradient, w, others=jnp.zeros_like)  # type: ignore[attr-defined]

    def prox(self, w: Vector, t: jax.Array | float) -> Vector:
        """argmin_u t psi(u) + ||u - w||^2 / 2."""
        return self._count_prox(self._map(lambda p: self.regularizer.prox(p, t), w))

    def to_dual(self, w: Vector) -> Vector:
        """grad h(w)."""
        return self._map(self.mirror.to_dual, w)

    def to_primal(self, z: Vector) -> Vector:
        """grad h*(z)."""
        return self._map(self.mirror.to_primal, z)

    def retrieve(self, z: Vector, t: jax.Array | float) -> Vector:
        """grad (h + t psi)*(z) = argmin_w h(w) + t psi(w) - <z, w>."""
        return self._count_prox(self._map(lambda p: self.mirror.retrieve(p, t, self.regularizer), z))

    def _count_prox(self, found: Vector) -> Vector:
        return found if isinstance(self.regularizer, NoRegularizer) else mark(found, ONE_PROX)
