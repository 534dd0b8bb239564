"""The rows of all clients on the device, and which of them a client's batch has."""

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.engine.schedule import Schedule
from fcorun.problem.problem import Batch


def on_device(x: np.ndarray, dtype) -> jax.Array:
    """Examples on the device: in the run's precision, but for whole numbers of at most two bytes, kept as stored.

    By ``device_put``, since ``jnp.asarray`` may compile a program for each new shape.
    """
    return jax.device_put(x if x.dtype.kind in "bui" and x.dtype.itemsize <= 2 else x.astype(dtype, copy=False))


def targets(data: FederatedData, y: np.ndarray, dtype) -> jax.Array:
    """Targets on the device: class indices of more than two classes stay whole numbers."""
    return jax.device_put(y.astype(np.int32 if data.task == "multiclass" else dtype))


def rows_beside(data: FederatedData, dtype) -> dict[str, jax.Array]:
    """What the training rows have beside x and y, each (N,) on the device: "weight", a mean of one in each client, and
    "offset"; those that they have."""
    given = {"weight": data.within, "offset": data.offset}
    return {name: jax.device_put(values.astype(dtype)) for name, values in given.items() if values is not None}


def whole_batches(data: FederatedData, schedule: Schedule, rows: tuple, dtype) -> Batch | None:
    """Each client's data as one batch, stacked, where they are taken at once and need no gathering of rows.

    ``rows`` are x, y and what the rows have beside.
    """
    x, y, beside = rows
    sizes = data.sizes
    if not schedule.repeats or (sizes != sizes[0]).any():
        return None
    shape = (len(sizes), int(sizes[0]))
    once, weight = jnp.ones(shape[:1], jnp.int32), jnp.full(shape, 1 / sizes[0], dtype)
    own = {name: values.reshape(shape) for name, values in beside.items()}
    weight = weight * own["weight"] if "weight" in own else weight
    return Batch(x.reshape(*shape, -1), y.reshape(shape), weight, 0 * once, once, offset=own.get("offset"))


def all_rows(data: FederatedData, schedule: Schedule, cohort: jax.Array, rows: jax.Array) -> jax.Array:
    """The rows of the cohort's batches; where a batch is all of a client's data they were not drawn."""
    if not schedule.repeats:
        return rows
    rounds = rows.shape[:-2]  # of edges
    place = jnp.arange(schedule.batch)[None]
    start, size = jnp.asarray(data.offsets[:-1], jnp.int32)[cohort], jnp.asarray(data.sizes)[cohort]
    rows = jnp.where(place < size[:, None], start[:, None] + place, -1)[:, None, :]
    return jnp.broadcast_to(rows, (*rounds, *rows.shape))
