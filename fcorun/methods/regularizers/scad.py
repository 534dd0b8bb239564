"""The smoothly clipped absolute deviation."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import UNSET, NonNegative, Positive
from fcorun.base.errors import UserError
from fcorun.methods.regularizers.regularizer import Regularizer, soft_threshold


@dataclass(frozen=True)
class SCAD(Regularizer):
    """The smoothly clipped absolute deviation: strength |w_j| up to strength, constant from gamma * strength on.

    Between them the derivative falls linearly to 0. A step t of gamma - 1 or more makes the prox jump.
    """

    source = "@fan2001"

    strength: NonNegative = UNSET
    gamma: Positive = 3.7

    convex = False
    sparse = True

    def __post_init__(self):
        if isinstance(self.gamma, float) and self.gamma <= 2:
            raise UserError(f"`reg.gamma={self.gamma:g}` must be above 2 for SCAD: give 3.7, as in its paper")

    def value(self, w):
        end = self.gamma * self.strength
        size = jnp.minimum(jnp.abs(w), end)
        beyond = jnp.maximum(size, self.strength)
        # the integral of the derivative, strength and then (end - u) / (gamma - 1)
        linear = self.strength * jnp.minimum(size, self.strength)
        quadratic = ((end - self.strength) ** 2 - (end - beyond) ** 2) / (2 * (self.gamma - 1))
        return (linear + quadratic).sum()

    def prox(self, z, t):
        size = jnp.abs(z)
        is_convex = t < self.gamma - 1  # t psi(u) + ||u - z||^2 / 2 as a function of u
        soft = soft_threshold(z, t * self.strength)
        slope = t / (self.gamma - 1)
        middle = soft_threshold(z, slope * self.gamma * self.strength) / jnp.where(is_convex, 1 - slope, 1)
        smooth = jnp.where(size <= (1 + t) * self.strength, soft, middle)
        smooth = jnp.where(size <= self.gamma * self.strength, smooth, z)
        # a jump from the soft threshold to z where both give the same value
        from_zero = jnp.sqrt(t * (self.gamma + 1))
        jump_at = jnp.where(t < self.gamma + 1, (t + self.gamma + 1) / 2, from_zero) * self.strength
        return jnp.where(is_convex, smooth, jnp.where(size > jump_at, z, soft))
