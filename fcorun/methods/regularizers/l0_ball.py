"""Vectors with few nonzero entries."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax

from fcorun.base.config import Count
from fcorun.base.errors import word
from fcorun.methods.regularizers.regularizer import Constraint


@dataclass(frozen=True)
class L0Ball(Constraint):
    """At most ``nonzeros`` nonzero entries of a parameter. The projection keeps the largest: a hard threshold."""

    source = "@blumensath2009"

    nonzeros: Count = 10

    convex = False
    sparse = True

    def check(self, shape):
        size = math.prod(shape)
        if self.nonzeros > size:
            raise ValueError(word(f"`reg.nonzeros={self.nonzeros}` is more than the {size} entries of the parameter"))

    def project(self, z):
        entries = z.ravel()
        _, largest = lax.top_k(jnp.abs(entries), self.nonzeros)
        return jnp.zeros_like(entries).at[largest].set(entries[largest]).reshape(z.shape)
