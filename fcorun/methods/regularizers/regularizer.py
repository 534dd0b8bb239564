"""The contract of a regularizer psi: a value, a prox, and the structure that psi promotes; and psi = 0."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fcorun.base.config import UNSET, NonNegative, PluginBase, Positive

Real = Float[Array, ""] | float
INDEX_BYTES = 4  # of an index in a message


@dataclass(frozen=True, kw_only=True)
class Regularizer(PluginBase, ABC):
    """A regularizer plug-in: a frozen dataclass of its numbers. Each method takes one parameter array, of any shape.

    fcorun treats two optional fields specially: ``strength``, and ``relative``, the strength as a fraction of the
    smallest strength at which 0 is optimal. ``relative`` requires ``strength_max``.

    Attributes:
        apply_to: the parameters that psi acts on, each separately; None: the parameters that the objective names.
        per_client: one value for each client of some numbers, {"radius": [1.0, 2.5, ...]}.
        applied_by: the steps that apply psi: those of the clients, those of the server, or both.
        factors: the factors of single features' penalties, {"age": 0.0, "3": 2.0}, by a feature's name or its number
            from 0; other features have factor 1. 0 leaves a feature unpenalized. Names are replaced by numbers before
            psi is evaluated. In the runs of an adaptive path, an array (features,) of all factors.
        separable: whether psi is a sum over features, or over groups of features. The methods of a separable psi
            multiply each term by ``factor(w)``. Not inherited.
        across_clients: the numbers that may differ between clients, and the reduction to the number of the problem as a
            whole: "mean" for a sum of penalties, "min" or "max" for an intersection of constraints.
        convex: whether psi is convex. Not inherited: for a class that does not declare ``convex`` the answer is unknown
            (None), and fcorun certifies no optimum.
        sparse: whether psi sets entries to 0, more entries for a larger ``strength``.
        ordered: whether psi depends on the order of the entries. Voxels of images have no order.
        source: the source of the plug-in, see fcorun.base.sources.catalogue. Not inherited.

    fcorun finds the optional methods by name.

    Optional methods:
        check(shape): raise ValueError, with the fix, if psi cannot act on a parameter of this shape.
        on_graph(neighbours): return psi on a graph of the d features. ``neighbours`` (d, k) lists the neighbours of
            each feature, padded by d. Called for images, whose voxels are neighbours if they share a face.
        on_groups(group_of, names): return psi on groups of the d features, with the group of each feature (d,) and the
            groups' names. Called if the field ``groups`` or the columns of a table group the features.
        subgradient(w): return one element of the subdifferential, of w's shape.
        smoothed_value(w, smoothing, rho): return psi(w) with a smooth function in place of |u|, for pfedmac_s.
        strength_max(gradient): return the smallest strength at which 0 is optimal, given the gradient of F at w = 0.
        linear_minimizer(gradient): return argmin_s <gradient, s> over the domain of psi, which must be bounded, of
            gradient's shape: an extreme point. ``minimizer_bytes`` counts the bytes of a message with the point.
        dual_scale(v), conjugate(v): return the largest s in [0, 1] with conjugate(s v) finite, and the convex conjugate
            of psi at v. A duality gap needs both.
        l1_and_ridge(features): return l1 and ridge, (features,) each, of psi(w) = sum_j l1_j |w_j| + ridge_j w_j^2 / 2,
            in NumPy. Not inherited.
    """

    apply_to: list[str] | None = None
    per_client: dict[str, list[float]] | None = None
    applied_by: Literal["both", "client", "server"] = "both"
    factors: Annotated[dict[str, NonNegative] | None, "default outside identity"] = None

    separable: ClassVar[bool] = False
    across_clients: ClassVar[dict[str, str]] = {}
    convex: ClassVar[bool | None] = None
    sparse: ClassVar[bool] = False
    ordered: ClassVar[bool] = False
    source: ClassVar[str]

    @property
    def strength_or_none(self) -> float | None:
        """The field ``strength``; None for a class without it."""
        return getattr(self, "strength", None)

    @property
    def relative_or_none(self) -> float | None:
        """The field ``relative``; None for a class without it, or if ``strength`` sets the strength."""
        return getattr(self, "relative", None)

    @property
    def path_field(self) -> str:
        """The field that a path varies, "strength" or "radius"; "" for a class without either."""
        return next((name for name in ("strength", "radius") if hasattr(self, name)), "")

    def with_value(self, field_name: str, value: float) -> Self:
        """Return a copy with another strength or radius; the same psi for the name "", of one that has neither."""
        if not field_name:
            return self
        relative = {"relative": None} if field_name == "strength" and hasattr(self, "relative") else {}
        return replace(self, **{field_name: float(value)}, **relative)

    @property
    def depends_on_data(self) -> bool:
        """Return whether psi is complete only with the data: clients' numbers, factors, groups or order of features."""
        has_factors = is_array(self.factors) or bool(self.factors)
        has_groups = hasattr(self, "on_groups") or hasattr(self, "on_graph")
        return bool(self.per_client) or has_factors or has_groups or self.ordered

    @property
    def largest_factor(self) -> float:
        """An upper bound on the factors of all features: the largest of them, and at least 1."""
        if is_array(self.factors):
            return jnp.maximum(1.0, jnp.max(self.factors))  # type: ignore[return-value]
        return max([1.0, *(self.factors or {}).values()])  # features without a factor have 1

    @property
    def has_free_features(self) -> bool:
        """Return whether a feature is unpenalized."""
        if is_array(self.factors):
            return bool(np.any(np.asarray(self.factors) == 0))
        return 0.0 in (self.factors or {}).values()

    def factor(self, w: jax.Array) -> jax.Array | float:
        """Return the factor of each feature, shaped to multiply w (features, ...); 1 if all factors are 1."""
        if not is_array(self.factors) and not self.factors:
            return 1.0
        return jnp.asarray(self.feature_factors(len(w)).reshape(-1, *[1] * (w.ndim - 1)), w.dtype)

    def feature_factors(self, features: int) -> np.ndarray:
        """Return the factor of each feature, (features,)."""
        if is_array(self.factors):
            return self.factors  # type: ignore[return-value]
        factors = np.ones(features)
        for number, factor in (self.factors or {}).items():
            factors[int(number)] = factor
        return factors

    @abstractmethod
    def value(self, w: Float[Array, "*shape"]) -> Float[Array, ""]:
        """Return psi(w), a scalar; inf outside the domain."""

    @abstractmethod
    def prox(self, z: Float[Array, "*shape"], t: Real) -> Float[Array, "*shape"]:
        """Return argmin_w t psi(w) + ||w - z||^2 / 2, of z's shape; t >= 0 is a scalar."""

    def minimizer_bytes(self, shape: tuple[int, ...], itemsize: int) -> int:
        """Return the bytes of a message that holds a point of ``linear_minimizer``, by default those of its array.

        ``itemsize`` are the bytes of a number. A class whose points have few nonzero entries, or a low rank, counts the
        numbers and indices from which the receiver can restore the array.
        """
        return math.prod(shape) * itemsize

    def structure(self, w: Float[Array, "*shape"], cutoff: Real) -> dict[str, Float[Array, ""]]:
        """Return scalar metrics of the structure of w; an entry is nonzero if its magnitude exceeds ``cutoff``."""
        return {"density": jnp.mean(jnp.abs(w) > cutoff, dtype=w.dtype)}


