"""Rows that are read from disk, for a segment and for an evaluation, and the devices that compute their clients."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fcorun.base.system.machine import empty_aligned
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.disk_matrix import DeviceCapacity
from fcorun.data.rows.features import device_dtype, most_numbers
from fcorun.data.rows.rows import Rows
from fcorun.engine.device_rows import DeviceRows, row_extras
from fcorun.engine.evaluate import Evaluation
from fcorun.engine.schedule import Rounds, Schedule


@dataclass
class DoubleBuffer:
    """Two arrays used in turn: one is computed with while the next rows are read into the other.

    The computation on an array must have ended before the second next call. Reusing the two arrays is faster than
    allocating a new one for each read.
    """

    arrays: list[np.ndarray | None] = field(default_factory=lambda: [None, None])

    def next_array(self, shape: tuple[int, ...], dtype) -> np.ndarray:
        """Return an array of this shape with arbitrary content. Every second call returns the same array."""
        self.arrays.reverse()
        array = self.arrays[0]
        if array is None or array.shape != shape or array.dtype != dtype:
            self.arrays[0] = None  # frees the old array before the new one is allocated
            array = self.arrays[0] = empty_aligned(shape, dtype)
        return array


def bytes_per_round(data: FederatedData, schedule: Schedule, dtype: Any, whole: bool) -> int:
    """Return the bytes of the rows fetched for a round: minibatches, or the ``whole`` data of each client.

    Where rows are sharded, return the most bytes of any host.
    """
    numbers = data.train.most_numbers_of_client
    if not whole:
        rows = schedule.max_batch * int(schedule.steps.max()) * (schedule.edge_rounds or 1)
        numbers = rows * data.train.numbers_per_row
    clients = min(schedule.cohort_size, data.train.most_clients_of_a_host)
    return clients * numbers * device_dtype(data.train.x.dtype, dtype).itemsize


def fetch_rows(
    data: FederatedData,
    schedule: Schedule,
    rounds: Rounds,
    *,
    whole: bool,
    dtype: Any,
    buffers: DoubleBuffer,
    devices_per_host: int = 1,
) -> tuple[DeviceRows, Rounds]:
    """Read the rows of these rounds, and return them with the rounds renumbered to the read rows.

    Where clients take their ``whole`` data, these are read, and minibatches are taken from them. Rounds of the same
    shape get equally many rows; a shorter batch is padded with zero rows. Where rows are sharded over hosts with
    ``devices_per_host`` devices each, this host reads its clients' rows, and rows are numbered within each host.
    """
    all_rows = rounds.rows
    if whole:  # all rows of a client are one batch
        position = np.arange(schedule.max_rows)
        starts = schedule.starts[rounds.cohort][..., None]
        sizes = schedule.sizes[rounds.cohort][..., None]
        all_rows = np.where(position < sizes, starts + position, -1)[..., None, :].astype(np.int32)
    x: Any = data.train.x
    rows = all_rows
    if rounds.assignment is not None:
        rows = _take_clients(all_rows, host_positions(rounds.assignment, x.host, devices_per_host))
    present = rows >= 0
    needed, filled = rows[present], present.ravel()
    of_row, of_client = data.train.numbers_per_row, data.train.most_numbers_of_client
    total = of_client * (rows.size // schedule.max_rows) if whole else of_row * rows.size
    read_x = x[needed].read_padded(filled, dtype, buffers.next_array, DeviceCapacity(total, of_row, of_client))

    def take_rows(values: np.ndarray, kind: Any) -> np.ndarray:
        taken = np.zeros(rows.size, kind)
        taken[filled] = values[needed]
        return taken

    new_numbers = np.arange(rows.size, dtype=np.int32).reshape(rows.shape)
    if rounds.assignment is not None:
        cohort_size = rounds.cohort.shape[-1]
        within_host = index_within_host(rounds.assignment, cohort_size, devices_per_host)
        new_numbers = _take_clients(new_numbers, within_host)
    new_numbers = np.where(all_rows >= 0, new_numbers, -1)
    rounds = _renumber_whole(schedule, rounds, new_numbers) if whole else rounds._replace(rows=new_numbers)
    extras = {
        name: take_rows(values, dtype)
        for name, values in row_extras(replace(data.train, weight=data.train.relative_weight)).items()
    }
    y = take_rows(data.train.y, data.target_task.target_dtype(dtype))
    return DeviceRows(read_x, y, extras, None, None), rounds  # type: ignore[arg-type]


def _renumber_whole(schedule: Schedule, rounds: Rounds, whole_rows: np.ndarray) -> Rounds:
    """Return the rounds with the new numbers of all rows of each client, (..., T, S, 1, L), and of its minibatches.

    Seeds that are drawn together have a leading axis.
    """
    whole_rows = whole_rows[..., 0, :]
    rounds = rounds._replace(whole_rows=whole_rows)
    if schedule.full_batch_steps:
        return rounds
    starts, rows = schedule.starts[rounds.cohort], rounds.rows
    if schedule.edge_rounds:  # rows (..., T, R, S, K, B)
        starts, whole_rows = starts[..., None, :], whole_rows[..., None, :, :]
    index = np.maximum(rows - starts[..., None, None], 0)
    index = index.reshape(*index.shape[:-2], 1, -1)
    renumbered = np.take_along_axis(whole_rows[..., None, :], index, axis=-1).reshape(rows.shape)
    return rounds._replace(rows=np.where(rows >= 0, renumbered, -1))


def _take_clients(rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Take the rows (T, ..., S, K, B) of the clients at these positions (T, P), -1 for none: (T, ..., P, K, B)."""
    extra_axes = tuple(range(positions.ndim - 1, rows.ndim - 3))
    positions = np.expand_dims(positions, (*extra_axes, -2, -1))
    return np.where(positions >= 0, np.take_along_axis(rows, np.maximum(positions, 0), axis=-3), -1)


