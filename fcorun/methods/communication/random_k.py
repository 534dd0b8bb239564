"""Numbers at random coordinates."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fcorun.methods.communication.sparsifier import Sparsifier, find_largest


@dataclass(frozen=True, kw_only=True)
class RandomK(Sparsifier):
    """A channel that sends the numbers at random coordinates, multiplied so that its expectation is the vector.

    The server draws the same coordinates from the same seed, so that no index is sent.
    """

    unbiased = True

    source = "rand-k of @stich2018"

    def compress(self, vector, key):
        n_sent = self.count(vector.size)
        is_sent = find_largest(jax.random.bits(key, vector.shape), n_sent)
        return jnp.where(is_sent, vector * (vector.size / n_sent), 0).astype(vector.dtype)

    def message_bits(self, size, number_bits):
        return self.sent_bits(size, number_bits)

    def error_bound(self, size):
        return size / self.count(size) - 1
