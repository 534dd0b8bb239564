"""Compressors that send all numbers by fewer bits each: multiples, powers of two, 16 bits, signs."""

import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

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