# Blocks of rows for evaluation, in the order of the file; metrics are sums over blocks.


BLOCK_BYTES = 2**26  # bytes of a block
# x (n, d), y (n,), and the rows' weight and offset
Block = tuple[Any, np.ndarray, dict[str, np.ndarray]]


def block_length(rows: Rows, dtype: Any) -> int:
    """Return the number of rows of a block of these rows."""
    return max(1, BLOCK_BYTES // max(rows.numbers_per_row * np.dtype(dtype).itemsize, 1))


def evaluation_splits(evaluation: Evaluation) -> dict[str, Rows]:
    """Return this host's training rows, "train", and validation rows, "val", each in the order of the file.

    Training rows have their weights in F, validation rows those of a mean over all of them; each sums to one over all
    hosts.
    """
    data = evaluation.data
    splits = {"train": replace(data.train, weight=data.train.objective_weights(evaluation.client_weighting))}
    if data.validation is not None:
        splits["val"] = replace(data.validation, weight=data.validation.mean_weights())
    return {name: rows.local.take(rows.local.x.file_order()) for name, rows in splits.items()}


def read_blocks(
    splits: dict[str, Rows], y_dtype: Any, dtype: Any, buffers: DoubleBuffer
) -> Iterator[tuple[str, Block]]:
    """Yield the rows of these splits in blocks of one shape; rows that pad the last block have weight 0.

    A block may be overwritten when the block after the next one is read.
    """
    length = min(block_length(splits["train"], dtype), max(1, *map(len, splits.values())))
    of_block = max(
        most_numbers(rows.x, np.append(np.arange(0, len(rows), length), len(rows))) for rows in splits.values()
    )
    capacity = DeviceCapacity(of_block, max(rows.numbers_per_row for rows in splits.values()), of_block)
    for name, rows in splits.items():
        for first in range(0, max(len(rows), 1), length):  # a host without rows yields one block of padding
            some = rows.take(slice(first, first + length))
            block = some.x.read_padded(np.arange(length) < len(some), dtype, buffers.next_array, capacity)
            extras = {key: _pad(values, length, dtype) for key, values in row_extras(some).items()}
            yield name, (block, _pad(some.y, length, y_dtype), extras)


def _pad(values: np.ndarray, count: int, dtype: Any) -> np.ndarray:
    padded = np.zeros(count, dtype)
    padded[: len(values)] = values
    return padded


# The assignment of a cohort's clients to devices, where rows are sharded over hosts.


def assign_clients_to_devices(
    cohort: np.ndarray, host_of_client: np.ndarray, devices_per_host: int, min_width: int = 0
) -> np.ndarray:
    """Return the positions in a cohort that each of D devices computes, (..., D, W), padded with -1.

    ``cohort`` (..., S) has the numbers of clients. A device computes clients whose rows its host stores;
    ``host_of_client`` (M,) has the host of each client. W is at least ``min_width``, the largest width so far. For
    cohorts of fewer than all clients W is rounded up, because each new width compiles another program.
    """
    size, n_hosts = cohort.shape[-1], int(host_of_client.max()) + 1
    host = host_of_client[cohort].reshape(-1, size)
    order = np.argsort(host, axis=1, kind="stable")
    host = np.take_along_axis(host, order, axis=1)
    counts = np.stack([(host == number).sum(axis=1) for number in range(n_hosts)], axis=1)
    position_in_host = np.arange(size) - np.take_along_axis(np.cumsum(counts, axis=1) - counts, host, axis=1)
    width_multiple = 1
    if size < len(host_of_client):  # the clients of a host in a random cohort vary by about sqrt(size / n_hosts)
        width_multiple = max(1, round((size / n_hosts) ** 0.5 / devices_per_host))
    width = max(min_width, -(-int(counts.max()) // (devices_per_host * width_multiple)) * width_multiple)
    positions = np.full((len(host), n_hosts, width, devices_per_host), -1, np.int32)
    positions[
        np.arange(len(host))[:, None], host, position_in_host // devices_per_host, position_in_host % devices_per_host
    ] = order
    return positions.swapaxes(2, 3).reshape(*cohort.shape[:-1], n_hosts * devices_per_host, width)


def host_positions(assignment: np.ndarray, host: int, devices_per_host: int) -> np.ndarray:
    """Return the positions that the devices of a host compute, one device after the other, (..., P)."""
    of_host = assignment[..., host * devices_per_host : (host + 1) * devices_per_host, :]
    return of_host.reshape(*assignment.shape[:-2], -1)


def index_within_host(assignment: np.ndarray, cohort_size: int, devices_per_host: int) -> np.ndarray:
    """Return the index of each position of the cohort in ``host_positions`` of its host, (..., S)."""
    flat = assignment.reshape(-1, assignment.shape[-2] * assignment.shape[-1])
    index = np.zeros((len(flat), cohort_size + 1), np.int64)
    number = np.arange(flat.shape[1]) % (devices_per_host * assignment.shape[-1])
    np.put_along_axis(index, np.where(flat < 0, cohort_size, flat), np.broadcast_to(number, flat.shape), axis=1)
    return index[:, :cohort_size].reshape(*assignment.shape[:-2], cohort_size)
