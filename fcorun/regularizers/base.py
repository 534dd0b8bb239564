"""What a regularizer psi is to fcorun: a value, a prox, and the structure it is there to make."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Regularizer(ABC):
    """A regularizer plug-in: a frozen dataclass of its numbers. Each method takes one parameter array, of any shape.

    Two fields are known to fcorun by name, where a regularizer has them: ``strength``, and ``relative``, the strength
    as a fraction of the smallest one at which 0 is optimal (which needs ``strength_max``).

    Optional methods, asked for by name where something needs them:
        subgradient(w): one element of the subdifferential, of w's shape.
        strength_max(gradient): the smallest strength at which 0 is optimal, given the gradient of F at w = 0.
        dual_scale(v), conjugate(v): the largest s in [0, 1] with conjugate(s v) finite, and the convex conjugate of
            psi; they give the centralized solver a duality gap.
    """

    @abstractmethod
    def value(self, w: jax.Array) -> jax.Array:
        """psi(w), a scalar; inf outside the domain."""

    @abstractmethod
    def prox(self, z: jax.Array, t: jax.Array | float) -> jax.Array:
        """argmin_w t psi(w) + ||w - z||^2 / 2, of z's shape; t >= 0 is a scalar."""

    def structure(self, w: jax.Array, cutoff: float) -> dict[str, jax.Array]:
        """Scalar figures of the structure of w; an entry counts as nonzero when its magnitude exceeds ``cutoff``."""
        return {"density": jnp.mean(jnp.abs(w) > cutoff, dtype=w.dtype)}


def soft_threshold(z: jax.Array, t: jax.Array | float) -> jax.Array:
    """S(z, t) = sign(z) max(|z| - t, 0)."""
    return jnp.sign(z) * jnp.maximum(jnp.abs(z) - t, 0)
