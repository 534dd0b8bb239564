"""Numbers of 16 bits."""

from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
from jax import lax

from fcorun.methods.communication.compressor import Compressor


@dataclass(frozen=True, kw_only=True)
class HalfPrecision(Compressor):
    """A channel that rounds to the nearest number of 16 bits. Numbers outside of the range become the largest one.

    Attributes:
        format: float16, of 11 significant bits and numbers up to 65504; or bfloat16, of 8 significant bits and the
            range of float32.
    """

    format: Literal["float16", "bfloat16"]

    source = "textbook"
    uses_key = False

    def compress(self, vector, key):
        limits = jnp.finfo(self.format)
        largest, step = float(limits.max), float(limits.smallest_subnormal)
        vector = jnp.clip(vector, -largest, largest)
        # For GPUs, XLA omits a conversion to 16 bits and back, but no reduction of precision.
        rounded = lax.reduce_precision(vector, exponent_bits=limits.nexp, mantissa_bits=limits.nmant)
        if step < float(jnp.finfo(vector.dtype).smallest_normal):  # bfloat16 of float32, whose subnormal numbers are 0
            return rounded
        is_subnormal = jnp.abs(vector) < float(limits.smallest_normal)
        return jnp.where(is_subnormal, jnp.round(vector / step) * step, rounded)

    def message_bits(self, size, number_bits):
        return 16 * size

    def error_bound(self, size):
        """Return the bound for numbers within the range that are no subnormal ones."""
        return (0.5 * float(jnp.finfo(self.format).eps)) ** 2
