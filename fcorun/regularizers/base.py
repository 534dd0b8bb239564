"""What a regularizer psi is to fcorun: a value, a prox, and the structure it is there to make."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fcorun.config import NonNegative

Real = Float[Array, ""] | float


@dataclass(frozen=True, kw_only=True)
class Regularizer(ABC):
    """A regularizer plug-in: a frozen dataclass of its numbers. Each method takes one parameter array, of any shape.

    Two fields are known to fcorun by name, where a regularizer has them: ``strength``, and ``relative``, the strength
    as a fraction of the smallest one at which 0 is optimal (which needs ``strength_max``). The others have defaults:

    Attributes:
        apply_to: the parameters that psi acts on, each by itself; None: those that the objective names.
        per_client: a list of one value a client for some of the numbers, {"radius": [1.0, 2.5, ...]}.
        applied_by: whose steps apply psi: those of the clients, those of the server, or both.
        factors: what the penalties of single features are multiplied by, {"age": 0.0, "3": 2.0}, by a feature's name or
            its number from 0; the others have 1. Before it acts, names have become numbers. 0 leaves a feature free.
        separable: whether psi is a sum over features, or over groups of them, each of which takes its factor: then
            its methods multiply by ``factor(w)``. Not inherited.
        across_clients: the numbers that may differ from client to client, and which one the problem as a whole has:
            their "mean" in a sum of penalties, their "min" or "max" in an intersection of constraints.
        convex: whether psi is convex, so that there is one optimum to measure against. Not inherited: of a class that
            does not say so itself it is not known (None), and no optimum with it is certified.
        sparse: whether it is there to make entries 0, the more of them the larger its ``strength``.
        ordered: whether psi goes by the order of the entries, which voxels of images do not have.
        source: where it comes from, as fcorun.sources.catalogue says; not inherited.

    Where a class has further methods, they are found by name.

    Optional methods:
        check(shape): raises ValueError, with what would do, if psi cannot act on a parameter of this shape.
        on_graph(neighbours): psi on a graph of the d features, those next to each, shape (d, k), d for none; called
            where data are images, whose voxels are neighbours when they share a face.
        on_groups(group_of, names): psi on groups of the d features, the group of each, (d,), and the groups' names;
            called where the fields ``groups`` or the columns of a table say which features belong together.
        subgradient(w): one element of the subdifferential, of w's shape.
        strength_max(gradient): the smallest strength at which 0 is optimal, given the gradient of F at w = 0.
        dual_scale(v), conjugate(v): the largest s in [0, 1] with conjugate(s v) finite, and the convex conjugate of
            psi; they give the centralized solver a duality gap.
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
        """Its ``strength``; None where it has none."""
        return getattr(self, "strength", None)

    @property
    def relative_or_none(self) -> float | None:
        """Its ``relative``; None where it has none, or is given by its strength."""
        return getattr(self, "relative", None)

    def with_value(self, field_name: str, value: float) -> Self:
        """The same with a value for its strength, or its radius."""
        relative = {"relative": None} if field_name == "strength" and hasattr(self, "relative") else {}
        return replace(self, **{field_name: float(value)}, **relative)

    @property
    def largest_factor(self) -> float:
        """No feature's factor is more."""
        return max([1.0, *(self.factors or {}).values()])  # those that are not named have 1

    @property
    def has_free_features(self) -> bool:
        """Whether it leaves a feature unpenalised."""
        return 0.0 in (self.factors or {}).values()

    def factor(self, w: jax.Array) -> jax.Array | float:
        """The factor of each feature, shaped to multiply w (features, ...); 1 where all have that."""
        if not self.factors:
            return 1.0
        return jnp.asarray(self.feature_factors(len(w)).reshape(-1, *[1] * (w.ndim - 1)), w.dtype)

    def feature_factors(self, features: int) -> np.ndarray:
        """Return the factor of each of so many features, (features,)."""
        found = np.ones(features)
        for number, factor in (self.factors or {}).items():
            found[int(number)] = factor
        return found

    @abstractmethod
    def value(self, w: Float[Array, "*shape"]) -> Float[Array, ""]:
        """psi(w), a scalar; inf outside the domain."""

    @abstractmethod
    def prox(self, z: Float[Array, "*shape"], t: Real) -> Float[Array, "*shape"]:
        """argmin_w t psi(w) + ||w - z||^2 / 2, of z's shape; t >= 0 is a scalar."""

    def structure(self, w: Float[Array, "*shape"], cutoff: Real) -> dict[str, Float[Array, ""]]:
        """Scalar figures of the structure of w; an entry counts as nonzero when its magnitude exceeds ``cutoff``."""
        return {"density": jnp.mean(jnp.abs(w) > cutoff, dtype=w.dtype)}


@dataclass(frozen=True, kw_only=True)
class Constraint(Regularizer):
    """The indicator of a closed convex set: 0 in it, inf outside. Its prox is the projection, whatever t is.

    Attributes:
        tolerance: how far a point may lie outside, as a share of its norm or of 1 if that is more, and count as in it.
    """

    tolerance: ClassVar[float] = 1e-4

    @abstractmethod
    def project(self, z: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The nearest point of the set, of z's shape."""

    def violation(self, w: Float[Array, "*shape"]) -> Float[Array, ""]:
        """The distance ||w - project(w)||_2 from the set, a scalar."""
        return jnp.sqrt(((w - self.project(w)) ** 2).sum())

    def value(self, w):
        norm = jnp.sqrt((w**2).sum())
        near = (self.violation(w) <= self.tolerance * jnp.maximum(1, norm)) & jnp.isfinite(norm)
        return jnp.where(near, 0.0, jnp.inf).astype(w.dtype)

    def prox(self, z, t):
        return self.project(z)

    def structure(self, w, cutoff):
        return super().structure(w, cutoff) | {"violation": self.violation(w)}


def divide_by_factor(size: jax.Array, factor: jax.Array | float, if_unpenalised: float) -> jax.Array:
    """Magnitudes over their factors; ``free`` where the factor is 0 and the magnitude is not."""
    there = jnp.asarray(factor) > 0
    return jnp.where(there, size / jnp.where(there, factor, 1), jnp.where(size > 0, if_unpenalised, 0.0))


def soft_threshold(z: jax.Array, t: jax.Array | float) -> jax.Array:
    """S(z, t) = sign(z) max(|z| - t, 0)."""
    return jnp.sign(z) * jnp.maximum(jnp.abs(z) - t, 0)
