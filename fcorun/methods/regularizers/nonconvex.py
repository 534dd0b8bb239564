"""Penalties that are not convex: log-sum, minimax concave, smoothly clipped absolute deviation."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import UNSET, NonNegative, Positive
from fcorun.base.errors import UserError
from fcorun.methods.regularizers.regularizer import Regularizer, soft_threshold


@dataclass(frozen=True)
class LogSum(Regularizer):
    """psi(w) = strength * sum_j log(1 + |w_j| / epsilon)."""

    source = "@candes2008; the prox as in @praterbennette2022"

    strength: NonNegative = UNSET
    epsilon: Positive = 1.0

    convex = False
    sparse = True
    across_clients = {"strength": "mean"}

    def value(self, w):
        return self.strength * jnp.log1p(jnp.abs(w) / self.epsilon).sum()

    def prox(self, z, t):
        size, strength = jnp.abs(z), t * self.strength
        # the larger root of (size - u) (epsilon + u) = strength, where the derivative is 0
        discriminant = (size + self.epsilon) ** 2 - 4 * strength
        root = size - 2 * strength / (size + self.epsilon + jnp.sqrt(jnp.maximum(discriminant, 0)))
        root = jnp.where(discriminant >= 0, jnp.maximum(root, 0), 0)
        # without convexity 0 may have a smaller value than the root
        is_convex = strength <= self.epsilon**2
        is_better = strength * jnp.log1p(root / self.epsilon) < root * (size - root / 2)
        return jnp.sign(z) * jnp.where(is_convex | is_better, root, 0)


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
        slope = t / self.gamma
        is_convex = slope < 1  # t psi(u) + ||u - z||^2 / 2 as a function of u
        firm = soft_threshold(z, t * self.strength) / jnp.where(is_convex, 1 - slope, 1)
        # near a slope of 1 rounding would be multiplied without bounds
        firm = jnp.where(size <= self.gamma * self.strength, jnp.clip(firm, -size, size), z)
        hard = jnp.where(size > jnp.sqrt(t * self.gamma) * self.strength, z, 0)
        return jnp.where(is_convex, firm, hard)


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
        end = self.gamma * self.strength
        slope = t / (self.gamma - 1)
        is_convex = slope < 1  # t psi(u) + ||u - z||^2 / 2 as a function of u
        soft = soft_threshold(z, t * self.strength)
        # near a slope of 1 rounding would be multiplied without bounds
        middle = soft_threshold(z, slope * end) / jnp.where(is_convex, 1 - slope, 1)
        middle = jnp.clip(jnp.abs(middle), self.strength, size) * jnp.sign(z)
        smooth = jnp.where(size <= (1 + t) * self.strength, soft, middle)
        smooth = jnp.where(size <= end, smooth, z)
        # a jump from the soft threshold to z where both give the same value
        from_zero = jnp.sqrt(t * (self.gamma + 1))
        jump_at = jnp.where(t < self.gamma + 1, (t + self.gamma + 1) / 2, from_zero) * self.strength
        return jnp.where(is_convex, smooth, jnp.where(size > jump_at, z, soft))
