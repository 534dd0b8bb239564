"""Quantization at random, QSGD."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fcorun.base.config import Count
from fcorun.methods.communication.compressor import Compressor


@dataclass(frozen=True, kw_only=True)
class QSGD(Compressor):
    """A channel that rounds |v_i| / |v| of an upload v at random to a multiple of 1 / levels, with expectation v.

    A message has the norm, and the sign and the multiple of each number in ceil(log2(levels + 1)) bits. The paper's
    Elias code, which saves more where most multiples are 0, is not used.

    Attributes:
        levels: the number of multiples besides 0.
    """

    levels: Count = 15

    unbiased = True

    source = "QSGD of @alistarh2017"

    def compress(self, vector, key):
        norm = jnp.linalg.norm(vector)
        scaled = self.levels * jnp.abs(vector) / jnp.where(norm > 0, norm, 1)
        multiple = jnp.floor(scaled + jax.random.uniform(key, vector.shape, vector.dtype))
        multiple = jnp.minimum(multiple, self.levels)  # rounding may exceed it
        return norm * jnp.sign(vector) * multiple / self.levels

    def message_bits(self, size, number_bits):
        return number_bits + size * (1 + math.ceil(math.log2(self.levels + 1)))

    def error_bound(self, size):
        return min(size / self.levels**2, math.sqrt(size) / self.levels)
