"""One-dimensional total variation."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import UNSET, NonNegative
from fcorun.methods.regularizers.chain import chain_prox
from fcorun.methods.regularizers.regularizer import Regularizer


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
