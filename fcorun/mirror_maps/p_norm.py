"""The squared p-norm."""

import math
from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.errors import UserError
from fcorun.mirror_maps.base import MirrorMap
from fcorun.regularizers.base import soft_threshold
from fcorun.regularizers.box import Nonneg
from fcorun.regularizers.l1 import L1
from fcorun.regularizers.l1_box import L1Nonneg


@dataclass(frozen=True)
class PNorm(MirrorMap):
    """h(w) = ||w||_p^2 / 2 with 1 < p <= 2, over all entries of a parameter; its conjugate is ||z||_q^2 / 2.

    Without p, 2 ln d / (2 ln d - 1) for d entries, with which h is strongly convex in the l1 norm at the cost of a
    factor ln d.
    """

    source = "@gentile2003"

    p: float | None = None

    retrieve_functions = {
        L1: lambda mirror, z, t, psi: mirror.to_primal(soft_threshold(z, t * psi.strength)),
        Nonneg: lambda mirror, z, t, psi: mirror.to_primal(jnp.maximum(z, 0)),
        L1Nonneg: lambda mirror, z, t, psi: mirror.to_primal(jnp.maximum(z - t * psi.strength, 0)),
    }

    def __post_init__(self):
        if isinstance(self.p, float) and not 1 < self.p <= 2:
            raise UserError(f"mirror.p={self.p:g} must be above 1 and at most 2; or null, for what suits l1")

    def exponent(self, size: int):
        """p, for a parameter of so many entries."""
        if self.p is not None:
            return self.p
        log = math.log(max(size, math.e))  # p <= 2 also for one entry or two
        return 2 * log / (2 * log - 1)

    def to_dual(self, w):
        return _gradient(w, self.exponent(w.size))

    def to_primal(self, z):
        p = self.exponent(z.size)
        return _gradient(z, p / (p - 1))


def _gradient(v, p):
    """The gradient of ||v||_p^2 / 2. It is homogeneous, so powers are taken of entries of at most 1."""
    largest = jnp.abs(v).max()
    size = jnp.abs(v) / jnp.where(largest > 0, largest, 1)
    norm = jnp.maximum((size**p).sum(), 1) ** (1 / p)
    return largest * jnp.sign(v) * size ** (p - 1) * norm ** (2 - p)
