"""The elastic net."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.config import Fraction, NonNegative, Positive
from fcorun.regularizers.base import Regularizer, soft_threshold


@dataclass(frozen=True)
class ElasticNet(Regularizer):
    """psi(w) = strength * (l1_ratio ||w||_1 + (1 - l1_ratio) / 2 ||w||_2^2), the form of scikit-learn's ElasticNet."""

    source = "@zou2005"

    strength: NonNegative
    l1_ratio: Fraction = 0.5
    relative: Positive | None = None

    convex = True
    sparse = True
    across_clients = {"strength": "mean"}

    def value(self, w):
        return self.strength * (self.l1_ratio * jnp.abs(w).sum() + (1 - self.l1_ratio) / 2 * (w**2).sum())

    def prox(self, z, t):
        shrunk = soft_threshold(z, t * self.strength * self.l1_ratio)
        return shrunk / (1 + t * self.strength * (1 - self.l1_ratio))

    def subgradient(self, w):
        return self.strength * (self.l1_ratio * jnp.sign(w) + (1 - self.l1_ratio) * w)

    def strength_max(self, gradient):
        return jnp.abs(gradient).max() / self.l1_ratio
