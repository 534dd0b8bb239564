"""Natural compression: powers of two."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fcorun.methods.communication.compressor import Compressor


@dataclass(frozen=True, kw_only=True)
class NaturalCompression(Compressor):
    """A channel that rounds each number at random to a power of two next to it, so that the mean is the number.

    A message has the sign and the exponent of each number: 9 bits of float32, 12 bits of float64.
    """

    unbiased = True

    source = "natural compression of @horvath2022"

    def compress(self, vector, key):
        mantissa, exponent = jnp.frexp(vector)  # 1/2 <= |mantissa| < 1, and 0 for 0
        lower = jnp.ldexp(jnp.sign(vector), exponent - 1)
        rounds_up = jax.random.uniform(key, vector.shape, vector.dtype) < 2 * jnp.abs(mantissa) - 1
        powers = jnp.where(rounds_up, 2 * lower, lower)
        return jnp.where(jnp.isfinite(vector), powers, vector)  # so that a run that diverges is seen

    def message_bits(self, size, number_bits):
        return (12 if number_bits == 64 else 9) * size

    def error_bound(self, size):
        return 1 / 8
