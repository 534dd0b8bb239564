"""Signs with a common size."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.methods.communication.compressor import Compressor


@dataclass(frozen=True, kw_only=True)
class ScaledSign(Compressor):
    """A channel that sends the sign of each number, one bit, and the mean of their absolute values."""

    source = "the scaled sign of @karimireddy2019"
    uses_key = False

    def compress(self, vector, key):
        return jnp.abs(vector).mean() * jnp.where(vector >= 0, 1, -1).astype(vector.dtype)

    def message_bits(self, size, number_bits):
        return number_bits + size

    def error_bound(self, size):
        return 1 - 1 / size
