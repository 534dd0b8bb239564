"""Weighted sums over segments of rows, many weightings at once, and bootstrap weights."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

_CHUNK_ENTRIES = 2**16  # weights that are drawn together, so that they stay in the cache of a core


class RowSegments:
    """Rows in segments: the rows of a segment are adjacent, and no segment is empty.

    Attributes:
        row_segment: the segment of each row, (n,), from 0 to C - 1, never decreasing.
        starts: the first row of each segment, (C,).
    """

    def __init__(self, row_segment: Int[np.ndarray, " n"]):
        self.row_segment = row_segment
        self.starts = np.flatnonzero(np.diff(row_segment, prepend=-1))

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def sizes(self) -> Int[np.ndarray, " C"]:
        """The number of rows of each segment."""
        return np.diff(self.starts, append=len(self.row_segment))

    def total(self, weights: Float[np.ndarray, "B n"], values: np.ndarray | float = 1.0) -> Float[np.ndarray, "B C"]:
        """Return the weighted sum of values over each segment; ``values`` have shape (n,) or (B, n)."""
        if len(self) == 1 and np.ndim(values) == 1:
            return (weights @ values)[:, None]
        return np.add.reduceat(weights * values, self.starts, axis=1)

    def spread(self, values: Float[np.ndarray, "... C"]) -> Float[np.ndarray, "... n"]:
        """Return the value of each row's segment; (..., 1), to be broadcast, for a single segment."""
        if len(self) == 1:
            return values
        return values[..., self.row_segment]


class Units:
    """The units that a bootstrap draws with replacement, separately in each segment: rows, groups, or clients.

    Attributes:
        row_unit: the unit of each row, (n,), from 0 to U - 1. A unit has rows of one segment.
        counts: the number of units of each segment, (C,).
    """

    def __init__(self, row_unit: Int[np.ndarray, " n"], segments: RowSegments):
        unit_segment = np.zeros(int(row_unit.max()) + 1, int)
        unit_segment[row_unit] = segments.row_segment
        self.counts = np.bincount(unit_segment)
        by_segment = np.argsort(unit_segment, kind="stable")
        position = np.empty_like(by_segment)
        position[by_segment] = np.arange(len(by_segment))
        self.row_unit = position[row_unit]  # the units of a segment are adjacent
        self._unit_count = np.repeat(self.counts, self.counts)
        self._unit_start = np.repeat(np.cumsum(self.counts) - self.counts, self.counts)

    def draw_weights(self, rng: np.random.Generator, n_samples: int) -> Float[np.ndarray, "B n"]:
        """Draw how often each row is in each of ``n_samples`` samples: multinomial counts of the rows' units."""
        n_units = len(self._unit_count)
        drawn = self._unit_start + (rng.random((n_samples, n_units)) * self._unit_count).astype(np.int64)
        drawn += n_units * np.arange(n_samples)[:, None]  # numbers of their own in each sample, for one bincount
        counts = np.bincount(drawn.ravel(), minlength=n_samples * n_units).reshape(n_samples, n_units)
        return counts.astype(float)[:, self.row_unit]

    def samples(self, rng: np.random.Generator, n_samples: int) -> Iterator[Float[np.ndarray, "B n"]]:
        """Yield the weights of ``n_samples`` samples in chunks."""
        width = max(_CHUNK_ENTRIES // len(self.row_unit), 1)
        for start in range(0, n_samples, width):
            yield self.draw_weights(rng, min(width, n_samples - start))


def number_units(names: np.ndarray, segments: RowSegments) -> Int[np.ndarray, " n"]:
    """Return a number for each row's unit, (n,), given their names; equal names in two segments are two units."""
    number = np.unique(names, return_inverse=True)[1].astype(np.int64)
    pair = segments.row_segment * (int(number.max()) + 1) + number
    return np.unique(pair, return_inverse=True)[1]


def divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return numerator / denominator, nan where the denominator is not positive."""
    out = np.full(np.broadcast_shapes(np.shape(numerator), np.shape(denominator)), np.nan)
    return np.divide(numerator, denominator, out=out, where=denominator > np.finfo(float).tiny)
