"""The nuclear norm, the sum of the singular values: its prox makes matrices of low rank."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.custom_batching import sequential_vmap

from fcorun.config import NonNegative, Positive
from fcorun.regularizers.base import Regularizer


@dataclass(frozen=True)
class Nuclear(Regularizer):
    """psi(W) = strength * the sum of the singular values of W."""

    source = "@cai2010"

    strength: NonNegative
    relative: Positive | None = None

    convex = True
    across_clients = {"strength": "mean"}

    def check(self, shape):
        check_matrix(shape)

    def value(self, w):
        return self.strength * singular_values(w).sum()

    def prox(self, z, t):
        return threshold_singular_values(z, t * self.strength)

    def subgradient(self, w):
        u, s, vt = svd(w)
        nonzero = s > s.max() * max(w.shape) * jnp.finfo(w.dtype).eps
        return self.strength * (u * nonzero[None]) @ vt

    def strength_max(self, gradient):
        return singular_values(gradient).max()

    def dual_scale(self, v):
        return jnp.minimum(1, self.strength / jnp.maximum(singular_values(v).max(), 1e-300))

    def conjugate(self, v):
        return jnp.zeros((), v.dtype)

    def structure(self, w, cutoff):
        return {"rank": (singular_values(w) > cutoff).sum(dtype=w.dtype)}


def check_matrix(shape: tuple[int, ...]) -> None:
    """Raises ValueError unless a parameter of this shape is a matrix."""
    if len(shape) != 2:
        raise ValueError("it acts on a matrix, such as data=lowrank and tasks of several classes have")


def _svd(w):
    return tuple(jnp.linalg.svd(w, full_matrices=False))


def _values(w):
    return jnp.linalg.svd(w, compute_uv=False)


# jaxlib 0.10 spreads a batch of LAPACK calls over XLA's threads and blocks the one that does so: programs that run side
# by side, as the batches of a grid do, may then wait for one another forever. One call at a time has nothing to spread.
_svd_alone, _values_alone = sequential_vmap(_svd), sequential_vmap(_values)


def svd(w: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The singular value decomposition (u, s, vt) of a matrix."""
    return (_svd_alone if jax.default_backend() == "cpu" else _svd)(w)


def singular_values(w: jax.Array) -> jax.Array:
    """The singular values of a matrix, largest first."""
    return (_values_alone if jax.default_backend() == "cpu" else _values)(w)


def threshold_singular_values(z: jax.Array, t: jax.Array | float) -> jax.Array:
    """U max(S - t, 0) V' for z = U S V'; in float32 by matrix products alone, which a batch does best.

    scripts/nuclear_prox.py times it beside singular value and eigenvalue decompositions.
    """
    t = jnp.asarray(t, z.dtype)
    if z.dtype == jnp.float64:
        u, s, vt = svd(z)
        result = (u * jnp.maximum(s - t, 0)[None]) @ vt
    else:
        result = _shrink(z, t) if z.shape[0] <= z.shape[1] else _shrink(z.T, t).T
    return jnp.where(t > 0, result, z)


def _scales(low, floor=0.1):
    """How the iteration X <- X (3 I - X'X) / 2 is to scale X before each step, if its spectrum is in [low, 1].

    The scale that is best for the interval (Chen and Chow, 2014) would send 1 to where ``low`` goes, and rounding would
    then mix singular vectors; the best for [floor, 1] costs a step more and keeps large singular values large.
    """
    low = jnp.maximum(low, floor) if isinstance(low, jax.Array) else max(low, floor)
    return (3 / (1 + low + low * low)) ** 0.5


def _step(x, product, scale):
    return 1.5 * scale * x - 0.5 * scale**3 * product


def _grown(low, scale):
    return scale * low * (3 - (scale * low) ** 2) / 2


_NEAR = 1e-5  # singular values nearer to t than this share of the norm may be left a share of their distance from it


def _schedule(low):
    """The scales that take an eigenvalue from ``low`` to 1."""
    scales = []
    while low < 1 - 1e-7:
        scales.append(_scales(low))
        low = _grown(low, scales[-1])
    return scales


@jax.default_matmul_precision("highest")
def _shrink(z: jax.Array, t: jax.Array) -> jax.Array:
    """(I + sign(H - t I)) (Z - t Q) / 2 for Z = H Q, m x n with m <= n, in which Q need be orthogonal only where H
    exceeds t.

    Matrices are multiplied as such, and added up as vectors: XLA's loops over rows as short as these take a CPU seven
    times as long, and products with a transposed first factor three times.
    """
    m, n = z.shape
    norm = jnp.sqrt((z * z).sum())
    norm = jnp.where(norm > 0, norm, 1)
    z, t = z / norm, jnp.minimum(t / norm, 2)
    gram = z @ z.T
    gram = gram @ gram
    top = 1.00001 * (gram * gram).sum() ** 0.125  # at least the largest singular value
    top = jnp.where(top > 0, top, 1)

    def unfinished(state):
        return (state[1] < 1 - 4e-7) & (state[2] < 18)

    def advance(state):
        x, low, count = state
        scale, wide = _scales(low), x.reshape(m, n)
        return _step(x, (wide @ wide.T @ wide).ravel(), scale), _grown(low, scale), count + 1

    def towards_sign(x, scale):
        square = x.reshape(m, m)
        return _step(x, (square @ (square @ square)).ravel(), scale), None

    start = (z.ravel() / top, jnp.clip(t / top, _NEAR, 1), 0)
    q = jax.lax.while_loop(unfinished, advance, start)[0].reshape(m, n)
    h, eye = z @ q.T, jnp.eye(m, dtype=z.dtype)
    sign = ((h + h.T) / 2 - t * eye) / (1.00001 * jnp.maximum(t, top - t))
    scales = jnp.array(_schedule(_NEAR), z.dtype)
    sign = jax.lax.scan(towards_sign, sign.ravel(), scales)[0].reshape(m, m)
    none = jnp.trace(sign) < 0.5 - m
    return jnp.where(none, 0, norm / 2 * ((eye + sign) @ (z - t * q)))
