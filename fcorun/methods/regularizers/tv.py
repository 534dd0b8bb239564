"""Total variation along a chain, and the fused lasso."""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax

from fcorun.base.config import UNSET, NonNegative, Positive
from fcorun.methods.regularizers.chain import chain_prox
from fcorun.methods.regularizers.regularizer import Regularizer, soft_threshold

_BISECTIONS = 60  # enough to shrink an interval to rounding error


@dataclass(frozen=True)
class TV(Regularizer):
    """psi(w) = strength * sum_i |w_(i+1) - w_i|, for each column of a matrix."""

    source = "@rudin1992"

    strength: NonNegative = UNSET

    convex = True
    ordered = True
    across_clients = {"strength": "mean"}

    def value(self, w):
        return self.strength * jnp.abs(jnp.diff(w, axis=0)).sum()

    def prox(self, z, t):
        return jnp.where(t * self.strength > 0, chain_prox(z, t * self.strength, t * self.strength), z)

    def subgradient(self, w):
        return self.strength * tv_subgradient(w)

    def structure(self, w, cutoff):
        return super().structure(w, cutoff) | {"pieces": count_pieces(w, cutoff)}


def tv_subgradient(w):
    """Return D' sign(D w), where D takes differences along axis 0."""
    zero_row = jnp.zeros_like(w[:1])
    return -jnp.diff(jnp.sign(jnp.diff(w, axis=0)), axis=0, prepend=zero_row, append=zero_row)


def count_pieces(w, cutoff):
    """Count the constant pieces of a vector; for a matrix, average the count over columns."""
    return 1 + jnp.mean((jnp.abs(jnp.diff(w, axis=0)) > cutoff).sum(0), dtype=w.dtype)


@dataclass(frozen=True)
class FusedLasso(Regularizer):
    """psi(w) = strength * ||w||_1 + strength_tv * sum_i |w_(i+1) - w_i|, for each column of a matrix.

    The prox is the soft threshold of the prox of the total variation.
    """

    source = "@tibshirani2005; the prox as in @friedman2007"

    strength: NonNegative = UNSET
    strength_tv: NonNegative | None = None
    relative: Positive | None = None

    convex = sparse = ordered = True
    across_clients = {"strength": "mean", "strength_tv": "mean"}

    @property
    def resolved_strength_tv(self):
        """Return the strength of the total variation: ``strength`` if ``strength_tv`` is None."""
        return self.strength if self.strength_tv is None else self.strength_tv

    def value(self, w):
        return self.strength * jnp.abs(w).sum() + self.resolved_strength_tv * jnp.abs(jnp.diff(w, axis=0)).sum()

    def prox(self, z, t):
        weight = t * self.resolved_strength_tv
        return soft_threshold(jnp.where(weight > 0, chain_prox(z, weight, weight), z), t * self.strength)

    def subgradient(self, w):
        return self.strength * jnp.sign(w) + self.resolved_strength_tv * tv_subgradient(w)

    def strength_max(self, gradient):
        if self.strength_tv is not None:
            return jnp.abs(chain_prox(gradient, self.strength_tv, self.strength_tv)).max()

        # the larger the common strength, the smaller the largest entry of the prox of the total variation
        def bisect(_, interval):
            low, high = interval
            middle = (low + high) / 2
            is_enough = jnp.abs(chain_prox(gradient, middle, middle)).max() <= middle
            return jnp.where(is_enough, low, middle), jnp.where(is_enough, middle, high)

        interval = (jnp.zeros((), gradient.dtype), jnp.abs(gradient).max())
        return lax.fori_loop(0, _BISECTIONS, bisect, interval)[1]

    def structure(self, w, cutoff):
        return super().structure(w, cutoff) | {"pieces": count_pieces(w, cutoff)}
