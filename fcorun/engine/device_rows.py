"""The rows of all clients on the device, and the layout of a cohort's rows for their computation there."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from fcorun.base.system.machine import compute_policy
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.features import refuse_overflow, to_device
from fcorun.data.rows.rows import Rows
from fcorun.engine.clients import CohortFunction, chunk_width, chunked, in_size_classes
from fcorun.engine.schedule import Schedule
from fcorun.methods.algorithms.algorithm import Algorithm, Traits
from fcorun.methods.problem.operation_counts import PyTree, tree_bytes
from fcorun.methods.problem.problem import Batch, Problem, Quadratic
from fcorun.methods.problem.row_span import can_decompose, decompose_losses, restrict_to_row_span

# Classes of clients of similar sizes, whose whole data are padded to the rows of the largest client of the class.

_MOST_CLASSES = 4  # each takes as long to compile as the first one


class SizeClass(NamedTuple):
    """Clients whose whole data are computed with one number of rows.

    Attributes:
        clients: the numbers of the clients, from the smallest to the largest.
        length: the number of rows of the largest one.
    """

    clients: Int[np.ndarray, " S"]
    length: int


def split_by_size(sizes: Int[np.ndarray, " M"], min_rows_saved: float) -> Sequence[SizeClass]:
    """Return classes of all clients, so that each further class saves at least ``min_rows_saved`` rows of padding.

    Splits a class as long as that pays, and takes the split that saves most. Returns no classes where no split pays.
    """
    parts = [np.argsort(sizes, kind="stable")]
    while len(parts) < _MOST_CLASSES:
        splits = []
        for part in parts:
            increasing = sizes[part]
            rows_saved = np.arange(len(part)) * (increasing[-1] - np.roll(increasing, 1))
            splits.append((int(rows_saved.max()), int(rows_saved.argmax())))
        p = int(np.argmax([saved for saved, _ in splits]))
        saved, position = splits[p]
        if saved < min_rows_saved:
            break
        parts[p : p + 1] = np.split(parts[p], [position])
    return [SizeClass(part, int(sizes[part[-1]])) for part in parts] if len(parts) > 1 else []


# The rows on the device, the indices of each client's rows among them, and losses that are computed ahead.


class SubsetView(NamedTuple):
    """A data set whose rows are a subset of rows on the device, which it shares with other subsets.

    Attributes:
        x, y: all rows on the device, (N, d), dense or sparse, and (N,).
        train_rows, validation_rows: the indices of the subset's rows, (N',) and (V,).
        max_client_rows: the largest number of rows of each client, (M,), in any subset that shares a program.
    """

    x: Any
    y: jax.Array
    train_rows: np.ndarray
    validation_rows: np.ndarray
    max_client_rows: np.ndarray


class DeviceRows(NamedTuple):
    """Training rows on the device.

    Attributes:
        x, y: the rows, (N, d), dense or sparse, and (N,).
        row_extras: their "weight" and "offset", (N,), where they have them.
        decomposed: the losses of the clients on their whole data in a cheaper form, or None.
        client_rows: the indices of each client's rows, (M, L) with -1 for none; None: rows are sorted by client.
    """

    x: Any
    y: jax.Array
    row_extras: dict[str, jax.Array]
    decomposed: Quadratic | Batch | None
    client_rows: jax.Array | None

    def of_class(self, size_class: SizeClass) -> "DeviceRows":
        """Return the same rows, whose ``client_rows`` are those of the clients of a class and have its length."""
        if self.client_rows is None:
            return self
        return self._replace(client_rows=self.client_rows[size_class.clients, : size_class.length])


def targets_to_device(data: FederatedData, y: np.ndarray, dtype) -> jax.Array:
    """Put targets on the device, as numbers of the type that their task has there.

    Raises UserError as ``to_device``.
    """
    with refuse_overflow("targets"):
        converted = y.astype(data.target_task.target_dtype(dtype))
    return jax.device_put(converted)


def first_row(data: FederatedData, dtype) -> tuple[Any, jax.Array]:
    """Put x and y of this host's first training row on the device, zeros where no row is here."""
    first = data.train.local.take(slice(1))
    x, y = first.x, first.y
    if not len(y):
        x, y = np.zeros((1, *x.shape[1:]), x.dtype), np.zeros(1, y.dtype)
    return to_device(x, dtype), targets_to_device(data, y, dtype)


def row_extras(rows: Rows) -> dict[str, np.ndarray]:
    """Return the "weight" and the "offset" of rows, each (N,), where they have them."""
    extras = {"weight": rows.weight, "offset": rows.offset}
    return {name: values for name, values in extras.items() if values is not None}


def scatter(values: np.ndarray, indices: np.ndarray, count: int) -> np.ndarray:
    """Return an array of ``count`` zeros with these values at these indices."""
    scattered = np.zeros(count)
    scattered[indices] = values
    return scattered


