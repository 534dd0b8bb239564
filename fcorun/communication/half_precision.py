"""Numbers of 16 bits."""

from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp

from fcorun.communication.compressor import Compressor


@dataclass(frozen=True, kw_only=True)
class HalfPrecision(Compressor):
    """A channel that rounds to the nearest number of 16 bits. Numbers outside of the range become the largest one.

    Attributes:
        format: float16, of 11 significant bits and numbers up to 65504; or bfloat16, of 8 significant bits and the
            range of float32.
    """

    format: Literal["float16", "bfloat16"]

    source = "textbook"

    def compress(self, vector, key):
        largest = float(jnp.finfo(self.format).max)
        return jnp.clip(vector, -largest, largest).astype(self.format).astype(vector.dtype)

    def message_bits(self, size, number_bits):
        return 16 * size

    def error_bound(self, size):
        """Return the bound for numbers within the range that are no subnormal ones."""
        return (0.5 * float(jnp.finfo(self.format).eps)) ** 2
