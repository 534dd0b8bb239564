"""The negative entropy."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fcorun.base.errors import UserError
from fcorun.methods.mirror_maps.mirror_map import MirrorMap
from fcorun.methods.regularizers.balls import Simplex
from fcorun.methods.regularizers.box import Box, L1Nonneg, Nonneg
from fcorun.methods.regularizers.l1 import L1


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