def client_row_table(offsets: np.ndarray, row_positions: np.ndarray | None = None, width: int = 0) -> np.ndarray:
    """Return the indices of each client's rows, int32 (M, L) with -1 for none.

    L is the largest number of rows of a client, or ``width`` if that is larger. ``row_positions`` (N,) maps a row to
    its position on the device; None: rows are in order.
    """
    sizes = np.diff(offsets)
    position = np.arange(max(int(sizes.max()), width))[None]
    rows = np.where(position < sizes[:, None], offsets[:-1, None] + position, -1)
    if row_positions is not None:
        rows = np.where(rows >= 0, row_positions[rows], -1)
    return rows.astype(np.int32)


def uses_decomposed_losses(traits: Traits, schedule: Schedule, problem: Problem, data: FederatedData) -> bool:
    """Return whether an algorithm of these traits gains by decomposed losses, and the losses can be decomposed."""
    parameters = sum(math.prod(shape) for shape in problem.shapes.values())
    useful = (traits.proximal and schedule.full_batch_steps) or (
        traits.deterministic and data.train.sizes.max() > parameters
    )
    return (
        bool(useful)
        and not traits.local_fits
        and not schedule.generated_clients
        and not schedule.faults.changes_targets
        and can_decompose(problem.objective, data, parameters)
    )


def precompute_losses(
    problem: Problem, algorithm: Algorithm, data: FederatedData, schedule: Schedule, *, is_subset: bool, dtype
) -> Quadratic | Batch | None:
    """Return the whole data of each client in a form that makes steps cheaper, or None.

    The form is decomposed losses, or rows in coordinates of their span. The latter is not used for a subset of the rows
    on the device.
    """
    if uses_decomposed_losses(algorithm.traits, schedule, problem, data):
        return decompose_losses(problem.objective, data, problem.shapes, dtype)
    if is_subset or schedule.generated_clients or data.train.resident is None:
        return None
    if algorithm.works_in_row_span and schedule.full_batch_steps:
        return restrict_to_row_span(problem.objective, data, dtype)
    return None


def rows_to_device(
    data: FederatedData, losses: Quadratic | Batch | None, subset: SubsetView | None, dtype
) -> DeviceRows | None:
    """Put the training rows, which may be a subset of rows on the device, and the decomposed losses on the device.

    Returns None where rows stay on disk and are needed. With decomposed losses one row on the device is enough.
    """
    local = data.train.resident
    if local is None:
        return losses and DeviceRows(*first_row(data, dtype), {}, jax.device_put(losses), None)
    losses = jax.device_put(losses)
    extras: dict[str, Any] = row_extras(replace(data.train, weight=data.train.relative_weight).local)
    for name, values in extras.items():  # one for each row of x on the device
        if subset is not None:
            values = scatter(values, subset.train_rows, len(subset.y))
        extras[name] = jax.device_put(values.astype(dtype))
    if subset is not None:
        client_rows = client_row_table(data.train.offsets, subset.train_rows, int(subset.max_client_rows.max()))
        return DeviceRows(subset.x, subset.y, extras, losses, jax.device_put(client_rows))
    x = to_device(data.informative_features(local.x), dtype, data.train.offsets)
    return DeviceRows(x, targets_to_device(data, local.y, dtype), extras, losses, None)


