"""Shares of single rows in what a site sends, and sums of them from which the effective number of rows follows.

Each row counts with a share c >= 0, the size of its derivative, one number and without its features. The effective
number of rows, (sum c)^2 / sum c^2, is that of rows with equal shares which have the same two sums.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.engine.device_rows import DeviceRows, whole_row_indices
from fcorun.engine.schedule import Schedule
from fcorun.methods.algorithms.algorithm import LocalData
from fcorun.methods.problem.problem import Batch

# Of the rows of a client or of a site, an array (3, 2): the largest share, by which the sums are divided, so that no
# square overflows; the sum of the shares; and that of their squares. The last axis has the shares in a gradient, and
# those in a Hessian.
ShareSums = Any


def sum_shares(shares: jax.Array) -> ShareSums:
    """Return the sums of the shares of rows, (2, n)."""
    largest = shares.max(axis=1, initial=0)
    scaled = shares / jnp.where(largest > 0, largest, 1)[:, None]
    return jnp.stack([largest, scaled.sum(axis=1), (scaled**2).sum(axis=1)])


def effective_numbers(sums: ShareSums, weights: np.ndarray | float = 1.0) -> np.ndarray:
    """Return the effective number of rows in each sum, (..., 2).

    The sums have axes (..., S, 3, 2), where S are clients whose rows enter with ``weights``, (S,). The number is
    infinite where no row has a share, and where a share is NaN: nothing of a row leaves then. It is 0 where a share is
    infinite.
    """
    sums = np.asarray(sums, np.float64)
    largest = sums[..., 0, :]
    with np.errstate(invalid="ignore", divide="ignore"):
        # relative to the largest client, so that no square overflows or vanishes
        factors = largest / largest.max(axis=-2, keepdims=True, initial=0) * np.reshape(weights, (-1, 1))
        total = (factors * sums[..., 1, :]).sum(axis=-2)
        squares = (factors**2 * sums[..., 2, :]).sum(axis=-2)
        numbers = total**2 / squares
    if np.isfinite(numbers).all():
        return numbers
    has_infinite_share = np.isposinf(largest).any(axis=-2) & ~np.isnan(largest).any(axis=-2)
    return np.where(has_infinite_share, 0.0, np.where(np.isfinite(numbers), numbers, np.inf))


class FoldRows(NamedTuple):
    """The rows of a site that a fold of a selection holds out.

    Attributes:
        x, y: all of them, (V, d) and (V,).
        extras: their "weight" and "offset", (V,), where they have them.
        of_client: the indices of each client's rows, (M, L) with -1 for none.
    """

    x: jax.Array
    y: jax.Array
    extras: dict[str, jax.Array]
    of_client: jax.Array

    def batch(self, client: jax.Array) -> Batch:
        """Return the rows of a client, each with its weight."""
        indices = self.of_client[client]
        rows, present = jnp.maximum(indices, 0), indices >= 0
        weight = jnp.where(present, self.extras["weight"][rows], 0)
        offset = self.extras.get("offset")
        return Batch(self.x[rows], self.y[rows], weight, offset=None if offset is None else offset[rows])


def rows_of_message(
    schedule: Schedule, rows: DeviceRows, data: LocalData, client: jax.Array, uses_whole_data: bool
) -> Batch:
    """Return the rows that a client's message of a round is computed from, each once.

    These are all rows of the client, or those that the minibatches of its steps have.
    """
    if schedule.full_batch_steps and isinstance(data.whole, Batch):
        return data.whole
    if not schedule.full_batch_steps and not uses_whole_data and data.rows.size < schedule.max_rows:
        drawn = jnp.sort(data.rows.ravel())
        is_repeated = jnp.concatenate([jnp.zeros(1, bool), drawn[1:] == drawn[:-1]])
        return data.batch(jnp.where(is_repeated, -1, drawn))
    return data.batch(whole_row_indices(schedule, rows, client[None])[0])
