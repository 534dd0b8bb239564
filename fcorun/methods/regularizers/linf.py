"""The l-infinity norm."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.methods.regularizers.regularizer import Norm
from fcorun.methods.regularizers.simplex import simplex_threshold


@dataclass(frozen=True)
class LInf(Norm):
    """psi(w) = strength * max_i |w_i|. The prox clips at the threshold of the l1 ball of radius t * strength."""

    source = "textbook"

    convex = True

    def value(self, w):
        return self.strength * jnp.abs(w).max()

    def prox(self, z, t):
        size = jnp.abs(z)
        bound = jnp.maximum(size.max() + simplex_threshold(size, t * self.strength), 0)
        return jnp.clip(z, -bound, bound)

    def subgradient(self, w):
        largest = jnp.abs(w) == jnp.abs(w).max()
        return self.strength * jnp.sign(w) * largest / largest.sum()

    def dual_norm(self, v, if_unpenalized):
        return jnp.abs(v).sum()
