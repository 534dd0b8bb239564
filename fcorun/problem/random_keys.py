"""Random keys of JAX as their bits, uint32 (2,), which travel through programs as ordinary arrays."""

import jax
import jax.numpy as jnp

KeyBits = jax.Array | tuple[int, int]


def wrap_key(bits: KeyBits) -> jax.Array:
    """Return the key for ``jax.random`` of these bits."""
    return jax.random.wrap_key_data(jnp.asarray(bits, jnp.uint32), impl="threefry2x32")


def fold_key(bits: KeyBits, number: jax.Array | int) -> jax.Array:
    """Return the bits of a further key, which depends on the key of ``bits`` and on a number."""
    return jax.random.key_data(jax.random.fold_in(wrap_key(bits), number))
