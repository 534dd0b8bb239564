"""Stretches of rounds: what they touch is known before they run, so what is not resident is fetched for them.

The cohorts and minibatches of a stretch are drawn on the host. Rows that stay on disk are read then, while the device
computes the stretch before; clients' states in files are read when that is over, and written back afterwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np

from fcorun.algorithms.base import PyTree
from fcorun.engine.arrays import DeviceRows
from fcorun.engine.federation import Federation
from fcorun.engine.schedule import Rounds
from fcorun.engine.segments.client_assignment import assign_clients
from fcorun.engine.segments.client_states import RemoteStates
from fcorun.engine.segments.row_fetching import bytes_per_round, fetch_rows
from fcorun.system.arrays import DoubleBuffer

_AMPLE = 2**27  # bytes of rows of a stretch: of more, less is read while the device computes
_STATES = 2**23  # bytes of clients' states of a stretch, which are in memory some five times


@dataclass(frozen=True)
class Segment:
    """Rounds that one program computes.

    Attributes:
        count: how many, T.
        rounds: with a leading axis for the runs, if their seeds differ.
        rows: those of these rounds alone, or None: all are resident.
        clients: for each run those whose states are fetched, each named once; None: all states are resident.
    """

    n_rounds: int
    rounds: Rounds
    rows: DeviceRows | None = None
    clients: list[np.ndarray] | None = None


@dataclass(frozen=True)
class Segments:
    """The stretches of runs with these seeds.

    Attributes:
        states: the clients' states of each run, or None: they are resident.
        budget: bytes that the rows of two stretches may take, of that which runs and of the next; None: as many as are
            of use.
        each: how many devices a host has.
        widest: how many clients a device had in the stretches so far, where each host has those of its own.
    """

    federation: Federation
    seeds: Sequence[int]
    states: Sequence[RemoteStates] | None
    rounds: int
    eval_every: int
    row_bytes_budget: int | None = None
    devices_per_host: int = 1
    buffers: DoubleBuffer = field(default_factory=DoubleBuffer)
    assignment_widths: list[int] = field(default_factory=list)

    def next_segment(self, rounds_done: int) -> Segment | None:
        """The next stretch: up to the next evaluation, or a part of the way where all of it would take too much."""
        left = min(self.eval_every - rounds_done % self.eval_every, self.rounds - rounds_done)
        if left <= 0:
            return None
        federation, apart = self.federation, list(dict.fromkeys(self.seeds))
        count = min(left, self._longest)
        drawn = [federation.schedule.with_seed(seed).draw_rounds(rounds_done, count) for seed in apart]
        rounds = drawn[0] if len(drawn) == 1 else jax.tree.map(lambda *parts: np.stack(parts), *drawn)
        rows, clients = None, None
        if federation.data.host_bounds is not None:
            turn = assign_clients(
                rounds.cohort,
                federation.data.host_of_client,
                self.devices_per_host,
                max(self.assignment_widths, default=0),
            )
            self.assignment_widths.append(turn.shape[-1])  # as wide as those before, whose programs are there
            rounds = rounds._replace(assignment=turn)
        if self._streamed:  # once for all runs of a seed
            given = {"dtype": federation.precision, "buffers": self.buffers, "devices_per_host": self.devices_per_host}
            given["whole"] = federation.needs_whole_data
            rows, rounds = fetch_rows(federation.data, federation.schedule, rounds, **given)
        if len(apart) > 1:
            which = np.array([apart.index(seed) for seed in self.seeds])
            rounds = jax.tree.map(lambda v: v[which], rounds)
        if self.states is not None:
            rounds, clients = _placed(rounds, len(self.seeds))
        return Segment(count, rounds, rows, clients)

    @property
    def _streamed(self) -> bool:
        """Whether rows stay on disk, and are needed."""
        return self.federation.data.on_disk and self.federation.arrays[0] is None

    @cached_property
    def _longest(self) -> int:
        """How many rounds a stretch has at most: those up to an evaluation, in parts as equal as may be, for each
        length is a program of its own."""
        federation, whole = self.federation, min(self.eval_every, self.rounds)
        most = whole
        if self._streamed:
            given = (federation.data, federation.schedule, federation.precision, federation.needs_whole_data)
            each = bytes_per_round(*given) * len(set(self.seeds))
            most = min(
                most, min(_AMPLE, _AMPLE if self.row_bytes_budget is None else self.row_bytes_budget // 2) // each
            )
        if self.states is not None:
            each = sum(leaf.nbytes for states in self.states for leaf in states.initial)
            if each * federation.data.n_clients > _STATES:
                most = min(most, _STATES // (each * federation.schedule.cohort_size))
        return -(-whole // -(-whole // max(1, most)))

    def load_client_states(self, state: PyTree, stretch: Segment) -> PyTree:
        """The state of the runs with the states of the clients of a stretch."""
        if stretch.clients is None:
            return state
        cohort = stretch.rounds.cohort.shape[-2:]
        places = min(cohort[0] * cohort[1], self.federation.data.n_clients)
        return self.with_client_states(state, [np.resize(each, places) for each in stretch.clients])

    def with_client_states(self, state: PyTree, clients: Sequence[np.ndarray]) -> PyTree:
        """The state of the runs with the states of these clients, (P,) of each run."""
        assert self.states is not None
        each = [states.read(some) for states, some in zip(self.states, clients, strict=True)]
        leaves = [jax.device_put(np.stack(leaf)) for leaf in zip(*each, strict=True)]
        return state | {"clients": jax.tree.unflatten(jax.tree.structure(state["clients"]), leaves)}

    def store_client_states(self, state: PyTree, stretch: Segment, before: PyTree, rounds_done: int) -> PyTree:
        """The state after a stretch, the clients' states in their files; ``before`` is that from before it."""
        if stretch.clients is None:
            return state
        assert self.states is not None
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state["clients"])]
        for g, (states, clients) in enumerate(zip(self.states, stretch.clients, strict=True)):
            states.write(clients, [leaf[g, : len(clients)] for leaf in leaves], rounds_done)
        return state | {"clients": before["clients"]}


def _placed(rounds: Rounds, runs: int) -> tuple[Rounds, list[np.ndarray]]:
    """Rounds that say at which place of what is fetched a client's state is, and the clients that are, of each run."""
    shared = rounds.cohort.ndim == 2
    found: list[Any] = [
        np.unique(cohort, return_inverse=True) for cohort in (rounds.cohort[None] if shared else rounds.cohort)
    ]
    place = np.stack([each.reshape(rounds.cohort.shape[-2:]) for _, each in found]).astype(np.int32)
    clients = [each for each, _ in found] * (runs if shared else 1)
    return rounds._replace(state_index=place[0] if shared else place), clients
