"""A diagonal mirror map."""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax

from fcorun.config import Positive
from fcorun.errors import UserError
from fcorun.mirror_maps.base import MirrorMap
from fcorun.regularizers.balls import L1Ball, L2Ball, LInfBall
from fcorun.regularizers.base import soft_threshold
from fcorun.regularizers.box import Box, Nonneg
from fcorun.regularizers.elastic_net import ElasticNet
from fcorun.regularizers.l1 import L1
from fcorun.regularizers.l1_box import L1Box, L1Nonneg
from fcorun.regularizers.l2 import L2
from fcorun.regularizers.simplex import Simplex, simplex_threshold


def _project(mirror, z, t, psi):
    return psi.project(z / mirror.diagonal(z))


def _l1(mirror, z, t, psi):
    return soft_threshold(z, t * psi.strength) / mirror.diagonal(z)


def _l1_clipped(mirror, z, t, psi):
    return psi.project(_l1(mirror, z, t, psi))


def _l2(mirror, z, t, psi):
    return z / (mirror.diagonal(z) + 2 * t * psi.strength)


def _elastic_net(mirror, z, t, psi):
    shrunk = soft_threshold(z, t * psi.strength * psi.l1_ratio)
    return shrunk / (mirror.diagonal(z) + t * psi.strength * (1 - psi.l1_ratio))


def _simplex(mirror, z, t, psi):
    d = mirror.diagonal(z)
    return jnp.maximum(z - z.max() - simplex_threshold(z, psi.total, 1 / d), 0) / d


def _l1_ball(mirror, z, t, psi):
    d, size = mirror.diagonal(z), jnp.abs(z)
    outside = jnp.maximum(size - size.max() - simplex_threshold(size, psi.radius, 1 / d), 0)
    return jnp.where((size / d).sum() <= psi.radius, z, jnp.sign(z) * outside) / d


def _l2_ball(mirror, z, t, psi):
    """z / (d + theta) with theta >= 0 such that its norm is at most the radius.

    Newton's method on 1 / norm - 1 / radius, which is concave and rising: from the left it never goes too far (Conn,
    Gould and Toint, Trust-Region Methods, 2000, section 7.3).
    """
    d = mirror.diagonal(z)

    def step(state):
        theta, _, count = state
        squares = (z / (d + theta)) ** 2
        square = squares.sum()
        rise = (jnp.sqrt(square) / psi.radius - 1) * square / (squares / (d + theta)).sum()
        return theta + jnp.where(square > 0, jnp.maximum(rise, 0), 0), theta, count + 1

    def rising(state):
        return (state[0] - state[1] > 4 * jnp.finfo(z.dtype).eps * state[0]) & (state[2] < 50)

    start = jnp.maximum(jnp.sqrt((z**2).sum()) / psi.radius - d.max(), 0)
    return psi.project(z / (d + lax.while_loop(rising, step, (start, start - 1, 0))[0]))


@dataclass(frozen=True)
class Diagonal(MirrorMap):
    """h(w) = w' D w / 2 with D = diag(weights); in a matrix a weight is that of a row. Without weights, ones."""

    source = "textbook"

    weights: list[Positive] | None = None

    retrieve_functions = {
        **dict.fromkeys((Box, LInfBall, Nonneg), _project),
        **dict.fromkeys((L1Box, L1Nonneg), _l1_clipped),
        **{L1: _l1, L2: _l2, ElasticNet: _elastic_net, Simplex: _simplex, L1Ball: _l1_ball, L2Ball: _l2_ball},
    }

    def diagonal(self, w):
        """The weight of each entry of w."""
        if self.weights is None:
            return jnp.ones_like(w)
        if len(self.weights) != len(w):
            raise UserError(f"mirror.weights has {len(self.weights)} numbers for {len(w)} features; give one each")
        weights = jnp.asarray(self.weights, w.dtype)
        return jnp.broadcast_to(weights.reshape(-1, *[1] * (w.ndim - 1)), w.shape)

    def to_dual(self, w):
        return self.diagonal(w) * w

    def to_primal(self, z):
        return z / self.diagonal(z)
