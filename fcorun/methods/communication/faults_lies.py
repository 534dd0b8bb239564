"""Lies about uploads: scaled, noisy, constant and stale ones."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from fcorun.base.config import NonNegative
from fcorun.methods.communication.faults import Liars


@dataclass(frozen=True, kw_only=True)
class FlippedUploads(Liars):
    """Liars that send their upload with the opposite sign."""

    source = "textbook"

    def corrupt(self, array, memory, key):
        return -array, memory


@dataclass(frozen=True, kw_only=True)
class ScaledUploads(Liars):
    """Liars that send a multiple of their upload.

    Attributes:
        factor: the factor.
    """

    source = "textbook"

    factor: float = 10.0

    def corrupt(self, array, memory, key):
        return self.factor * array, memory


@dataclass(frozen=True, kw_only=True)
class NoisyUploads(Liars):
    """Liars that add Gaussian noise to their upload.

    Attributes:
        noise: the standard deviation of the noise, relative to the root of the mean square of each array.
    """

    source = "textbook"

    noise: NonNegative = 10.0

    def corrupt(self, array, memory, key):
        size = jnp.sqrt(jnp.mean(array**2))
        noise = jax.random.normal(key, array.shape, jnp.float32)  # the same in either precision
        return array + (self.noise * size * noise).astype(array.dtype), memory


@dataclass(frozen=True, kw_only=True)
class ConstantUploads(Liars):
    """Liars that send one number in the place of each number of their upload; 0 is that of clients that learn nothing.

    Attributes:
        value: the number.
    """

    source = "textbook"

    value: float = 1.0

    def corrupt(self, array, memory, key):
        return jnp.full_like(array, self.value), memory


@dataclass(frozen=True, kw_only=True)
class StaleUploads(Liars):
    """Liars that send an old upload of theirs; in their first round, that of the round.

    Attributes:
        sends: first: the upload of the client's first round, for ever; last: that of the round before in which the
            client has sent something.
    """

    source = "textbook"

    sends: Literal["first", "last"] = "first"

    def initial_memory(self, array):
        """Return the remembered upload, and whether there is one."""
        return jnp.zeros(array.shape, array.dtype), jnp.zeros((), bool)

    def corrupt(self, array, memory, key):
        remembered, is_known = memory
        sent = jnp.where(is_known, remembered, array)
        return sent, (sent if self.sends == "first" else array, jnp.ones((), bool))
