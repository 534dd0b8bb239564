"""The log-sum penalty."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import UNSET, NonNegative, Positive
from fcorun.methods.regularizers.regularizer import Regularizer


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
