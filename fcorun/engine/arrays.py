"""The rows of all clients on the device, and which of them a client's batch has."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.algorithms.base import Algorithm, Traits
from fcorun.datasets.base import FederatedData
from fcorun.engine.schedule import Schedule
from fcorun.problem.problem import Batch, Problem
from fcorun.problem.quadratic import Quadratic, can_decompose, decompose_losses
from fcorun.problem.row_span import restrict_to_row_span
from fcorun.rows.host_rows import align, local_rows
from fcorun.system.arrays import empty_aligned


class SubsetView(NamedTuple):
    """Where the rows of a data set stand among others, which it shares with other parts of the whole.

    Attributes:
        x, y: all rows on the device, (N, d) and (N,).
        places, held: which of them are the training rows, (N',), and the validation rows, (H,).
        width: how many rows a client has at most, in any of the parts that one program is for.
    """

    x: jax.Array
    y: jax.Array
    train_rows: np.ndarray
    validation_rows: np.ndarray
    max_client_rows: int


class DeviceRows(NamedTuple):
    """What clients take their rows from: all of them, what these have ``beside``, the whole data of each client where
    they are decomposed, or None, and which rows are whose, (M, L) with -1 for none, or None where they lie in the order
    of the clients."""

    x: jax.Array
    y: jax.Array
    row_extras: dict[str, jax.Array]
    decomposed: Quadratic | Batch | None
    client_rows: jax.Array | None


def to_device(x: np.ndarray, dtype) -> jax.Array:
    """Examples on the device: in the run's precision, but for whole numbers of at most two bytes, kept as stored.

    By ``device_put``, since ``jnp.asarray`` may compile a program for each new shape.
    """
    if x.dtype == device_dtype(x.dtype, dtype):
        return jax.device_put(x)
    found = empty_aligned(x.shape, dtype)
    np.copyto(found, x, casting="unsafe")
    return jax.device_put(found)


def targets_to_device(data: FederatedData, y: np.ndarray, dtype) -> jax.Array:
    """Targets on the device: class indices of more than two classes stay whole numbers."""
    return jax.device_put(y.astype(target_dtype(data, dtype)))


def first_row(data: FederatedData, dtype) -> tuple[jax.Array, jax.Array]:
    """x and y of the first training row that is here, on the device."""
    return to_device(np.asarray(local_rows(data.x)[:1]), dtype), targets_to_device(
        data, align(data.x, data.y)[:1], dtype
    )


def target_dtype(data: FederatedData, dtype) -> np.dtype:
    """The type of targets on the device."""
    return np.dtype(np.int32 if data.task == "multiclass" else dtype)


def device_dtype(stored: np.dtype, dtype) -> np.dtype:
    """The type of examples on the device that are stored so."""
    return stored if stored.kind in "bui" and stored.itemsize <= 2 else np.dtype(dtype)


def row_extras(data: FederatedData) -> dict[str, np.ndarray]:
    """What all training rows have beside x and y, each (N,): "weight", a mean of one in each client, and "offset"."""
    given = {"weight": data.row_weights, "offset": data.offset}
    return {name: values for name, values in given.items() if values is not None}


def row_extras_to_device(data: FederatedData, subset: SubsetView | None, dtype) -> dict[str, jax.Array]:
    """What the training rows have beside x and y, on the device, of each row that is stored."""
    found = {name: align(data.x, values) for name, values in row_extras(data).items()}
    if subset is not None:
        found = {name: scatter(values, subset.train_rows, len(subset.y)) for name, values in found.items()}
    return {name: jax.device_put(values.astype(dtype)) for name, values in found.items()}


def scatter(values: np.ndarray, indices: np.ndarray, count: int) -> np.ndarray:
    """These values at these places of ``count``, and 0 elsewhere."""
    found = np.zeros(count)
    found[indices] = values
    return found


def client_row_table(offsets: np.ndarray, row_positions: np.ndarray | None = None, width: int = 0) -> np.ndarray:
    """Which rows are whose, int32 (M, L) with -1 for none; L is the most that a client has, or ``width``.

    ``places`` are where they stand, (N,); None: one after the other.
    """
    place = np.arange(max(int(np.diff(offsets).max()), width))[None]
    rows = np.where(place < np.diff(offsets)[:, None], offsets[:-1, None] + place, -1)
    return np.where(rows >= 0, rows if row_positions is None else row_positions[rows], -1).astype(np.int32)


def uses_decomposed_losses(traits: Traits, schedule: Schedule, problem: Problem, data: FederatedData) -> bool:
    """Whether decomposed losses are of use to an algorithm of these traits, and can be had."""
    parameters = sum(math.prod(shape) for shape in problem.shapes.values())
    wanted = (traits.proximal and schedule.full_batch_steps) or (traits.deterministic and data.sizes.max() > parameters)
    return bool(wanted) and data.generated is None and can_decompose(problem.objective, data, parameters)


def precompute_losses(
    problem: Problem, algorithm: Algorithm, data: FederatedData, schedule: Schedule, *, is_subset: bool, dtype
) -> Quadratic | Batch | None:
    """The whole data of each client in a form that its steps cost less on: decomposed losses, or rows in coordinates of
    their span, where the data are no ``part`` of others; None where neither is of use, or can be had."""
    if uses_decomposed_losses(algorithm.traits, schedule, problem, data):
        return decompose_losses(problem.objective, data, problem.shapes, dtype)
    stays = is_subset or schedule.generated_clients or data.on_disk
    return (
        restrict_to_row_span(problem.objective, data, dtype)
        if algorithm.works_in_row_span and schedule.full_batch_steps and not stays
        else None
    )


def rows_to_device(
    data: FederatedData, losses: Quadratic | Batch | None, subset: SubsetView | None, dtype
) -> DeviceRows | None:
    """The rows of data, which may be ``among`` others, with the decomposed losses, on the device.

    None where the rows stay on disk and are needed; where the losses are decomposed, nobody looks at them.
    """
    if data.on_disk:
        return losses and DeviceRows(*first_row(data, dtype), {}, jax.device_put(losses), None)
    losses, beside = jax.device_put(losses), row_extras_to_device(data, subset, dtype)
    if subset is not None:
        return DeviceRows(
            subset.x,
            subset.y,
            beside,
            losses,
            jax.device_put(client_row_table(data.offsets, subset.train_rows, subset.max_client_rows)),
        )
    return DeviceRows(
        to_device(local_rows(data.x), dtype),
        targets_to_device(data, align(data.x, data.y), dtype),
        beside,
        losses,
        None,
    )


def gather_whole_data(schedule: Schedule, rows: DeviceRows, data: FederatedData, dtype) -> Batch | Quadratic | None:
    """Of each client that is here its loss decomposed, or data as one batch, stacked, where they are taken at once and
    need no gathering in each round."""
    if rows.decomposed is not None or data.on_disk:
        return rows.decomposed
    sizes = schedule.sizes
    if (
        not schedule.full_batch_steps
        or schedule.generated_clients
        or (rows.client_rows is None and (sizes != sizes[0]).any())
    ):
        return None
    if rows.client_rows is not None:
        once = jnp.ones(len(sizes), jnp.int32)
        there = (rows.client_rows >= 0).astype(dtype)
        each = jnp.maximum(rows.client_rows, 0)
        weight, own = there / there.sum(axis=1, keepdims=True), {n: v[each] for n, v in rows.row_extras.items()}
        weight = weight * own["weight"] if "weight" in own else weight
        return Batch(rows.x[each], rows.y[each], weight, full_passes=once, offset=own.get("offset"))
    shape = (len(rows.y) // int(sizes[0]), int(sizes[0]))
    once = jnp.ones(shape[0], jnp.int32)
    weight = jnp.full(shape, 1 / sizes[0], dtype)
    own = {name: values.reshape(shape) for name, values in rows.row_extras.items()}
    weight = weight * own["weight"] if "weight" in own else weight
    return Batch(rows.x.reshape(*shape, -1), rows.y.reshape(shape), weight, full_passes=once, offset=own.get("offset"))


def whole_row_indices(schedule: Schedule, rows: DeviceRows, cohort: jax.Array) -> jax.Array:
    """The rows of each client of a cohort, int32 (S, L) with -1 for none, where these are on the device."""
    if schedule.generated_clients:
        return jnp.broadcast_to(jnp.arange(schedule.max_rows), (len(cohort), schedule.max_rows))
    if rows.client_rows is not None:
        return rows.client_rows[cohort]
    place, (start, size) = jnp.arange(schedule.max_rows)[None], (schedule.starts, schedule.sizes)
    start, size = jnp.asarray(start, jnp.int32)[cohort][:, None], jnp.asarray(size)[cohort][:, None]
    return jnp.where(place < size, start + place, -1)
