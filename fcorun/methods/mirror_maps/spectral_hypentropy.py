"""The hyperbolic entropy of singular values."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import Positive
from fcorun.methods.mirror_maps.mirror_map import MirrorMap
from fcorun.methods.regularizers.nuclear import Nuclear, svd


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
