"""Graph-net: sparse weights that vary little between neighbouring voxels."""

from dataclasses import dataclass, field, fields
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fcorun.base.config import UNSET, Fraction, NonNegative, Positive
from fcorun.base.errors import UserError, word
from fcorun.methods.regularizers.regularizer import Regularizer, soft_threshold

_MAX_STEPS = 10_000  # of a prox


@dataclass(frozen=True)
class GraphNet(Regularizer):
    """psi(w) = strength * (l1_ratio ||w||_1 + (1 - l1_ratio) / 2 sum over edges {i, j} of (w_i - w_j)^2).

    The form is that of nilearn's SpaceNet, without the authors' ridge, for each column of a matrix separately. The prox
    has no closed form: see ``prox``.
    """

    source = "@grosenick2013"

    strength: NonNegative = UNSET
    l1_ratio: Fraction = 0.5
    relative: Positive | None = None
    graph: Literal["voxels", "chain"] = "voxels"

    convex = True
    across_clients = {"strength": "mean"}

    @property
    def ordered(self):  # type: ignore[override]
        """Return whether psi depends on the order of the entries."""
        return self.graph == "chain"

    def on_graph(self, neighbours: np.ndarray) -> "GraphNet":
        """Return graph-net on a graph of d nodes; ``neighbours`` (d, k) lists those of each node, padded by d."""
        return _GraphNetOnGraph(**{f.name: getattr(self, f.name) for f in fields(self)}, neighbours=neighbours)

    def neighbour_table(self, count: int) -> np.ndarray:
        """Return the neighbours of each of ``count`` entries. Raises UserError if the graph is unknown."""
        if self.graph != "chain":
            raise UserError("`reg.graph=voxels` needs data that are images: give `reg.graph=chain`")
        indices = np.arange(count)
        return np.stack([np.where(indices > 0, indices - 1, count), indices + 1], axis=1)

    def value(self, w):
        neighbours = self.neighbour_table(len(w))
        differences = jnp.where(_is_neighbour(neighbours, w.ndim + 1), w[:, None] - _padded(w)[neighbours], 0)
        smoothness = (differences**2).sum() / 4  # the sum contains each edge twice
        return self.strength * (self.l1_ratio * jnp.abs(w).sum() + (1 - self.l1_ratio) * smoothness)

    def prox(self, z, t):
        """Compute argmin_w t psi(w) + ||w - z||^2 / 2 by accelerated proximal gradients (Nesterov, 2004, sec. 2.2.1).

        The objective is 1-strongly convex, so the norm of a subgradient bounds the distance to the minimizer. The loop
        stops when the bound is 4 kappa units of rounding of ||z||, or after 10,000 steps. The condition number kappa is
        1 plus t strength (1 - l1_ratio) times twice the largest degree. The loop takes about 15 sqrt(kappa) steps in
        float32, and one step for l1_ratio = 1, for which the soft threshold is exact.
        """
        neighbours = self.neighbour_table(len(z))
        degree = _is_neighbour(neighbours, 2).sum(1)
        threshold = t * self.strength * self.l1_ratio
        smoothing = t * self.strength * (1 - self.l1_ratio)
        kappa = 1 + smoothing * jnp.asarray(2 * int(degree.max(initial=0)), z.dtype)
        momentum = (jnp.sqrt(kappa) - 1) / (jnp.sqrt(kappa) + 1)
        tolerance = 4 * jnp.finfo(z.dtype).eps * kappa * jnp.sqrt((z**2).sum())
        degree = jnp.asarray(degree, z.dtype).reshape(-1, *[1] * (z.ndim - 1))

        def laplacian(w):
            return degree * w - _padded(w)[neighbours].sum(1)

        def step(state):
            w, laplacian_w, v, laplacian_v, _, count = state
            new = soft_threshold(v - (v - z + smoothing * laplacian_v) / kappa, threshold / kappa)
            laplacian_new = laplacian(new)
            residual = (kappa - 1) * (v - new) - smoothing * (laplacian_v - laplacian_new)
            v = new + momentum * (new - w)
            laplacian_v = laplacian_new + momentum * (laplacian_new - laplacian_w)
            return new, laplacian_new, v, laplacian_v, jnp.sqrt((residual**2).sum()), count + 1

        def unfinished(state):
            residual_norm, count = state[4:]
            return (residual_norm > tolerance) & (count < _MAX_STEPS)

        start = soft_threshold(z, threshold)
        laplacian_start = laplacian(start)
        state = (start, laplacian_start, start, laplacian_start, jnp.full((), jnp.inf, z.dtype), 0)
        return lax.while_loop(unfinished, step, state)[0]

    def subgradient(self, w):
        neighbours = self.neighbour_table(len(w))
        degree = jnp.asarray(_is_neighbour(neighbours, 2).sum(1), w.dtype).reshape(-1, *[1] * (w.ndim - 1))
        laplacian = degree * w - _padded(w)[neighbours].sum(1)
        return self.strength * (self.l1_ratio * jnp.sign(w) + (1 - self.l1_ratio) * laplacian)

    def strength_max(self, gradient):
        return jnp.abs(gradient).max() / self.l1_ratio  # at w = 0 the gradient of the differences is 0


@dataclass(frozen=True, kw_only=True)
class _GraphNetOnGraph(GraphNet):
    """Graph-net on the graph of a data set."""

    neighbours: Any = field(default=None, compare=False, repr=False)

    convex = True

    def check(self, shape):
        if shape[0] != len(self.neighbours):
            raise ValueError(word(f"its graph has {len(self.neighbours)} voxels; leave it out of `reg.apply_to`"))

    def neighbour_table(self, count):
        return self.neighbours


def _is_neighbour(neighbours: np.ndarray, axes: int) -> np.ndarray:
    """Return a mask of the neighbours that are no padding, with so many axes."""
    return (neighbours < len(neighbours)).reshape(*neighbours.shape, *[1] * (axes - 2))


def _padded(w: jax.Array) -> jax.Array:
    """Append an entry 0 to w, to which the padding of the neighbours refers."""
    return jnp.concatenate([w, jnp.zeros_like(w[:1])])
