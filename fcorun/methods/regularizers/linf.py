"""The l-infinity norm."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import UNSET, NonNegative, Positive
from fcorun.methods.regularizers.regularizer import Regularizer, largest_scale
from fcorun.methods.regularizers.simplex import simplex_threshold


@dataclass(frozen=True)
class LInf(Regularizer):
    """psi(w) = strength * max_i |w_i|. The prox clips at the threshold of the l1 ball of radius t * strength."""

    source = "textbook"

    strength: NonNegative = UNSET
    relative: Positive | None = None

    convex = True
    across_clients = {"strength": "mean"}

    def value(self, w):
        return self.strength * jnp.abs(w).max()

    def prox(self, z, t):
        size = jnp.abs(z)
        bound = jnp.maximum(size.max() + simplex_threshold(size, t * self.strength), 0)
        return jnp.clip(z, -bound, bound)

    def subgradient(self, w):
        largest = jnp.abs(w) == jnp.abs(w).max()
        return self.strength * jnp.sign(w) * largest / largest.sum()

    def strength_max(self, gradient):
        return jnp.abs(gradient).sum()

    def dual_scale(self, v):
        return largest_scale(self.strength, jnp.abs(v).sum())

    def conjugate(self, v):
        return jnp.zeros((), v.dtype)
