"""The nuclear norm, the sum of the singular values, whose prox yields matrices of low rank, and its ball."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.custom_batching import sequential_vmap

from fcorun.base.errors import word
from fcorun.base.system.machine import compute_policy
from fcorun.methods.regularizers.balls import NormBall
from fcorun.methods.regularizers.regularizer import Norm


@dataclass(frozen=True)
class Nuclear(Norm):
    """psi(W) = strength * sum of the singular values of W."""

    source = "@cai2010"

    convex = True

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

    def dual_norm(self, v, if_unpenalized):
        return singular_values(v).max()

    def structure(self, w, cutoff):
        return {"rank": (singular_values(w) > cutoff).sum(dtype=w.dtype)}


def check_matrix(shape: tuple[int, ...]) -> None:
    """Raise ValueError unless a parameter of this shape is a matrix."""
    if len(shape) != 2:
        raise ValueError(word("it acts on matrices, such as those of `data=lowrank` and of tasks with several classes"))


def _svd(w):
    return tuple(jnp.linalg.svd(w, full_matrices=False))


def _singular_values(w):
    return jnp.linalg.svd(w, compute_uv=False)


_sequential_svd = sequential_vmap(_svd)
_sequential_singular_values = sequential_vmap(_singular_values)


def svd(w: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the singular value decomposition (u, s, vt) of a matrix."""
    return (_sequential_svd if compute_policy().sequential_svd else _svd)(w)


def singular_values(w: jax.Array) -> jax.Array:
    """Return the singular values of a matrix, largest first."""
    return (_sequential_singular_values if compute_policy().sequential_svd else _singular_values)(w)


def threshold_singular_values(z: jax.Array, t: jax.Array | float) -> jax.Array:
    """Compute U max(S - t, 0) V' for z = U S V', in float32 by matrix products alone, which are fast in a batch.

    scripts/nuclear_prox.py compares the time with singular value and eigenvalue decompositions.
    """
    t = jnp.asarray(t, z.dtype)
    if z.dtype == jnp.float64:
        u, s, vt = svd(z)
        result = (u * jnp.maximum(s - t, 0)[None]) @ vt
    else:
        result = _threshold_wide(z, t) if z.shape[0] <= z.shape[1] else _threshold_wide(z.T, t).T
    return jnp.where(t > 0, result, z)


def _step_scale(low, floor=0.1):
    """Return the scale of X before a step of the iteration X <- X (3 I - X'X) / 2, for a spectrum in [low, 1].

    The optimal scale for the interval (Chen and Chow, 2014) would map 1 and ``low`` to the same value, and rounding
    would then mix singular vectors. The optimal scale for [floor, 1] costs one more step, and keeps large singular
    values large.
    """
    low = jnp.maximum(low, floor) if isinstance(low, jax.Array) else max(low, floor)
    return (3 / (1 + low + low * low)) ** 0.5


def _step(x, product, scale):
    return 1.5 * scale * x - 0.5 * scale**3 * product


def _lower_bound_after_step(low, scale):
    return scale * low * (3 - (scale * low) ** 2) / 2


_RESOLUTION = 1e-5  # singular values closer to t than this fraction of the norm are only partly thresholded


@jax.default_matmul_precision("highest")
def _threshold_wide(z: jax.Array, t: jax.Array) -> jax.Array:
    """Compute (I + sign(H - t I)) (Z - t Q) / 2 for Z = H Q, m x n with m <= n.

    Q must be orthogonal only on the eigenspaces of H with eigenvalues above t. Matrices are multiplied as matrices, and
    summed as vectors: XLA's loops over rows as short as these take a CPU seven times as long, and products with a
    transposed first factor three times.
    """
    m, n = z.shape
    norm = jnp.sqrt((z * z).sum())
    norm = jnp.where(norm > 0, norm, 1)
    z = z / norm
    t = jnp.minimum(t / norm, 2)
    gram = z @ z.T
    gram = gram @ gram
    largest = 1.00001 * (gram * gram).sum() ** 0.125  # at least the largest singular value
    largest = jnp.where(largest > 0, largest, 1)

    def unfinished(state):
        _, low, count = state
        return (low < 1 - 4e-7) & (count < 18)

    def polar_step(state):
        x, low, count = state
        scale = _step_scale(low)
        wide = x.reshape(m, n)
        return _step(x, (wide @ wide.T @ wide).ravel(), scale), _lower_bound_after_step(low, scale), count + 1

    def sign_step(x, scale):
        square = x.reshape(m, m)
        return _step(x, (square @ (square @ square)).ravel(), scale), None

    start = (z.ravel() / largest, jnp.clip(t / largest, _RESOLUTION, 1), 0)
    q = jax.lax.while_loop(unfinished, polar_step, start)[0].reshape(m, n)
    h = z @ q.T
    eye = jnp.eye(m, dtype=z.dtype)
    sign = ((h + h.T) / 2 - t * eye) / (1.00001 * jnp.maximum(t, largest - t))
    scales = []
    low = _RESOLUTION
    while low < 1 - 1e-7:  # takes an eigenvalue from the resolution to 1
        scales.append(_step_scale(low))
        low = _lower_bound_after_step(low, scales[-1])
    sign = jax.lax.scan(sign_step, sign.ravel(), jnp.array(scales, z.dtype))[0].reshape(m, m)
    none_above = jnp.trace(sign) < 0.5 - m
    return jnp.where(none_above, 0, norm / 2 * ((eye + sign) @ (z - t * q)))


@dataclass(frozen=True)
class NuclearBall(NormBall):
    """psi(W) = 0 if the singular values of W sum to at most ``radius``, inf otherwise."""

    source = "textbook"

    convex = True

    def check(self, shape):
        check_matrix(shape)

    def project(self, z):
        u, s, vt = svd(z)
        # the threshold is the largest over k of (sum of the k largest - radius) / k
        excess = (jnp.cumsum(s) - self.radius) / jnp.arange(1, len(s) + 1, dtype=s.dtype)
        shrunk = jnp.maximum(s - excess.max(), 0)
        return jnp.where(s.sum() > self.radius, (u * shrunk[None]) @ vt, z)

    def linear_minimizer(self, gradient):
        u, _, vt = svd(gradient)
        return -self.radius * u[:, :1] @ vt[:1]

    def minimizer_bytes(self, shape, itemsize):
        vectors = sum(shape) * itemsize  # two singular vectors, one of them times the radius
        return min(vectors, super().minimizer_bytes(shape, itemsize))

    def structure(self, w, cutoff):
        return {"rank": (singular_values(w) > cutoff).sum(dtype=w.dtype), "violation": self.violation(w)}
