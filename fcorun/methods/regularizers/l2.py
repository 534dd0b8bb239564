"""The squared l2 norm, and the elastic net."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from fcorun.base.config import UNSET, Fraction, NonNegative, Positive
from fcorun.methods.regularizers.regularizer import Regularizer, divide_by_factor, largest_scale, soft_threshold


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

    def l1_and_ridge(self, features):
        return np.zeros(features), 2 * self.strength * self.feature_factors(features)


@dataclass(frozen=True)
class ElasticNet(Regularizer):
    """psi(w) = strength * (l1_ratio ||w||_1 + (1 - l1_ratio) / 2 ||w||_2^2), the form of scikit-learn's ElasticNet.

    The ``factors`` of features multiply both parts, as glmnet's penalty.factor does.
    """

    source = "@zou2005"

    strength: NonNegative = UNSET
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

    def dual_scale(self, v):
        largest = divide_by_factor(jnp.abs(v), self.factor(v), jnp.inf).max()
        of_l1 = largest_scale(self.strength * self.l1_ratio, largest)
        # the quadratic term makes the conjugate finite, except for features with factor 0
        return jnp.where(self._curvature > 0, jnp.where(jnp.isinf(largest), 0.0, 1.0), of_l1)

    def conjugate(self, v):
        factor, curvature = self.factor(v), self._curvature
        excess = jnp.maximum(jnp.abs(v) - self.strength * self.l1_ratio * factor, 0)
        squares = divide_by_factor(excess**2, factor, jnp.inf).sum()
        return jnp.where(curvature > 0, squares / (2 * jnp.where(curvature > 0, curvature, 1)), 0.0)

    def l1_and_ridge(self, features):
        both = self.strength * self.feature_factors(features)
        return self.l1_ratio * both, (1 - self.l1_ratio) * both

    @property
    def _curvature(self):
        """The second derivative of the quadratic term of a feature with factor 1."""
        return jnp.asarray(self.strength * (1 - self.l1_ratio))
