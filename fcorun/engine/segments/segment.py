"""Segments: consecutive rounds that one program computes, with the rows and states that they need.

The cohorts and minibatches of a segment are drawn on the host before it runs, so that the rows and states it needs are
known. Rows that stay on disk are read then, while the device computes the segment before. Clients' states in files are
read when that segment has ended, and written back afterwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import jax
import numpy as np

from fcorun.algorithms.base import PyTree
from fcorun.engine.arrays import DeviceRows
from fcorun.engine.devices import SINGLE_DEVICE, Devices
from fcorun.engine.federation import Federation
from fcorun.engine.schedule import Rounds
from fcorun.engine.segments.client_assignment import assign_clients
from fcorun.engine.segments.client_states import RemoteStates
from fcorun.engine.segments.row_fetching import bytes_per_round, fetch_rows
from fcorun.system.arrays import DoubleBuffer

_ROW_BYTES = 2**27  # of the rows of a segment: with more, less is read while the device computes
_STATE_BYTES = 2**23  # of the clients' states of a segment, of which memory holds about five copies


@dataclass(frozen=True)
class Segment:
    """Rounds that one program computes.

    Attributes:
        n_rounds: the number of rounds, T.
        rounds: their draws, with a leading axis of runs where seeds differ.
        rows: the rows of these rounds; None: all rows are on the device.
        clients: for each run the distinct clients whose states are loaded; None: all states are on the device.
    """

    n_rounds: int
    rounds: Rounds
    rows: DeviceRows | None = None
    clients: list[np.ndarray] | None = None


@dataclass(frozen=True)
class Segments:
    """The segments of runs with these seeds.

    Attributes:
        states: the clients' states of each run; None: all states are on the device.
        row_bytes_budget: the bytes that the rows of two segments may take, the running one and the next; None: as many
            as are useful.
        assignment_widths: the widths of the assignments of earlier segments, where rows are sharded.
    """

    federation: Federation
    seeds: Sequence[int]
    states: Sequence[RemoteStates] | None
    rounds: int
    eval_every: int
    devices: Devices = SINGLE_DEVICE
    row_bytes_budget: int | None = None
    buffers: DoubleBuffer = field(default_factory=DoubleBuffer)
    assignment_widths: list[int] = field(default_factory=list)

    def next_segment(self, rounds_done: int) -> Segment | None:
        """Draw the next segment, up to the next evaluation or shorter, and read its rows; None after the last round."""
        rounds_left = min(self.eval_every - rounds_done % self.eval_every, self.rounds - rounds_done)
        if rounds_left <= 0:
            return None
        federation, distinct_seeds = self.federation, list(dict.fromkeys(self.seeds))
        n_rounds = min(rounds_left, self._max_rounds)
        drawn = [federation.draw_rounds(seed, rounds_done, n_rounds) for seed in distinct_seeds]
        rounds = drawn[0] if len(drawn) == 1 else jax.tree.map(lambda *by_seed: np.stack(by_seed), *drawn)
        rows, clients = None, None
        if self.devices.sharded_rows:
            # as wide as earlier assignments, whose programs are compiled
            min_width = max(self.assignment_widths, default=0)
            host_of_client = federation.data.train.host_of_client
            assignment = assign_clients(rounds.cohort, host_of_client, self.devices.per_shard, min_width)
            self.assignment_widths.append(assignment.shape[-1])
            rounds = rounds._replace(assignment=assignment)
        if federation.fetches_rows:  # once for all runs of a seed
            rows, rounds = fetch_rows(
                federation.data,
                federation.schedule,
                rounds,
                whole=federation.needs_whole_data,
                dtype=federation.precision,
                buffers=self.buffers,
                devices_per_host=self.devices.per_shard,
            )
        if len(distinct_seeds) > 1:
            seed_of_run = np.array([distinct_seeds.index(seed) for seed in self.seeds])
            rounds = jax.tree.map(lambda v: v[seed_of_run], rounds)
        if self.states is not None:
            rounds, clients = _index_states(rounds, len(self.seeds))
        return Segment(n_rounds, rounds, rows, clients)

    @cached_property
    def _max_rounds(self) -> int:
        """Return the largest number of rounds of a segment.

        An evaluation interval is split into segments as equal as possible, since each length needs its own program.
        """
        federation, interval = self.federation, min(self.eval_every, self.rounds)
        most = interval
        if federation.fetches_rows:
            whole = federation.needs_whole_data
            row_bytes = bytes_per_round(federation.data, federation.schedule, federation.precision, whole)
            row_bytes *= len(set(self.seeds))
            allowed = _ROW_BYTES if self.row_bytes_budget is None else min(_ROW_BYTES, self.row_bytes_budget // 2)
            most = min(most, allowed // row_bytes)
        if self.states is not None:
            state_bytes = sum(leaf.nbytes for states in self.states for leaf in states.initial)
            if state_bytes * federation.data.n_clients > _STATE_BYTES:
                most = min(most, _STATE_BYTES // (state_bytes * federation.schedule.cohort_size))
        n_segments = -(-interval // max(1, most))
        return -(-interval // n_segments)

    def load_client_states(self, state: PyTree, segment: Segment) -> PyTree:
        """Return the state of the runs with the states of a segment's clients, read from their files."""
        if segment.clients is None:
            return state
        n_rounds, cohort_size = segment.rounds.cohort.shape[-2:]
        count = min(n_rounds * cohort_size, self.federation.data.n_clients)
        return self.with_client_states(state, [np.resize(clients, count) for clients in segment.clients])

    def with_client_states(self, state: PyTree, clients: Sequence[np.ndarray]) -> PyTree:
        """Return the state of the runs with the states of these clients, (P,) for each run."""
        assert self.states is not None
        by_run = [states.read(of_run) for states, of_run in zip(self.states, clients, strict=True)]
        leaves = [jax.device_put(np.stack(leaf)) for leaf in zip(*by_run, strict=True)]
        return state | {"clients": jax.tree.unflatten(jax.tree.structure(state["clients"]), leaves)}

    def store_client_states(self, state: PyTree, segment: Segment, before: PyTree, rounds_done: int) -> PyTree:
        """Write the clients' states after a segment to their files, and return the state without them.

        ``before`` is the state before the segment, whose placeholder of the clients' states is returned.
        """
        if segment.clients is None:
            return state
        assert self.states is not None
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state["clients"])]
        for g, (states, clients) in enumerate(zip(self.states, segment.clients, strict=True)):
            states.write(clients, [leaf[g, : len(clients)] for leaf in leaves], rounds_done)
        return state | {"clients": before["clients"]}


def _index_states(rounds: Rounds, runs: int) -> tuple[Rounds, list[np.ndarray]]:
    """Return the rounds with each client's index among the loaded states, and for each run the clients to load."""
    shared = rounds.cohort.ndim == 2
    clients, indices = [], []
    for cohort in rounds.cohort[None] if shared else rounds.cohort:
        distinct, index = np.unique(cohort, return_inverse=True)
        clients.append(distinct)
        indices.append(index.reshape(cohort.shape))
    state_index = np.stack(indices).astype(np.int32)
    if shared:
        return rounds._replace(state_index=state_index[0]), clients * runs
    return rounds._replace(state_index=state_index), clients
