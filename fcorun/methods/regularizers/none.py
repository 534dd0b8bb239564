"""No regularizer."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.methods.regularizers.regularizer import Regularizer


@dataclass(frozen=True)
class NoRegularizer(Regularizer):
    """psi = 0."""

    source = "textbook"
    convex = True

    def value(self, w):
        return jnp.zeros((), w.dtype)

    def prox(self, z, t):
        return z

    def subgradient(self, w):
        return jnp.zeros_like(w)
