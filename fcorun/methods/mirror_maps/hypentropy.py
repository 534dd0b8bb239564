"""The hyperbolic entropy."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import Positive
from fcorun.methods.mirror_maps.mirror_map import MirrorMap
from fcorun.methods.regularizers.box import Box, Nonneg
from fcorun.methods.regularizers.l1 import L1
from fcorun.methods.regularizers.l1_box import L1Box, L1Nonneg
from fcorun.methods.regularizers.regularizer import soft_threshold


def _l1(mirror, z, t, psi):
    return mirror.to_primal(soft_threshold(z, t * psi.strength))


def _clipped(mirror, z, t, psi):
    return psi.project(mirror.to_primal(z))


def _l1_clipped(mirror, z, t, psi):
    return psi.project(_l1(mirror, z, t, psi))


@dataclass(frozen=True)
class HypEntropy(MirrorMap):
    """h(w) = sum_i w_i arcsinh(w_i / beta) - sqrt(w_i^2 + beta^2), an entropy for w of both signs."""

    source = "@ghai2020"

    beta: Positive = 1.0

    retrieve_functions = {L1: _l1, L1Box: _l1_clipped, L1Nonneg: _l1_clipped, Box: _clipped, Nonneg: _clipped}

    def to_dual(self, w):
        return jnp.arcsinh(w / self.beta)

    def to_primal(self, z):
        return self.beta * jnp.sinh(z)
