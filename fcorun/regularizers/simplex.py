"""The simplex."""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax

from fcorun.config import Positive
from fcorun.regularizers.base import Constraint


@dataclass(frozen=True)
class Simplex(Constraint):
    """w >= 0 and sum_i w_i = total, over all entries of a parameter."""

    source = "@duchi2008"

    total: Positive = 1.0

    convex = True

    def project(self, z):
        return jnp.maximum(z - z.max() - simplex_threshold(z, self.total), 0)

    def dual_scale(self, v):
        return jnp.ones((), v.dtype)

    def conjugate(self, v):
        return self.total * v.max()


def simplex_threshold(z, total, weight=1.0):
    """theta with sum_i weight_i max(z_i - max(z) - theta, 0) = total; max(z) is taken off lest large z lose digits.

    Michelot (J. Optim. Theory Appl. 1986), which is Newton's method: from below it rises to theta, an entry that it
    has passed is out for good, and it is exact once none is. It takes some six passes over z; sorting z takes longer.
    """
    weight = jnp.asarray(weight, z.dtype)
    weight = weight if weight.ndim == 0 else jnp.broadcast_to(weight, z.shape).ravel()
    z = z.ravel() - z.max()  # a vector: over short rows XLA's loops take a CPU several times as long

    def solve(active):
        return (jnp.where(active, weight * z, 0).sum() - total) / jnp.where(active, weight, 0).sum()

    def step(state):
        theta, count, _ = state
        active = z >= theta
        return jnp.maximum(theta, solve(active)), active.sum(), count

    # The largest entry alone must not give more than total: a bound that spares passes where z is large.
    theta = jnp.maximum(solve(z <= 0), -total / weight.min())
    return lax.while_loop(lambda state: state[1] < state[2], step, (theta, z.size, z.size + 1))[0]
