"""The fused lasso."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.config import NonNegative, Positive
from fcorun.regularizers.base import Regularizer, soft_threshold
from fcorun.regularizers.chain import chain_prox
from fcorun.regularizers.tv import pieces, tv_subgradient


@dataclass(frozen=True)
class FusedLasso(Regularizer):
    """psi(w) = strength * ||w||_1 + strength_tv * sum_i |w_(i+1) - w_i|, each column of a matrix by itself.

    Its prox is the soft threshold of that of the total variation.
    """

    source = "@tibshirani2005; the prox as in @friedman2007"

    strength: NonNegative
    strength_tv: NonNegative
    relative: Positive | None = None

    convex = sparse = ordered = True
    across_clients = {"strength": "mean", "strength_tv": "mean"}

    def value(self, w):
        return self.strength * jnp.abs(w).sum() + self.strength_tv * jnp.abs(jnp.diff(w, axis=0)).sum()

    def prox(self, z, t):
        weight = t * self.strength_tv
        return soft_threshold(jnp.where(weight > 0, chain_prox(z, weight, weight), z), t * self.strength)

    def subgradient(self, w):
        return self.strength * jnp.sign(w) + self.strength_tv * tv_subgradient(w)

    def strength_max(self, gradient):
        return jnp.abs(chain_prox(gradient, self.strength_tv, self.strength_tv)).max()

    def structure(self, w, cutoff):
        return super().structure(w, cutoff) | {"pieces": pieces(w, cutoff)}
