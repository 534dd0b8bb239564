"""The squared p-norm."""

import math
from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.errors import UserError
from fcorun.methods.mirror_maps.mirror_map import MirrorMap, retrieve_for_l1
from fcorun.methods.regularizers.box import L1Nonneg, Nonneg
from fcorun.methods.regularizers.l1 import L1


@dataclass(frozen=True)
class PNorm(MirrorMap):
    """h(w) = ||w||_p^2 / 2 with 1 < p <= 2, over all entries of a parameter; the conjugate is ||z||_q^2 / 2.

    The default of p is 2 ln d / (2 ln d - 1) for d entries, for which h is strongly convex in the l1 norm with a
    constant of order 1 / ln d.
    """

    source = "@gentile2003"

    p: float | None = None

    retrieve_functions = {
        L1: retrieve_for_l1,
        Nonneg: lambda mirror, z, t, psi: mirror.to_primal(jnp.maximum(z, 0)),
        L1Nonneg: lambda mirror, z, t, psi: mirror.to_primal(jnp.maximum(z - t * psi.strength, 0)),
    }

    def __post_init__(self):
        if isinstance(self.p, float) and not 1 < self.p <= 2:
            raise UserError(f"`mirror.p={self.p:g}` must be above 1 and at most 2; or `null`, which suits l1")

    def exponent(self, size: int):
        """Return p for a parameter of ``size`` entries."""
        if self.p is not None:
            return self.p
        log = math.log(max(size, math.e))  # keeps p <= 2 for one or two entries
        return 2 * log / (2 * log - 1)

    def to_dual(self, w):
        return _gradient(w, self.exponent(w.size))

    def to_primal(self, z):
        p = self.exponent(z.size)
        return _gradient(z, p / (p - 1))


def _gradient(v, p):
    """Return the gradient of ||v||_p^2 / 2, computed for entries scaled to at most 1, since it is homogeneous."""
    largest = jnp.abs(v).max()
    size = jnp.abs(v) / jnp.where(largest > 0, largest, 1)
    norm = jnp.maximum((size**p).sum(), 1) ** (1 / p)
    return largest * jnp.sign(v) * size ** (p - 1) * norm ** (2 - p)
