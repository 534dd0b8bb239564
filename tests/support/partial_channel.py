"""A channel of a user, with memories at both sides."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fcorun.base.config import Fraction, NonNegative
from fcorun.base.errors import UserError
from fcorun.methods.communication import Channel


def zeros(shapes):
    return jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)


@dataclass(frozen=True)
class Partial(Channel):
    """Clients send a part of what they owe, and remember the rest. The server adds noise, and remembers the sum."""

    part: Fraction = 0.5
    noise: NonNegative = 0.1

    source = "ours, for tests"

    def check(self, plugins, names, settings):
        if plugins["algo"].has_personal_models:
            raise UserError(f"uplink={names['uplink']} delays algo={names['algo']}: choose an algo without own models")

    def client_memory(self, upload):
        return zeros(upload)

    def server_memory(self, upload):
        return zeros(upload)

    def send(self, upload, memory, key):
        owed = jax.tree.map(jnp.add, upload, memory)
        message = jax.tree.map(lambda v: self.part * v, owed)
        return message, jax.tree.map(jnp.subtract, owed, message)

    def receive(self, mean, memory, key):
        mean = jax.tree.map(lambda v: v + self.noise * jax.random.normal(key, v.shape, v.dtype), mean)
        return mean, jax.tree.map(jnp.add, memory, mean)

    def upload_bytes(self, upload, declared_bytes):
        return declared_bytes // 2
