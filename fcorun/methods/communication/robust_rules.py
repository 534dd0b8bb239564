"""Aggregation rules that stay near the uploads of honest clients where others send anything.

Coordinate-wise rules treat each number by itself. The others take an upload as one vector of all its numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from fcorun.base.config import Count, NonNegative, Positive
from fcorun.base.errors import UserError
from fcorun.methods.algorithms.algorithm import PyTree
from fcorun.methods.communication.aggregation import AggregationRule


def flatten_uploads(uploads: PyTree) -> tuple[jax.Array, Callable[[jax.Array], PyTree]]:
    """Return S uploads as the rows of a matrix, (S, D), and the function that makes an upload of a vector, (D,)."""
    _, unravel = ravel_pytree(jax.tree.map(lambda values: values[0], uploads))
    return jax.vmap(lambda upload: ravel_pytree(upload)[0])(uploads), unravel


def _weight_rounding(weights: jax.Array) -> jax.Array:
    """Return the size below which a difference between sums of weights is rounding, and not an upload's weight."""
    smallest = jnp.min(weights, where=weights > 0, initial=1.0)
    return jnp.minimum(len(weights) * jnp.finfo(weights.dtype).eps, smallest / 4)


def _sort_with_weights(values: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the values (S, ...) in ascending order along their first axis, and the weights in these orders."""
    order = jnp.argsort(values, axis=0)
    return jnp.take_along_axis(values, order, axis=0), weights[order]


def weighted_median(values: jax.Array, weights: jax.Array) -> jax.Array:
    """Return the weighted median of values (S, ...) along their first axis; ``weights`` (S,) sum to one.

    Where two values bound an interval of medians, as the two in the middle of an even number of equal weights do, it is
    the middle of the interval.
    """
    ordered, ordered_weights = _sort_with_weights(values, weights)
    below = jnp.cumsum(ordered_weights, axis=0)
    rounding = _weight_rounding(weights)
    ends = []
    for reaches_half in (below >= 0.5 - rounding, below > 0.5 + rounding):
        first = jnp.argmax(reaches_half, axis=0)
        ends.append(jnp.take_along_axis(ordered, first[None], axis=0)[0])
    return ends[0] / 2 + ends[1] / 2  # the sum of both may be too large for a number


@dataclass(frozen=True)
class CoordinateMedian(AggregationRule):
    """The weighted median of each number of the uploads. It bears wrong uploads of less than half of the weight."""

    source = "option I of algorithm 1 of @yin2018, with weights"

    def count_tolerated(self, n_uploads):
        return (n_uploads - 1) // 2

    def combine(self, uploads, weights):
        return jax.tree.map(lambda values: weighted_median(values, weights), uploads)


@dataclass(frozen=True)
class TrimmedMean(AggregationRule):
    """The mean of each number of the uploads without its largest and its smallest values, by weight.

    Attributes:
        trim: the share of the weight that is cut off at either end, less than 1/2; it bears wrong uploads of this
            share. An upload at a cut counts with the rest of its weight.
    """

    source = "option II of algorithm 1 of @yin2018, with weights"

    trim: NonNegative = 0.2

    def __post_init__(self):
        if isinstance(self.trim, float) and self.trim >= 0.5:
            raise UserError(f"`aggregate.trim={self.trim:g}` leaves no upload between both cuts: give less than 0.5")

    def count_tolerated(self, n_uploads):
        return int(self.trim * n_uploads + 1e-9)

    def combine(self, uploads, weights):
        rounding = _weight_rounding(weights)

        def average(values):
            ordered, ordered_weights = _sort_with_weights(values, weights)
            upper = jnp.cumsum(ordered_weights, axis=0)
            inside = jnp.minimum(upper, 1 - self.trim) - jnp.maximum(upper - ordered_weights, self.trim)
            kept = jnp.where(inside > rounding, inside, 0)
            return (kept / kept.sum(axis=0, keepdims=True) * ordered).sum(axis=0)

        return jax.tree.map(average, uploads)


@dataclass(frozen=True)
class GeometricMedian(AggregationRule):
    """The point with the least sum of weighted distances to the uploads, by Weiszfeld's smoothed iteration.

    The iteration starts at the coordinate-wise median. It bears wrong uploads of less than half of the weight.

    Attributes:
        iterations: the number of iterations.
        smoothing: the distance below which an upload pulls no harder.
    """

    source = "smoothed Weiszfeld algorithm of @pillutla2022, from a median"

    iterations: Count = 32
    smoothing: Positive = 1e-6

    def count_tolerated(self, n_uploads):
        return (n_uploads - 1) // 2

    def combine(self, uploads, weights):
        matrix, unravel = flatten_uploads(uploads)

        def step(_, center):
            pulls = weights / jnp.maximum(jnp.linalg.norm(matrix - center[None], axis=1), self.smoothing)
            return pulls / pulls.sum() @ matrix

        return unravel(lax.fori_loop(0, self.iterations, step, weighted_median(matrix, weights)))


@dataclass(frozen=True)
class ClippedMean(AggregationRule):
    """A centre plus the mean of the uploads' differences to it, each clipped to a radius: centred clipping.

    The paper starts at the last round's centre. Ours is the coordinate-wise median of the round, and the default of the
    radius is ours, too. It bears wrong uploads of less than half of the weight.

    Attributes:
        radius: the largest norm of a difference; null: the weighted median of the norms, anew in each iteration.
        iterations: how often the centre moves.
    """

    source = "centred clipping of @karimireddy2021, from a median"

    radius: Positive | None = None
    iterations: Count = 3

    def count_tolerated(self, n_uploads):
        return (n_uploads - 1) // 2

    def combine(self, uploads, weights):
        matrix, unravel = flatten_uploads(uploads)

        def move(_, center):
            differences = matrix - center[None]
            distances = jnp.linalg.norm(differences, axis=1)
            radius = weighted_median(distances, weights) if self.radius is None else self.radius
            scale = jnp.minimum(1, radius / jnp.where(distances > 0, distances, 1))
            return center + (weights * scale) @ differences

        return unravel(lax.fori_loop(0, self.iterations, move, weighted_median(matrix, weights)))


@dataclass(frozen=True)
class Krum(AggregationRule):
    """The upload that lies nearest to the others, or the mean of several such uploads, multi-Krum.

    The score of one of n uploads is the sum of the squared distances to the n - liars - 2 uploads nearest to it, and
    the least score wins. Weights count in the mean of the kept uploads alone. Dropouts may leave a round fewer uploads
    than the rule needs: then the least distance decides, and nothing is promised.

    Attributes:
        liars: the number f of wrong uploads to bear, of at least 2 f + 3.
        keep: the number of uploads whose mean is taken, at most n - f - 2; 1: Krum.
    """

    source = "Krum and multi-Krum of @blanchard2017"
    divides_weights = False

    liars: Count = 1
    keep: Count = 1

    @property
    def least_uploads(self):
        return max(2 * self.liars + 3, self.keep + self.liars + 2)

    def count_tolerated(self, n_uploads):
        return self.liars if n_uploads >= self.least_uploads else 0

    def combine(self, uploads, weights):
        matrix, unravel = flatten_uploads(uploads)
        arrived = weights > 0
        n_nearest = jnp.maximum(arrived.sum() - self.liars - 2, 1)  # of fewer uploads than the rule needs, the nearest
        positions = jnp.arange(len(weights))

        def score(position):
            squares = jnp.square(matrix - matrix[position][None]).sum(axis=1)
            nearest_first = jnp.sort(jnp.where(arrived & (positions != position), squares, jnp.inf))
            return jnp.sum(nearest_first, where=positions < n_nearest)

        largest = jnp.finfo(matrix.dtype).max  # of an upload without others, or too far from them to be squared
        scores = jnp.where(arrived, jnp.minimum(lax.map(score, positions), largest), jnp.inf)
        best = jnp.argsort(scores)[: self.keep]
        return unravel(weights[best] / weights[best].sum() @ matrix[best])
