"""The ball of the nuclear norm."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.methods.regularizers.balls import NormBall
from fcorun.methods.regularizers.nuclear import check_matrix, singular_values, svd


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
