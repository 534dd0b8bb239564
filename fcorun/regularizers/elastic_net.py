"""The elastic net."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.config import AUTO, Fraction, NonNegative, Positive
from fcorun.regularizers.base import Regularizer, divide_by_factor, soft_threshold


@dataclass(frozen=True)
class ElasticNet(Regularizer):
    """psi(w) = strength * (l1_ratio ||w||_1 + (1 - l1_ratio) / 2 ||w||_2^2), the form of scikit-learn's ElasticNet.

    Factors multiply both parts, as glmnet's penalty.factor does.
    """

    source = "@zou2005"

    strength: NonNegative = AUTO
    l1_ratio: Fraction = 0.5
    relative: Positive | None = None

    convex = separable = sparse = True
    across_clients = {"strength": "mean"}

    def value(self, w):
        factor = self.factor(w)
        l1 = (factor * jnp.abs(w)).sum()
        squares = (factor * w**2).sum()
        return self.strength * (self.l1_ratio * l1 + (1 - self.l1_ratio) / 2 * squares)

    def prox(self, z, t):
        strength = t * self.strength * self.factor(z)
        return soft_threshold(z, strength * self.l1_ratio) / (1 + strength * (1 - self.l1_ratio))

    def subgradient(self, w):
        return self.strength * self.factor(w) * (self.l1_ratio * jnp.sign(w) + (1 - self.l1_ratio) * w)

    def strength_max(self, gradient):
        return divide_by_factor(jnp.abs(gradient), self.factor(gradient), 0.0).max() / self.l1_ratio
