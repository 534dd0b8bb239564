"""Compressors that send some of the numbers: the largest, or those at random coordinates."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, UInt

from fcorun.base.config import PositiveFraction
from fcorun.methods.communication.compressor import Compressor

# fraction * size is raised by this share of it, and by no more than this number, before it is rounded: a product that
# is n + 1/2 but for the errors of float32 or float64 then gives n + 1 in both
_ROUNDING, _MAX_ROUNDING = 1e-6, 0.1


@dataclass(frozen=True, kw_only=True)
class Sparsifier(Compressor):
    """A channel that sends some of the numbers of an upload.

    Attributes:
        fraction: the fraction of the numbers that is sent, rounded to a whole number of them, at least one.
    """

    fraction: PositiveFraction = 0.1

    def count(self, size: int) -> jax.Array:
        """Return how many of ``size`` numbers are sent; the fraction may be traced."""
        sent = self.fraction * size
        return jnp.clip(jnp.floor(jnp.minimum(sent * (1 + _ROUNDING), sent + _MAX_ROUNDING) + 0.5), 1, size)

    def sent_bits(self, size: int, bits: int) -> int:
        """Return the bits of a message of ``size`` numbers, of which those sent have so many ``bits`` each."""
        sent = self.fraction * size
        return max(math.floor(min(sent * (1 + _ROUNDING), sent + _MAX_ROUNDING) + 0.5), 1) * bits


def find_largest(values: UInt[Array, " k"], count: jax.Array) -> Bool[Array, " k"]:
    """Return a mask of the ``count`` largest of k integers; of equal ones, the first are taken.

    Bisects the bits of the least of them, which on CPUs is faster than a sort.
    """
    n_bits = 8 * values.dtype.itemsize

    def set_bit(i, threshold):
        candidate = threshold | (jnp.ones((), values.dtype) << jnp.asarray(n_bits - 1 - i, values.dtype))
        return jnp.where((values >= candidate).sum() >= count, candidate, threshold)

    threshold = lax.fori_loop(0, n_bits, set_bit, jnp.zeros((), values.dtype))
    larger, equal = values > threshold, values == threshold
    return larger | (equal & (jnp.cumsum(equal) <= count - larger.sum()))


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
