"""The hyperbolic entropy, of entries and of singular values."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import Positive
from fcorun.methods.mirror_maps.mirror_map import MirrorMap, retrieve_for_box, retrieve_for_l1, retrieve_for_l1_box
from fcorun.methods.regularizers.box import Box, L1Box, L1Nonneg, Nonneg
from fcorun.methods.regularizers.l1 import L1
from fcorun.methods.regularizers.nuclear import Nuclear, svd


@dataclass(frozen=True)
class HypEntropy(MirrorMap):
    """h(w) = sum_i w_i arcsinh(w_i / beta) - sqrt(w_i^2 + beta^2), an entropy for w of both signs."""

    source = "@ghai2020"

    beta: Positive = 1.0

    retrieve_functions = {
        L1: retrieve_for_l1,
        **dict.fromkeys((L1Box, L1Nonneg), retrieve_for_l1_box),
        **dict.fromkeys((Box, Nonneg), retrieve_for_box),
    }

    def to_dual(self, w):
        return jnp.arcsinh(w / self.beta)

    def to_primal(self, z):
        return self.beta * jnp.sinh(z)


@dataclass(frozen=True)
class SpectralHypEntropy(MirrorMap):
    """h(W) = sum_i s_i arcsinh(s_i / beta) - sqrt(s_i^2 + beta^2) over the singular values s of a matrix W.

    ``retrieve`` with the nuclear norm shrinks the singular values of the dual.
    """

    source = "@ghai2020"

    beta: Positive = 1.0

    retrieve_functions = {Nuclear: lambda mirror, z, t, psi: mirror.to_primal(z, t * psi.strength)}

    def to_dual(self, w):
        return _map_singular_values(lambda s: jnp.arcsinh(s / self.beta), w)

    def to_primal(self, z, threshold=0.0):
        return _map_singular_values(lambda s: self.beta * jnp.sinh(jnp.maximum(s - threshold, 0)), z)


def _map_singular_values(function, w):
    u, s, vt = svd(w.reshape(w.shape[0], -1))  # treats a vector as a matrix of one column
    return ((u * function(s)[None]) @ vt).reshape(w.shape)