@dataclass(frozen=True, kw_only=True)
class Constraint(Regularizer):
    """The indicator of a closed convex set: 0 in the set, inf outside. The prox is the projection for every t.

    A subclass may add a penalty to the value and to the prox.

    Attributes:
        tolerance: the distance from the set up to which a point counts as feasible, as a fraction of max(1, its norm).
    """

    tolerance: ClassVar[float] = 1e-4

    @abstractmethod
    def project(self, z: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Return the nearest point of the set, of z's shape."""

    def dual_scale(self, v: Float[Array, "*shape"]) -> Float[Array, ""]:
        """Return 1: the conjugate of a bounded set is finite everywhere. A class without ``conjugate`` has no gap."""
        return jnp.ones((), v.dtype)

    def violation(self, w: Float[Array, "*shape"]) -> Float[Array, ""]:
        """Return the distance ||w - project(w)||_2 from the set, a scalar."""
        return jnp.sqrt(((w - self.project(w)) ** 2).sum())

    def value(self, w):
        norm = jnp.sqrt((w**2).sum())
        feasible = (self.violation(w) <= self.tolerance * jnp.maximum(1, norm)) & jnp.isfinite(norm)
        return jnp.where(feasible, 0.0, jnp.inf).astype(w.dtype)

    def prox(self, z, t):
        return self.project(z)

    def structure(self, w, cutoff):
        return super().structure(w, cutoff) | {"violation": self.violation(w)}


@dataclass(frozen=True)
class Norm(Regularizer):
    """psi(w) = strength times a norm, or another gauge, of w, of which the dual norm determines all that follows."""

    strength: NonNegative = UNSET
    relative: Positive | None = field(default=None, kw_only=True)

    across_clients = {"strength": "mean"}

    @abstractmethod
    def dual_norm(self, v: Float[Array, "*shape"], if_unpenalized: float) -> Float[Array, ""]:
        """Return the largest <v, w> over w of norm 1; a nonzero v_j without a penalty is ``if_unpenalized``."""

    def strength_max(self, gradient):
        return self.dual_norm(-gradient, 0.0)

    def dual_scale(self, v):
        return largest_scale(self.strength, self.dual_norm(v, jnp.inf))

    def conjugate(self, v):
        return jnp.zeros((), v.dtype)


def is_array(factors: object) -> bool:
    """Return whether factors are an array, which may be traced, rather than a mapping of names."""
    return hasattr(factors, "dtype")


def divide_by_factor(size: jax.Array, factor: jax.Array | float, if_unpenalized: float) -> jax.Array:
    """Divide magnitudes by their factors; return ``if_unpenalized`` for a nonzero magnitude with factor 0."""
    penalized = jnp.asarray(factor) > 0
    unpenalized_value = jnp.where(size > 0, if_unpenalized, 0.0)
    return jnp.where(penalized, size / jnp.where(penalized, factor, 1), unpenalized_value)


def largest_scale(limit: jax.Array | float, size: jax.Array) -> jax.Array:
    """Return the largest s in [0, 1] with s * size <= limit."""
    fits = size <= limit  # False for NaN, which stays NaN
    return jnp.where(fits, 1.0, limit / jnp.where(fits, 1, size)).astype(size.dtype)


def soft_threshold(z: jax.Array, t: jax.Array | float) -> jax.Array:
    """Compute S(z, t) = sign(z) max(|z| - t, 0)."""
    return jnp.sign(z) * jnp.maximum(jnp.abs(z) - t, 0)


@dataclass(frozen=True)
class NoRegularizer(Regularizer):
    """psi = 0."""

    source = "textbook"
    convex = True

    def value(self, w):
        return jnp.zeros((), w.dtype)

    def prox(self, z, t):
        return z

    def subgradient(self, w):
        return jnp.zeros_like(w)

    def l1_and_ridge(self, features):
        return np.zeros(features), np.zeros(features)
