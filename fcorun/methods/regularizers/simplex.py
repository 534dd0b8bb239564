"""The simplex."""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax

from fcorun.base.config import UNSET, Positive
from fcorun.methods.regularizers.regularizer import INDEX_BYTES, Constraint


@dataclass(frozen=True)
class Simplex(Constraint):
    """The simplex w >= 0 and sum_i w_i = total, over all entries of a parameter."""

    source = "@duchi2008"

    total: Positive = UNSET

    convex = True

    def project(self, z):
        # the threshold is relative to the largest entry
        return jnp.maximum(z - z.max() - simplex_threshold(z, self.total), 0)

    def conjugate(self, v):
        return self.total * v.max()

    def linear_minimizer(self, gradient):
        entries = gradient.ravel()
        vertex = jnp.where(jnp.arange(entries.size) == entries.argmin(), self.total, 0)
        return vertex.astype(gradient.dtype).reshape(gradient.shape)

    def minimizer_bytes(self, shape, itemsize):
        return min(INDEX_BYTES + itemsize, super().minimizer_bytes(shape, itemsize))


def simplex_threshold(z, total, weight=1.0):
    """Find theta with sum_i weight_i max(z_i - max(z) - theta, 0) = total.

    Subtracting max(z) keeps the digits of large z. The method of Michelot (J. Optim. Theory Appl. 1986) is Newton's
    method: theta rises from below, entries below theta stay inactive, and theta is exact once no further entry becomes
    inactive. The method takes about six passes over z; sorting z takes longer.
    """
    weight = jnp.asarray(weight, z.dtype)
    weight = weight if weight.ndim == 0 else jnp.broadcast_to(weight, z.shape).ravel()
    z = z.ravel() - z.max()  # as a vector: XLA's loops over short rows take a CPU several times as long

    def solve(active):
        return (jnp.where(active, weight * z, 0).sum() - total) / jnp.where(active, weight, 0).sum()

    def step(state):
        theta, active_count, _ = state
        active = z >= theta
        return jnp.maximum(theta, solve(active)), active.sum(), active_count

    # The term of the largest entry is at most total: a lower bound of theta that saves passes for large z.
    theta = jnp.maximum(solve(jnp.ones_like(z, bool)), -total / weight.min())

    def proceeds(state):
        _, active_count, last_count = state
        return active_count < last_count

    return lax.while_loop(proceeds, step, (theta, z.size, z.size + 1))[0]
