"""The squared l2 norm."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import UNSET, NonNegative
from fcorun.methods.regularizers.regularizer import Regularizer, divide_by_factor


@dataclass(frozen=True)
class L2(Regularizer):
    """psi(w) = strength * ||w||_2^2, squared and without 1/2; with factors, strength * sum_j factor_j w_j^2."""

    source = "textbook"

    strength: NonNegative = UNSET

    convex = separable = True
    across_clients = {"strength": "mean"}

    def value(self, w):
        return self.strength * (self.factor(w) * w**2).sum()

    def prox(self, z, t):
        return z / (1 + 2 * t * self.strength * self.factor(z))

    def subgradient(self, w):
        return 2 * self.strength * self.factor(w) * w

    def dual_scale(self, v):
        is_finite = jnp.isfinite(divide_by_factor(jnp.abs(v), self.factor(v), jnp.inf).max())
        return jnp.where((jnp.asarray(self.strength) > 0) & is_finite, jnp.ones((), v.dtype), 0)

    def conjugate(self, v):
        strength = jnp.asarray(self.strength)
        squares = divide_by_factor(v**2, self.factor(v), jnp.inf).sum()
        return jnp.where(strength > 0, squares / (4 * jnp.where(strength > 0, strength, 1)), 0.0)
