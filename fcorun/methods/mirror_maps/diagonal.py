"""A diagonal mirror map."""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax

from fcorun.base.config import Positive
from fcorun.base.errors import UserError
from fcorun.methods.mirror_maps.mirror_map import MirrorMap, retrieve_for_box, retrieve_for_l1, retrieve_for_l1_box
from fcorun.methods.regularizers.balls import L1Ball, L2Ball, LInfBall, Simplex, simplex_threshold
from fcorun.methods.regularizers.box import Box, L1Box, L1Nonneg, Nonneg
from fcorun.methods.regularizers.l1 import L1
from fcorun.methods.regularizers.l2 import L2, ElasticNet
from fcorun.methods.regularizers.regularizer import soft_threshold


def _l2(mirror, z, t, psi):
    return z / (mirror.diagonal(z) + 2 * t * psi.strength)


def _elastic_net(mirror, z, t, psi):
    shrunk = soft_threshold(z, t * psi.strength * psi.l1_ratio)
    return shrunk / (mirror.diagonal(z) + t * psi.strength * (1 - psi.l1_ratio))


def _simplex(mirror, z, t, psi):
    d = mirror.diagonal(z)
    # the threshold is relative to the largest entry
    return jnp.maximum(z - z.max() - simplex_threshold(z, psi.total, 1 / d), 0) / d


def _l1_ball(mirror, z, t, psi):
    d = mirror.diagonal(z)
    size = jnp.abs(z)
    # the threshold is relative to the largest entry
    outside = jnp.maximum(size - size.max() - simplex_threshold(size, psi.radius, 1 / d), 0)
    return jnp.where((size / d).sum() <= psi.radius, z, jnp.sign(z) * outside) / d


def _l2_ball(mirror, z, t, psi):
    """Return z / (d + theta) with the smallest theta >= 0 for which its norm is at most the radius.

    The function 1 / norm - 1 / radius of theta is concave and increasing, so Newton's method from the left never
    overshoots (Conn, Gould and Toint, Trust-Region Methods, 2000, section 7.3).
    """
    d = mirror.diagonal(z)

    def step(state):
        theta, _, count = state
        squares = (z / (d + theta)) ** 2
        square = squares.sum()
        increment = (jnp.sqrt(square) / psi.radius - 1) * square / (squares / (d + theta)).sum()
        return theta + jnp.where(square > 0, jnp.maximum(increment, 0), 0), theta, count + 1

    def unfinished(state):
        theta, previous, count = state
        return (theta - previous > 4 * jnp.finfo(z.dtype).eps * theta) & (count < 50)

    largest = jnp.maximum(jnp.abs(z).max(), jnp.finfo(z.dtype).tiny)  # z / largest has squares without overflow
    start = jnp.maximum(largest * jnp.sqrt(((z / largest) ** 2).sum()) / psi.radius - d.max(), 0)
    return psi.project(z / (d + lax.while_loop(unfinished, step, (start, -jnp.inf * jnp.ones_like(start), 0))[0]))


@dataclass(frozen=True)
class Diagonal(MirrorMap):
    """h(w) = w' D w / 2 with D = diag(weights), by default ones; a matrix has one weight for each row."""

    source = "textbook"

    weights: list[Positive] | None = None

    # argmin_w h(w) + t psi(w) - <z, w>, by the class of psi, which is refused with factors of features
    retrieve_functions = {
        **dict.fromkeys((Box, LInfBall, Nonneg), retrieve_for_box),
        **dict.fromkeys((L1Box, L1Nonneg), retrieve_for_l1_box),
        **{
            L1: retrieve_for_l1,
            L2: _l2,
            ElasticNet: _elastic_net,
            Simplex: _simplex,
            L1Ball: _l1_ball,
            L2Ball: _l2_ball,
        },
    }

    def diagonal(self, w):
        """Return the weight of each entry of w."""
        if self.weights is None:
            return jnp.ones_like(w)
        if len(self.weights) != len(w):
            raise UserError(f"`mirror.weights` has {len(self.weights)} numbers for {len(w)} features; give one each")
        weights = jnp.asarray(self.weights, w.dtype)
        return jnp.broadcast_to(weights.reshape(-1, *[1] * (w.ndim - 1)), w.shape)

    def to_dual(self, w):
        return self.diagonal(w) * w

    def to_primal(self, z):
        return z / self.diagonal(z)
