"""Gradients of which each row's part is clipped, and which may have noise, for the privacy of rows."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from fcorun.data.rows.features import operation
from fcorun.methods.problem.operation_counts import mark
from fcorun.methods.problem.problem import Batch, KeyBits, Problem, Quadratic, Vector


@operation
def sum_over_rows(x: Any, part: Callable[[Any, Any], Vector], others: Any, weight: jax.Array, zero: Vector) -> Vector:
    """Return the weighted sum of ``part`` of each row, given its features (1, d) and its entry (1,) of each of others.

    ``zero`` is the sum over no rows.
    """
    single_rows = jax.tree.map(lambda values: values[:, None], (x, others))
    return jax.vmap(part)(*single_rows).map(lambda values: jnp.tensordot(weight, values, 1))


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

        def clip_gradient(x: Any, others: tuple) -> Vector:
            y, weight, offset = others
            gradient = jax.grad(without_ridge._loss)(w, Batch(x, y, weight, offset=offset))
            norm = gradient.norm()
            factor = self.clip / jnp.maximum(norm, self.clip)
            return gradient.map(lambda values: jnp.where(jnp.isfinite(norm), factor * values, 0))

        others = batch.y, jnp.ones_like(batch.weight), batch.offset
        mean = sum_over_rows(batch.x, clip_gradient, others, batch.weight, w.map(jnp.zeros_like))
        if self.draw_noise is not None:
            assert batch.noise_key is not None
            mean = mean + batch.weight.max() * self.draw_noise(mean, batch.noise_key)
        return mark(mean + jax.grad(self.ridge)(w), batch.counts)
