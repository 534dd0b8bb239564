"""The l1 norm."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.config import NonNegative, Positive
from fcorun.regularizers.base import Regularizer, soft_threshold


@dataclass(frozen=True)
class L1(Regularizer):
    """psi(w) = strength * ||w||_1."""

    source = "@tibshirani1996"

    strength: NonNegative
    relative: Positive | None = None

    convex = True
    sparse = True
    across_clients = {"strength": "mean"}

    def value(self, w):
        return self.strength * jnp.abs(w).sum()

    def prox(self, z, t):
        return soft_threshold(z, t * self.strength)

    def subgradient(self, w):
        return self.strength * jnp.sign(w)

    def smoothed_value(self, w, law, rho):
        """psi with |u| replaced by rho log cosh(u / rho), or by Huber's function: u^2 / (2 rho) up to rho, and
        |u| - rho / 2 beyond. Both bend strength / rho at most."""
        if law == "logcosh":
            return self.strength * rho * jnp.sum(jnp.logaddexp(w / rho, -w / rho) - jnp.log(2.0))
        size = jnp.abs(w)
        return self.strength * jnp.sum(jnp.where(size <= rho, w**2 / (2 * rho), size - rho / 2))

    def strength_max(self, gradient):
        return jnp.abs(gradient).max()

    def dual_scale(self, v):
        return jnp.minimum(1, self.strength / jnp.maximum(jnp.abs(v).max(), 1e-300))

    def conjugate(self, v):
        return jnp.zeros((), v.dtype)
