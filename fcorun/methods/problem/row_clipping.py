"""Gradients of which each row's part is clipped, and which may have noise, for the privacy of rows."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from fcorun.data.rows.sparse_rows import CompressedRows, PaddedRows
from fcorun.methods.problem.operation_counts import mark
from fcorun.methods.problem.problem import Batch, KeyBits, Problem, Quadratic, Vector


@dataclass(frozen=True)
class RowClippedProblem(Problem):
    """The problem of a client that takes the mean of its rows' gradients, each clipped to a norm.

    The norm is that of all parameters together. A gradient whose norm is not finite counts as 0. The ridge, which no
    row determines, is not clipped.

    Attributes:
        clip: the norm, which may be traced.
        draw_noise: returns the noise of a sum of clipped gradients, given their mean, which has its shapes, and the
            bits of a key; None: no noise.
    """

    clip: jax.Array | float = math.inf
    draw_noise: Callable[[Vector, KeyBits], Vector] | None = None

    def gradient(self, w: Vector, batch: Batch | Quadratic) -> Vector:
        """Return the mean of the clipped gradients of the rows of a batch at w, plus the gradient of the ridge.

        The noise of a batch that has a key is as that of a sum, times the largest weight of a row in the mean.
        """
        assert isinstance(batch, Batch)
        without_ridge = replace(self, objective=replace(self.objective, ridge=0.0))

        def clip_gradient(row: Batch) -> Vector:
            gradient = jax.grad(without_ridge._loss)(w, row)
            norm = gradient.norm()
            factor = self.clip / jnp.maximum(norm, self.clip)
            return gradient.map(lambda values: jnp.where(jnp.isfinite(norm), factor * values, 0))

        def add_row(total: Vector, row: tuple[Batch, jax.Array]) -> tuple[Vector, None]:
            content, weight = row
            return total + weight * clip_gradient(content), None

        x = batch.x
        if isinstance(x, CompressedRows):
            x = x[jnp.arange(len(x))]
        rows = Batch(x, batch.y, jnp.ones_like(batch.weight), offset=batch.offset)
        single_rows = jax.tree.map(lambda values: values[:, None], rows)
        if isinstance(x, PaddedRows):  # one after the other, since the gradient of each has all d features
            mean, _ = jax.lax.scan(add_row, w.map(jnp.zeros_like), (single_rows, batch.weight))
        else:
            clipped = jax.vmap(clip_gradient)(single_rows)
            mean = clipped.map(lambda gradients: jnp.tensordot(batch.weight, gradients, 1))
        if self.draw_noise is not None:
            assert batch.noise_key is not None
            mean = mean + batch.weight.max() * self.draw_noise(mean, batch.noise_key)
        return mark(mean + jax.grad(self.ridge)(w), batch.counts)
