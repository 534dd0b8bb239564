"""The product of examples and parameters, fast for many runs at once."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

_COLUMNS = 8  # a processor's registers hold so many numbers, or a multiple of it


@jax.custom_jvp
def matmul(x: Float[Array, " n d"], w: Float[Array, " d *outputs"]) -> Float[Array, " n *outputs"]:
    """x @ w for examples x (n, d) and w (d,) or (d, k). It is differentiable by w; x is data.

    When w has G runs as a ``vmap`` axis, this is one product of x and a (d, G) matrix with G filled up to a multiple of
    8. XLA would turn it around, into one of (G, d) and (d, n), which takes the CPU 1.4 times as long or more. The
    forward product of a gradient is a plain x @ w: batches are small.
    """
    return _product(x, w)


@matmul.defjvp
def _(primals, tangents):
    (x, w), (_, change) = primals, tangents
    return x @ w, x @ change


@jax.custom_batching.custom_vmap
def _product(x, w):
    return x @ w


@_product.def_vmap
def _(size, batched, x, w):
    if size == 1 or batched[0]:
        return jax.vmap(jnp.matmul, [0 if there else None for there in batched])(x, w), True
    wide = jnp.moveaxis(w, 0, -1)
    columns = wide.reshape(len(wide), -1)
    filled = jnp.pad(columns, ((0, 0), (0, -columns.shape[1] % _COLUMNS)))
    found = lax.optimization_barrier(x @ filled)[:, : columns.shape[1]]  # without it, XLA turns the product around
    return jnp.moveaxis(found.reshape(len(x), *wide.shape[1:]), -1, 0), True
