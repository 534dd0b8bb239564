"""The numbers of largest absolute value."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.methods.communication.sparsifier import Sparsifier, find_largest


@dataclass(frozen=True, kw_only=True)
class TopK(Sparsifier):
    """A channel that sends the numbers of largest absolute value, each with its index in 32 bits."""

    source = "top-k of @stich2018"
    uses_key = False

    def compress(self, vector, key):
        bits = jnp.uint64 if vector.dtype == jnp.float64 else jnp.uint32
        magnitude = jnp.abs(vector).view(bits)  # floats that are not negative have the order of their bits
        return jnp.where(find_largest(magnitude, self.count(vector.size)), vector, 0)

    def message_bits(self, size, number_bits):
        return self.sent_bits(size, number_bits + 32)

    def error_bound(self, size):
        return 1 - self.count(size) / size
