"""The group lasso."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from fcorun.config import Count, NonNegative, Positive
from fcorun.regularizers.base import Regularizer, per_factor


@dataclass(frozen=True)
class GroupLasso(Regularizer):
    """psi(w) = strength * sum over groups g of ||w_g||_2.

    The groups of a matrix are its rows, a feature over all classes; those of a vector are consecutive blocks of
    ``group_size``. With factors, which are those of groups, each norm is multiplied by its group's.
    """

    source = "@yuan2006"

    strength: NonNegative
    group_size: Count = 2
    relative: Positive | None = None

    convex = separable = sparse = True
    across_clients = {"strength": "mean"}

    def check(self, shape):
        if len(shape) == 1 and shape[0] % self.group_size:
            raise ValueError(f"{shape[0]} entries are no whole number of groups of reg.group_size={self.group_size}")
        if len(shape) == 1 and self.factors:
            each = np.ones(shape)
            each[[int(number) for number in self.factors]] = list(self.factors.values())
            uneven = np.flatnonzero(np.ptp(each.reshape(-1, self.group_size), axis=1))
            if len(uneven):
                first = uneven[0] * self.group_size
                raise ValueError(f"features {first} to {first + self.group_size - 1} are one group: give them one "
                                 "value in reg.factors")  # fmt: skip

    def groups(self, w):
        """w with one group a row."""
        return w.reshape((-1, self.group_size) if w.ndim == 1 else (w.shape[0], math.prod(w.shape[1:])))

    def norms(self, w):
        """||w_g||_2 of every group, as a column."""
        return jnp.sqrt((self.groups(w) ** 2).sum(1, keepdims=True))

    def value(self, w):
        return self.strength * (self.weight(w) * self.norms(w)).sum()

    def weight(self, w):
        """The factor of every group, as a column."""
        return self.groups(jnp.broadcast_to(self.factor(w), w.shape))[:, :1] if self.factors else 1.0

    def prox(self, z, t):
        norms = self.norms(z)
        shrink = jnp.maximum(norms - t * self.strength * self.weight(z), 0) / jnp.where(norms > 0, norms, 1)
        return (self.groups(z) * shrink).reshape(z.shape)

    def subgradient(self, w):
        norms = self.norms(w)
        return (self.strength * self.weight(w) * self.groups(w) / jnp.where(norms > 0, norms, 1)).reshape(w.shape)

    def strength_max(self, gradient):
        return per_factor(self.norms(gradient), self.weight(gradient), 0.0).max()

    def dual_scale(self, v):
        largest = per_factor(self.norms(v), self.weight(v), jnp.inf).max()
        return jnp.minimum(1, self.strength / jnp.maximum(largest, jnp.finfo(v.dtype).tiny))

    def conjugate(self, v):
        return jnp.zeros((), v.dtype)

    def structure(self, w, cutoff):
        nonzero = (jnp.abs(self.groups(w)) > cutoff).any(1)
        return super().structure(w, cutoff) | {"group_density": jnp.mean(nonzero, dtype=w.dtype)}
