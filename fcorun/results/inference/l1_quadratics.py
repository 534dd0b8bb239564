"""Coordinate descent for quadratics with weighted l1 penalties that share a matrix, all at once. It needs no rows."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

MAX_SWEEPS = 5000
_TOLERANCE = 1e-13  # of the largest change in a sweep, relative to the largest entry


def minimize_l1_quadratics(
    matrix: np.ndarray,
    right_sides: np.ndarray,
    penalty: np.ndarray,
    start: np.ndarray,
    *,
    tolerance: float = _TOLERANCE,
    max_sweeps: int = MAX_SWEEPS,
) -> np.ndarray:
    """Return for each column c of ``right_sides`` argmin_v v' A v / 2 - c' v + sum_k penalty_k |v_k|, (p, m).

    Cyclic coordinate descent (Friedman, Hastie and Tibshirani, J. Stat. Softw. 2010), one coordinate of all columns
    at a time. Its steps do not depend on the units of the coordinates. Call under enable_x64.

    Args:
        matrix: A, positive semidefinite (p, p). Coordinates whose diagonal entry is 0 stay at ``start``.
        right_sides: (p, m).
        penalty: (p, m), inf for entries that are 0.
        start: (p, m).
        tolerance: the largest change in a sweep, relative to the largest entry, at which it ends.
        max_sweeps: the sweeps after which it ends without a word.
    """
    diagonal = np.diagonal(matrix).copy()
    scale = np.where(diagonal > 0, 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1)), 0.0)
    scaled = matrix * scale * scale[:, None]
    factor = scale[:, None]
    inverse = np.where(factor > 0, 1 / np.where(factor > 0, factor, 1), 0.0)
    scaled_penalty = penalty * np.where(factor > 0, factor, 1)
    limits = (tolerance, max_sweeps)
    solution = _descend(scaled, right_sides * factor, scaled_penalty, start * inverse, limits)
    return np.where(factor > 0, np.asarray(solution) * factor, start)


@jax.jit
def _descend(matrix, right_sides, penalty, start, limits):
    """Run coordinate descent for a matrix with ones, or zeros, on its diagonal."""
    size = len(matrix)
    tolerance, max_sweeps = limits

    def update(k, v):
        row = lax.dynamic_index_in_dim(matrix, k, keepdims=False)
        gradient = row @ v - right_sides[k]
        z = v[k] - gradient
        new = jnp.sign(z) * jnp.maximum(jnp.abs(z) - penalty[k], 0)
        return v.at[k].set(jnp.where(row[k] > 0, new, v[k]))

    def sweep(state):
        v, _, count = state
        new = lax.fori_loop(0, size, update, v)
        return new, jnp.abs(new - v).max() > tolerance * jnp.abs(new).max(), count + 1

    def proceeds(state):
        return state[1] & (state[2] < max_sweeps)

    return lax.while_loop(proceeds, sweep, (start, jnp.ones((), bool), 0))[0]
