"""Graph-net: sparse weights that vary little from a voxel to the next one."""

from dataclasses import dataclass, field, fields
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fcorun.config import Fraction, NonNegative, Positive
from fcorun.errors import UserError
from fcorun.regularizers.base import Regularizer, soft_threshold

_MOST = 10_000  # steps of a prox


@dataclass(frozen=True)
class GraphNet(Regularizer):
    """psi(w) = strength * (l1_ratio ||w||_1 + (1 - l1_ratio) / 2 sum over edges {i, j} of (w_i - w_j)^2).

    Without the ridge of its authors, in the form of nilearn's SpaceNet; each column of a matrix by itself. Its prox has
    no closed form: see ``prox``.

    Attributes:
        graph: "voxels" has an edge between voxels of the mask that share a face, which the data must have; "chain"
            one between each entry and the next one.
    """

    source = "@grosenick2013"

    strength: NonNegative
    l1_ratio: Fraction = 0.5
    relative: Positive | None = None
    graph: Literal["voxels", "chain"] = "voxels"

    convex = True
    across_clients = {"strength": "mean"}

    @property
    def ordered(self):  # type: ignore[override]
        """Whether it goes by the order of the entries."""
        return self.graph == "chain"

    def on_graph(self, neighbours: np.ndarray) -> "GraphNet":
        """The same on a graph of d nodes: those next to each, shape (d, k), d where there are fewer."""
        return _Placed(**{f.name: getattr(self, f.name) for f in fields(self)}, neighbours=neighbours)

    def around(self, count: int) -> np.ndarray:
        """The neighbours of each of ``count`` entries. Raises UserError where the graph is not known."""
        if self.graph != "chain":
            raise UserError("reg.graph=voxels is known where data are images only: give reg.graph=chain")
        places = np.arange(count)
        return np.stack([np.where(places > 0, places - 1, count), places + 1], axis=1)

    def value(self, w):
        around = self.around(len(w))
        apart = jnp.where(_there(around, w.ndim + 1), w[:, None] - _beyond(w)[around], 0)
        smooth = (apart**2).sum() / 4  # each edge is met from both ends
        return self.strength * (self.l1_ratio * jnp.abs(w).sum() + (1 - self.l1_ratio) * smooth)

    def prox(self, z, t):
        """argmin_w t psi(w) + ||w - z||^2 / 2, by accelerated proximal gradients (Nesterov, 2004, section 2.2.1).

        That is 1-strongly convex, so the norm of a subgradient bounds the distance to the minimiser. It stops where the
        bound is 4 kappa units of rounding of ||z||, with kappa the condition number, 1 + t strength (1 - l1_ratio)
        twice the largest degree: some 15 sqrt(kappa) steps in float32; a closed form, one step, for l1_ratio = 1.
        """
        around = self.around(len(z))
        degree = _there(around, 2).sum(1)
        thin, smooth = t * self.strength * self.l1_ratio, t * self.strength * (1 - self.l1_ratio)
        kappa = 1 + smooth * jnp.asarray(2 * int(degree.max(initial=0)), z.dtype)
        momentum = (jnp.sqrt(kappa) - 1) / (jnp.sqrt(kappa) + 1)
        far = 4 * jnp.finfo(z.dtype).eps * kappa * jnp.sqrt((z**2).sum())
        degree = jnp.asarray(degree, z.dtype).reshape(-1, *[1] * (z.ndim - 1))

        def laplacian(w):
            return degree * w - _beyond(w)[around].sum(1)

        def step(state):
            w, after, v, after_v, _, count = state
            new = soft_threshold(v - (v - z + smooth * after_v) / kappa, thin / kappa)
            after_new = laplacian(new)
            residual = (kappa - 1) * (v - new) - smooth * (after_v - after_new)
            ahead, after_ahead = new + momentum * (new - w), after_new + momentum * (after_new - after)
            return new, after_new, ahead, after_ahead, jnp.sqrt((residual**2).sum()), count + 1

        def on(state):
            return (state[4] > far) & (state[5] < _MOST)

        first = soft_threshold(z, thin)
        after = laplacian(first)
        return lax.while_loop(on, step, (first, after, first, after, jnp.full((), jnp.inf, z.dtype), 0))[0]

    def subgradient(self, w):
        around = self.around(len(w))
        degree = jnp.asarray(_there(around, 2).sum(1), w.dtype).reshape(-1, *[1] * (w.ndim - 1))
        smooth = degree * w - _beyond(w)[around].sum(1)
        return self.strength * (self.l1_ratio * jnp.sign(w) + (1 - self.l1_ratio) * smooth)

    def strength_max(self, gradient):
        return jnp.abs(gradient).max() / self.l1_ratio  # the differences of 0 have no slope


@dataclass(frozen=True, kw_only=True)
class _Placed(GraphNet):
    """Graph-net on the graph of some data."""

    neighbours: Any = field(default=None, compare=False, repr=False)

    convex = True

    def check(self, shape):
        if shape[0] != len(self.neighbours):
            raise ValueError(f"its graph has {len(self.neighbours)} voxels; leave it out of reg.apply_to")

    def around(self, count):
        return self.neighbours


def _there(around: np.ndarray, axes: int) -> np.ndarray:
    """Whether there is a neighbour, with as many axes."""
    return (around < len(around)).reshape(*around.shape, *[1] * (axes - 2))


def _beyond(w: jax.Array) -> jax.Array:
    """w with an entry 0 behind it, the neighbour that is not there."""
    return jnp.concatenate([w, jnp.zeros_like(w[:1])])
