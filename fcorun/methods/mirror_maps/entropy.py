"""The negative entropy, and the hyperbolic entropy of entries and of singular values."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fcorun.base.config import Positive
from fcorun.base.errors import UserError
from fcorun.methods.mirror_maps.mirror_map import MirrorMap, retrieve_for_box, retrieve_for_l1, retrieve_for_l1_box
from fcorun.methods.regularizers.balls import Simplex
from fcorun.methods.regularizers.box import Box, L1Box, L1Nonneg, Nonneg
from fcorun.methods.regularizers.l1 import L1
from fcorun.methods.regularizers.nuclear import Nuclear, svd


def _simplex(mirror, z, t, psi):
    return psi.total * jax.nn.softmax(z.ravel()).reshape(z.shape)


def _l1(mirror, z, t, psi):
    return jnp.exp(z - t * psi.strength)


@dataclass(frozen=True)
class Entropy(MirrorMap):
    """h(w) = sum_i w_i ln w_i - w_i, on w >= 0; with the simplex, methods become exponentiated gradient methods.

    Entries of w are positive, or 0 by underflow. Without a simplex w starts at ones.
    """

    source = "@kivinen1997"
    retrieve_functions = {
        Simplex: _simplex,
        L1: _l1,
        L1Nonneg: _l1,
        Nonneg: lambda mirror, z, t, psi: jnp.exp(z),
        Box: lambda mirror, z, t, psi: jnp.clip(jnp.exp(z), psi.lower, psi.upper),
    }

    def supports(self, psi):
        if isinstance(psi, Box) and isinstance(psi.upper, float) and psi.upper <= 0:
            raise UserError(f"`mirror=entropy` needs positive w, and `reg.upper={psi.upper:g}` allows none; raise it")
        return super().supports(psi)

    def domain_contains(self, psi):
        lower = psi.lower if isinstance(psi, Box) else None
        return isinstance(psi, (Simplex, Nonneg, L1Nonneg)) or (lower is not None and lower >= 0)

    def to_dual(self, w):
        return jnp.log(w)

    def to_primal(self, z):
        return jnp.exp(z)


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
