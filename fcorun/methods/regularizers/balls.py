"""The simplex, the balls of the l1, l2 and l-infinity norms, and vectors with few nonzero entries."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax

from fcorun.base.config import UNSET, Count, Positive
from fcorun.base.errors import word
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


@dataclass(frozen=True)
class NormBall(Constraint):
    """The ball of a norm: points of a norm of at most ``radius``."""

    radius: Positive = UNSET

    across_clients = {"radius": "min"}


@dataclass(frozen=True)
class L1Ball(NormBall):
    """The l1 ball ||w||_1 <= radius."""

    source = "@duchi2008"

    convex = True

    def project(self, z):
        size = jnp.abs(z)
        # the threshold is relative to the largest entry
        outside = jnp.sign(z) * jnp.maximum(size - size.max() - simplex_threshold(size, self.radius), 0)
        return jnp.where(size.sum() <= self.radius, z, outside)

    def conjugate(self, v):
        return self.radius * jnp.abs(v).max()

    def linear_minimizer(self, gradient):
        entries = gradient.ravel()
        largest = jnp.abs(entries).argmax()
        vertex = jnp.where(entries[largest] > 0, -self.radius, self.radius).astype(gradient.dtype)
        return jnp.where(jnp.arange(entries.size) == largest, vertex, 0).reshape(gradient.shape)

    def minimizer_bytes(self, shape, itemsize):
        return min(INDEX_BYTES + itemsize, super().minimizer_bytes(shape, itemsize))


@dataclass(frozen=True)
class L2Ball(NormBall):
    """The l2 ball ||w||_2 <= radius."""

    source = "textbook"

    convex = True

    def project(self, z):
        largest = jnp.maximum(jnp.abs(z).max(), jnp.finfo(z.dtype).tiny)
        norm = largest * jnp.sqrt(((z / largest) ** 2).sum())  # scaled, so that squares do not overflow
        return z * jnp.where(norm > self.radius, self.radius / norm, 1)

    def conjugate(self, v):
        return self.radius * jnp.sqrt((v**2).sum())

    def linear_minimizer(self, gradient):
        scaled = gradient / jnp.maximum(jnp.abs(gradient).max(), jnp.finfo(gradient.dtype).tiny)
        norm = jnp.sqrt((scaled**2).sum())  # 0 for a gradient of 0, which every point minimizes, also 0
        return -self.radius * scaled / jnp.where(norm > 0, norm, 1)


@dataclass(frozen=True)
class LInfBall(NormBall):
    """The l-infinity ball max_i |w_i| <= radius."""

    source = "textbook"

    convex = True

    def project(self, z):
        return jnp.clip(z, -self.radius, self.radius)

    def conjugate(self, v):
        return self.radius * jnp.abs(v).sum()

    def linear_minimizer(self, gradient):
        return jnp.where(gradient > 0, -self.radius, self.radius).astype(gradient.dtype)

    def minimizer_bytes(self, shape, itemsize):
        signs = -(-math.prod(shape) // 8)  # a bit each
        return min(itemsize + signs, super().minimizer_bytes(shape, itemsize))


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
