"""The matrix product of examples and parameters, fast for many runs at once."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

_COLUMNS = 8  # the number of floats in a vector register, or a divisor of it


@jax.custom_jvp
def matmul(x: Float[Array, " n d"], w: Float[Array, " d *outputs"]) -> Float[Array, " n *outputs"]:
    """Compute x @ w for examples x (n, d) and w (d,) or (d, k), differentiable in w only.

    If w has G runs as a ``vmap`` axis, the function multiplies x by a (d, G) matrix with G padded to a multiple of 8.
    XLA would transpose the product to (G, d) times (d, n), which takes a CPU 1.4 times as long or more. Under
    differentiation the product is a plain x @ w, because gradients are mostly those of small minibatches.
    """
    return _matmul(x, w)


@matmul.defjvp
def _matmul_jvp(primals, tangents):
    x, w = primals
    _, tangent = tangents
    return x @ w, x @ tangent


@jax.custom_batching.custom_vmap
def _matmul(x, w):
    return x @ w


@_matmul.def_vmap
def _matmul_vmap(size, batched, x, w):
    if size == 1 or batched[0]:
        return jax.vmap(jnp.matmul, [0 if is_batched else None for is_batched in batched])(x, w), True
    runs_last = jnp.moveaxis(w, 0, -1)
    columns = runs_last.reshape(len(runs_last), -1)
    padded = jnp.pad(columns, ((0, 0), (0, -columns.shape[1] % _COLUMNS)))
    product = lax.optimization_barrier(x @ padded)  # without the barrier, XLA transposes the product
    product = product[:, : columns.shape[1]].reshape(len(x), *runs_last.shape[1:])
    return jnp.moveaxis(product, -1, 0), True
