"""The l1 norm and the l-infinity norm."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.methods.regularizers.balls import simplex_threshold
from fcorun.methods.regularizers.regularizer import Norm, divide_by_factor, soft_threshold


@jax.custom_jvp
def log_cosh(a):
    """Compute log(cosh(a)) without overflow; the derivative is defined as tanh(a)."""
    return jnp.logaddexp(a, -a) - jnp.log(2.0)


@log_cosh.defjvp
def _(primals, tangents):
    return log_cosh(*primals), jnp.tanh(primals[0]) * tangents[0]


@dataclass(frozen=True)
class L1(Norm):
    """psi(w) = strength * ||w||_1; with factors, strength * sum_j factor_j |w_j|."""

    source = "@tibshirani1996"

    convex = separable = sparse = True

    def value(self, w):
        return self.strength * (self.factor(w) * jnp.abs(w)).sum()

    def prox(self, z, t):
        return soft_threshold(z, t * self.strength * self.factor(z))

    def subgradient(self, w):
        return self.strength * self.factor(w) * jnp.sign(w)

    def smoothed_value(self, w, smoothing, rho):
        """Return psi with |u| replaced by a smooth function.

        ``smoothing`` "logcosh" is rho log cosh(u / rho). "huber" is u^2 / (2 rho) up to rho, and |u| - rho / 2 beyond.
        Both have the smoothness constant strength / rho times the largest factor.
        """
        factor = self.factor(w)
        if smoothing == "logcosh":
            return self.strength * rho * jnp.sum(factor * log_cosh(w / rho))
        size = jnp.abs(w)
        return self.strength * jnp.sum(factor * jnp.where(size <= rho, w**2 / (2 * rho), size - rho / 2))

    def dual_norm(self, v, if_unpenalized):
        return divide_by_factor(jnp.abs(v), self.factor(v), if_unpenalized).max()

    def l1_and_ridge(self, features):
        return self.strength * self.feature_factors(features), np.zeros(features)


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
