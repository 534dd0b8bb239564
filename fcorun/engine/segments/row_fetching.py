"""The rows of a stretch, where they stay on disk: read in the order in which they were drawn, and numbered anew."""

from typing import Any

import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.engine.arrays import DeviceRows, device_dtype, row_extras, target_dtype
from fcorun.engine.schedule import Rounds, Schedule
from fcorun.engine.segments.client_assignment import host_positions, index_within_host
from fcorun.system.arrays import DoubleBuffer


def bytes_per_round(data: FederatedData, schedule: Schedule, dtype: Any, whole: bool) -> int:
    """The bytes of the rows that are fetched for a round, the ``whole`` data of each client or its minibatches; of
    several hosts, at most, on one of them."""
    rows = schedule.max_rows if whole else schedule.max_batch * int(schedule.steps.max()) * (schedule.edge_rounds or 1)
    width = data.x.shape[1] * device_dtype(data.x.dtype, dtype).itemsize
    most = (
        schedule.cohort_size
        if data.host_bounds is None
        else min(schedule.cohort_size, int(np.diff(data.host_bounds).max()))
    )
    return most * rows * width


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
    """The rows that these rounds take, and the rounds with the places of their rows among these. Where clients take
    their ``whole`` data, these are fetched, and minibatches are taken from them.

    There are as many rows for rounds of the same shape; what a shorter batch does not have is 0. On several hosts with
    ``each`` so many devices they are those of this host's clients, and places are those among the rows of a client's.
    """
    all_rows = _whole(schedule, rounds.cohort) if whole else rounds.rows
    given: Any = data.x
    rows = (
        all_rows
        if rounds.assignment is None
        else _picked(all_rows, host_positions(rounds.assignment, given.part, devices_per_host))
    )
    there = rows >= 0
    taken, flat = rows[there], there.ravel()
    x = buffers.next_array((rows.size, data.x.shape[1]), device_dtype(data.x.dtype, dtype))
    x[~flat] = 0
    given[taken].read(x, np.flatnonzero(flat))

    def beside(values: np.ndarray, kind: Any) -> np.ndarray:
        found = np.zeros(rows.size, kind)
        found[flat] = values[taken]
        return found

    places = np.arange(rows.size, dtype=np.int32).reshape(rows.shape)
    if rounds.assignment is not None:
        places = _picked(places, index_within_host(rounds.assignment, rounds.cohort.shape[-1], devices_per_host))
    places = np.where(all_rows >= 0, places, -1)
    rounds = _of_whole(schedule, rounds, places[..., 0, :]) if whole else rounds._replace(rows=places)
    own = {name: beside(values, dtype) for name, values in row_extras(data).items()}
    return DeviceRows(x, beside(data.y, target_dtype(data, dtype)), own, None, None), rounds  # type: ignore[arg-type]


def _of_whole(schedule: Schedule, rounds: Rounds, places: np.ndarray) -> Rounds:
    """The rounds, where all rows of each client of the cohorts are at these places, (T, S, L)."""
    rounds = rounds._replace(whole_rows=places)
    if schedule.full_batch_steps:
        return rounds
    starts, rows = schedule.starts[rounds.cohort], rounds.rows
    if schedule.edge_rounds:  # rows (T, R, S, K, B)
        starts, places = starts[:, None], places[:, None]
    within = np.maximum(rows - starts[..., None, None], 0)
    found = np.take_along_axis(places[..., None, :], within.reshape(*within.shape[:-2], 1, -1), axis=-1)
    return rounds._replace(rows=np.where(rows >= 0, found.reshape(rows.shape), -1))


def _picked(rows: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Of rows (T, ..., S, K, B) those of the clients at these places (T, P), -1 for none: (T, ..., P, K, B)."""
    between = tuple(range(which.ndim - 1, rows.ndim - 3))  # the rounds of edges
    which = np.expand_dims(which, (*between, -2, -1))
    return np.where(which >= 0, np.take_along_axis(rows, np.maximum(which, 0), axis=-3), -1)


def _whole(schedule: Schedule, cohort: np.ndarray) -> np.ndarray:
    """All rows of each client of cohorts (..., S), one batch (..., S, 1, B) with -1 for none."""
    place, starts, sizes = np.arange(schedule.max_rows), schedule.starts[cohort], schedule.sizes[cohort]
    return np.where(place < sizes[..., None], starts[..., None] + place, -1)[..., None, :].astype(np.int32)