def gather_whole_data(schedule: Schedule, rows: DeviceRows, dtype) -> Batch | Quadratic | None:
    """Return the whole data of each client of ``rows``, stacked along a leading axis, where all steps take them.

    The data are decomposed losses, or one batch of each client. Returns None where steps take minibatches, or where the
    whole data must be gathered in each round.
    """
    if rows.decomposed is not None:
        return rows.decomposed
    sizes = schedule.sizes
    if not schedule.full_batch_steps or schedule.generated_clients:
        return None
    if rows.client_rows is None and (sizes != sizes[0]).any():
        return None
    if rows.client_rows is not None:
        full_passes = jnp.ones(len(rows.client_rows), jnp.int32)
        present = (rows.client_rows >= 0).astype(dtype)
        indices = jnp.maximum(rows.client_rows, 0)
        weight = present / present.sum(axis=1, keepdims=True)
        x, y = rows.x[indices], rows.y[indices]
        extras = {name: values[indices] for name, values in rows.row_extras.items()}
    else:
        shape = (len(rows.y) // int(sizes[0]), int(sizes[0]))
        full_passes = jnp.ones(shape[0], jnp.int32)
        weight = jnp.full(shape, 1 / sizes[0], dtype)
        x, y = rows.x.reshape(*shape, -1), rows.y.reshape(shape)
        extras = {name: values.reshape(shape) for name, values in rows.row_extras.items()}
    if "weight" in extras:
        weight = weight * extras["weight"]
    return Batch(x, y, weight, full_passes=full_passes, offset=extras.get("offset"))


def whole_row_indices(schedule: Schedule, rows: DeviceRows, cohort: jax.Array) -> jax.Array:
    """Return the indices on the device of all rows of each client of a cohort, int32 (S, L) with -1 for none."""
    if schedule.generated_clients:
        return jnp.broadcast_to(jnp.arange(schedule.max_rows), (len(cohort), schedule.max_rows))
    if rows.client_rows is not None:
        return rows.client_rows[cohort]
    position = jnp.arange(schedule.max_rows)[None]
    start = jnp.asarray(schedule.starts, jnp.int32)[cohort][:, None]
    size = jnp.asarray(schedule.sizes)[cohort][:, None]
    return jnp.where(position < size, start + position, -1)


# The way in which a cohort's clients are computed: how many at once, and which are padded to one number of rows.


@dataclass(frozen=True, kw_only=True)
class CohortLayout:
    """The sizes of clients, of their rows and of their parameters, on which the computation of a cohort depends.

    Attributes:
        max_client_rows: as of ``SubsetView``.
        n_parameters: the number of the model's parameters.
        needs_whole_data: whether clients use their whole data, in steps or besides their minibatches.
        clients_at_once: the number of clients of a cohort in a chunk; None: as many as stay in the cache.
    """

    schedule: Schedule
    train: Rows
    max_client_rows: np.ndarray
    n_parameters: int
    precision: str
    needs_whole_data: bool
    clients_at_once: int | None

    def plan(self, rows: DeviceRows, runs: int, shared: bool, in_order: bool) -> tuple[PyTree, CohortFunction]:
        """Return the whole data of the clients, or of each class of sizes, and the function that computes a cohort.

        The whole data are None where they are not gathered once for all rounds. There are classes only where each
        cohort is all clients ``in_order``, computed on one device.
        """
        classes = self.size_classes(runs) if in_order and rows.decomposed is None else []
        if not classes:
            whole = self._gather(rows)
            return whole, chunked(self.chunk_width(runs, shared, whole))
        wholes = [self._gather(rows.of_class(size_class)) for size_class in classes]
        widths = [self.chunk_width(runs, shared, *of_class) for of_class in zip(wholes, classes, strict=True)]
        return None if wholes[0] is None else wholes, in_size_classes(classes, widths)

    def _gather(self, rows: DeviceRows) -> PyTree:
        """Return the whole data of each client of ``rows``, stacked, where they are gathered once for all rounds."""
        return rows.decomposed if self.train.streamed else gather_whole_data(self.schedule, rows, self.precision)

    def size_classes(self, runs: int) -> Sequence[SizeClass]:
        """Return the classes of a cohort of all clients in a program of ``runs`` runs; empty where no split pays."""
        if not self.needs_whole_data or self.schedule.generated_clients:
            return []
        entries_per_row = runs * (self.schedule.full_batch_steps or 1) * self.train.numbers_per_row
        return split_by_size(self.max_client_rows, compute_policy().min_padding_saved / entries_per_row)

    @property
    def gathered_rows(self) -> int:
        """Return the rows of the whole data of all clients with their padding, for one run; at most that for more."""
        classes = self.size_classes(1)
        if not classes:
            return len(self.max_client_rows) * int(self.max_client_rows.max())
        return sum(len(clients) * length for clients, length in classes)

    def chunk_width(self, runs: int, shared: bool, whole: PyTree = None, size_class: SizeClass | None = None) -> int:
        """Return the number of clients of a cohort, or of a class, computed at once in a program of ``runs`` runs.

        The runs may have ``shared`` minibatches; ``whole`` is the whole data of all clients where steps take them.
        """
        count = self.schedule.cohort_size if size_class is None else len(size_class.clients)
        if self.clients_at_once is not None:
            return min(self.clients_at_once, count)
        policy = compute_policy()
        if shared and runs > 1 and policy.sequential_grid_clients:
            return 1
        bytes_per_client = self.client_bytes(whole, size_class) + self.n_parameters * np.dtype(self.precision).itemsize
        return chunk_width(count, policy.chunk_bytes // (runs * bytes_per_client))

    def client_bytes(self, whole: PyTree = None, size_class: SizeClass | None = None) -> int:
        """Return the bytes of a client's data for a step: a minibatch, its generated rows, or its part of ``whole``."""
        if whole is not None:
            return tree_bytes(whole) // len(jax.tree.leaves(whole)[0])
        longest = self.schedule.max_rows if size_class is None else size_class.length
        needed_rows = longest if self.needs_whole_data else self.schedule.max_batch
        return self.train.rows_in_memory(needed_rows) * self.train.numbers_per_row * np.dtype(self.precision).itemsize
