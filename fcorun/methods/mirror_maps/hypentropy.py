"""The hyperbolic entropy."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import Positive
from fcorun.methods.mirror_maps.mirror_map import MirrorMap, retrieve_for_box, retrieve_for_l1, retrieve_for_l1_box
from fcorun.methods.regularizers.box import Box, Nonneg
from fcorun.methods.regularizers.l1 import L1
from fcorun.methods.regularizers.l1_box import L1Box, L1Nonneg


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
