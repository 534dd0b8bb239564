"""The minimax concave penalty."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import UNSET, NonNegative, Positive
from fcorun.methods.regularizers.regularizer import Regularizer, soft_threshold


@dataclass(frozen=True)
class MCP(Regularizer):
    """The minimax concave penalty, which rises like strength |w_j| at 0 and is constant from gamma * strength on.

    A step t of gamma or more makes the prox a hard threshold.
    """

    source = "@zhang2010"

    strength: NonNegative = UNSET
    gamma: Positive = 3.0

    convex = False
    sparse = True

    def value(self, w):
        size = jnp.minimum(jnp.abs(w), self.gamma * self.strength)
        return (self.strength * size - size**2 / (2 * self.gamma)).sum()

    def prox(self, z, t):
        size = jnp.abs(z)
        is_convex = t < self.gamma  # t psi(u) + ||u - z||^2 / 2 as a function of u
        firm = soft_threshold(z, t * self.strength) / jnp.where(is_convex, 1 - t / self.gamma, 1)
        firm = jnp.where(size <= self.gamma * self.strength, firm, z)
        hard = jnp.where(size > jnp.sqrt(t * self.gamma) * self.strength, z, 0)
        return jnp.where(is_convex, firm, hard)
