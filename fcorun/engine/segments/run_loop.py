"""The loop of a batch of runs: segment after segment, with evaluations in between."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.system.files import check_interrupted
from fcorun.base.system.hosts import silence_stdout
from fcorun.base.system.machine import current_hosts
from fcorun.data.rows.rows import Rows
from fcorun.engine.clients import SINGLE_DEVICE, Devices
from fcorun.engine.device_rows import DeviceRows
from fcorun.engine.federation import Federation
from fcorun.engine.schedule import Rounds
from fcorun.engine.segments.client_states import RemoteStates
from fcorun.engine.segments.row_fetching import (
    DoubleBuffer,
    assign_clients_to_devices,
    bytes_per_round,
    evaluation_splits,
    fetch_rows,
    read_blocks,
)
from fcorun.methods.algorithms.algorithm import PyTree

# Segments: consecutive rounds that one program computes, with the rows and states that they need.
#
# The cohorts and minibatches of a segment are drawn on the host before it runs, so that the rows and states it needs
# are known. Rows that stay on disk are read then, while the device computes the segment before. Clients' states in
# files are read when that segment has ended, and written back afterwards.

_ROW_BYTES = 2**27  # of the rows of a segment: with more, less is read while the device computes
_STATE_BYTES = 2**23  # of the clients' states of a segment, of which memory holds about five copies
_MAX_COUNT = 2**31  # of gradients of a client in a segment, which are counted in 32 bits
_ITERATIONS = 500  # of the inner solver of an algorithm that has no field of this name


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
            assignment = assign_clients_to_devices(rounds.cohort, host_of_client, self.devices.per_shard, min_width)
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
        schedule = federation.schedule
        # whole data count once, and Newton's method takes up to 200 products with their Hessian in an iteration
        per_iteration = 201 if schedule.full_batch_steps else 2 * schedule.max_batch
        iterations = getattr(federation.algorithm, "iterations", None)
        if type(iterations) is not int or iterations < 1:  # none, or an option of another meaning
            iterations = _ITERATIONS
        gradients = int(schedule.steps.max()) * iterations * per_iteration
        most = min(interval, _MAX_COUNT // (gradients * (schedule.edge_rounds or 1)))
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
        if self.states is None or segment.clients is None:
            return state
        n_rounds, cohort_size = segment.rounds.cohort.shape[-2:]
        count = min(n_rounds * cohort_size, self.federation.data.n_clients)
        return _with_client_states(self.states, state, [np.resize(clients, count) for clients in segment.clients])

    def store_client_states(self, state: PyTree, segment: Segment, before: PyTree, rounds_done: int) -> PyTree:
        """Write the clients' states after a segment to their files, and return the state without them.

        ``before`` is the state before the segment, whose placeholder of the clients' states is returned.
        """
        if self.states is None or segment.clients is None:
            return state
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state["clients"])]
        for g, (states, clients) in enumerate(zip(self.states, segment.clients, strict=True)):
            states.write(clients, [leaf[g, : len(clients)] for leaf in leaves], rounds_done)
        return state | {"clients": before["clients"]}


def _with_client_states(all_states: Sequence[RemoteStates], state: PyTree, clients: Sequence[np.ndarray]) -> PyTree:
    """Return the state of the runs with the states of these clients, (P,) for each run."""
    by_run = [states.read(of_run) for states, of_run in zip(all_states, clients, strict=True)]
    leaves = [jax.device_put(np.stack(leaf)) for leaf in zip(*by_run, strict=True)]
    return state | {"clients": jax.tree.unflatten(jax.tree.structure(state["clients"]), leaves)}


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


# The loop.


@dataclass(frozen=True)
class Snapshot:
    """G runs at an evaluation.

    Attributes:
        round: the number of rounds done.
        seconds: the running time so far, of all G runs together.
        metrics: by name, each of shape (G,).
        solution: the parameters of the output by name, with a leading axis G.
        diverged: the round in which a run's state was no longer finite, 0 for a run that has not diverged, shape (G,).
        state: all that a later call needs to resume; a pytree of arrays with a leading axis G.
        work: the numbers of example gradients and proxes evaluated so far, by all clients and the server, (G, 2).
        client_models: the clients' personal models by parameter, with leading axes G, M, on the device, or None.
        by_client: losses and scores of each client, as of ``Measured``, with a leading axis G.
    """

    round: int
    seconds: float
    metrics: dict[str, np.ndarray]
    solution: dict[str, np.ndarray]
    diverged: np.ndarray
    state: PyTree
    work: np.ndarray
    client_models: dict[str, jax.Array] | None = None
    by_client: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class RunLoop:
    """The constants of a batch of runs, and its clock.

    Attributes:
        evaluation_rows: x and y to evaluate on, or None where they stay on disk, and the evaluation's other arrays.
        compile_for: returns the program of a function for arguments of such shapes.
        started: the time at which the runs would have started, had they never paused.
    """

    numbers: Any
    rows: Any
    evaluation_rows: tuple
    segments: Segments
    compile_for: Callable[..., Callable]
    started: float = 0.0
    buffers: DoubleBuffer = field(default_factory=DoubleBuffer)

    @property
    def devices(self) -> Devices:
        """Return the devices that compute the rounds."""
        return self.segments.devices

    def next_segment(self, rounds_done: int) -> Segment | None:
        """Return the next segment after ``rounds_done`` rounds; None after the last round."""
        return self.segments.next_segment(rounds_done)

    def take_snapshot(self, state: PyTree, rounds_done: int, work: np.ndarray) -> Snapshot:
        """Evaluate the runs after ``rounds_done`` rounds; a loss that is not finite counts as divergence."""
        metrics, solution, client_models = self.evaluate(state)
        metrics, by_client = self.segments.federation.evaluation.complete(metrics, rounds_done)
        metrics, solution = jax.tree.map(np.asarray, (metrics, solution))
        losses = [metrics[name] for name in ("train_loss", "personal_train_loss") if name in metrics]
        diverged = np.asarray(state["diverged"])
        diverges_now = (diverged == 0) & ~np.isfinite(losses).all(axis=0)
        diverged = np.where(diverges_now, max(rounds_done, 1), diverged).astype(np.int32)
        state = state | {"diverged": jax.device_put(diverged)}
        return Snapshot(
            round=rounds_done,
            seconds=time.perf_counter() - self.started,
            metrics=metrics,
            solution=solution,
            diverged=diverged,
            state=state,
            work=work,
            client_models=client_models,
            by_client=by_client,
        )

    def compile_untimed(self, function: Callable, *arguments: Any) -> Callable:
        """Compile a function, without counting the time as running time of the runs."""
        before = time.perf_counter()
        program = self.compile_for(function, *arguments)
        self.started += time.perf_counter() - before
        return program

    def broadcast_from_first(self, tree: PyTree) -> PyTree:
        """Copy the first host's arrays to all hosts; the others pass arrays of the same shapes."""
        if current_hosts() is None:
            return tree
        broadcast = self.compile_untimed(self.devices.broadcast_from_first, tree)
        with silence_stdout():
            return jax.block_until_ready(broadcast(tree))

    def evaluate(self, state: PyTree, only_compile: bool = False) -> Any:
        """Compute ``Federation.evaluate``. Rows on disk are read in blocks while the device computes."""
        federation, states = self.segments.federation, self.segments.states
        algorithm = federation.algorithm
        if states is not None and (algorithm.has_personal_models or algorithm.declared_metrics):
            clients = np.arange(len(federation.data.train.sizes))
            state = self.devices.shard_by_run(_with_client_states(states, state, [clients] * len(states)))
        rows = self.evaluation_rows
        if federation.evaluation.sums_over_parts:
            if only_compile:
                return None
            state, rows = state | {"sums": self.split_sums(state)}, (None, None, rows[-1])
        numbers, state = self.devices.first_shard((self.numbers, state))
        program = self.compile_untimed(self.devices.map_evaluate(federation.evaluate), numbers, state, *rows)
        return None if only_compile else program(numbers, state, *rows)

    def split_sums(self, state: PyTree) -> dict[str, dict[str, jax.Array]]:
        """Compute for each run the sums over the rows of each split. Every host must call it where rows are sharded."""
        federation, devices = self.segments.federation, self.devices
        numbers, server = devices.first_shard((self.numbers, state["server"]))
        if federation.evaluates_blocks:
            function = devices.map_evaluate(federation.split_sums)
            sums: dict[str, dict[str, jax.Array]] = {}
            y_dtype = federation.data.target_task.target_dtype(federation.precision)
            for split, block in read_blocks(self._evaluation_splits, y_dtype, federation.precision, self.buffers):
                _check_interrupted()
                jax.block_until_ready(sums)  # the next block reuses the memory of the block before
                arguments = (numbers, {"server": server}, *devices.place_for_evaluation(block))
                block_sums = self.compile_untimed(function, *arguments)(*arguments)["train"]
                sums[split] = jax.tree.map(jnp.add, sums[split], block_sums) if split in sums else block_sums
        else:
            arguments = (numbers, {"server": server}, *self.evaluation_rows)
            sums = self.compile_untimed(devices.map_evaluate(federation.split_sums), *arguments)(*arguments)
        if not devices.sharded_rows:
            return sums
        sums = devices.shard_by_host(sums)
        return self.compile_untimed(devices.sum_over_hosts, sums)(sums)

    @cached_property
    def _evaluation_splits(self) -> dict[str, Rows]:
        return evaluation_splits(self.segments.federation.evaluation)

    def contribute_sums(self, state: PyTree) -> None:
        """Compute this follower's part of the leader's evaluation, where rows are sharded."""
        if self.devices.sharded_rows:
            self.split_sums(state)

    def run_to_evaluation(
        self, state: PyTree, segment: Segment | None, work: np.ndarray, rounds_done: int
    ) -> tuple[PyTree, Segment | None, np.ndarray, int]:
        """Run segments until the next evaluation. Returns the runs, the next segment, the work and the rounds done."""
        federation, devices, segments = self.segments.federation, self.devices, self.segments
        while segment is not None:
            _check_interrupted()
            loaded = devices.shard_by_run(segments.load_client_states(state, segment))
            if segment.clients is not None:  # the first host has the clients' states
                loaded = self.broadcast_from_first(loaded)
            arguments = (
                self.numbers,
                loaded,
                self.rows if segment.rows is None else devices.place_rows(segment.rows),
                devices.place_rounds(segment.rounds),
                devices.replicate(np.int32(rounds_done)),
            )
            advance = devices.map_advance(federation.advance, segment.rounds.cohort.ndim == 2)
            advanced, client_work = self.compile_untimed(advance, *arguments)(*arguments)
            rounds_done += segment.n_rounds
            # the call returns before the device has finished, so that the next rounds are drawn, and read, meanwhile
            next_segment = self.next_segment(rounds_done)
            # each of shape (G, clients + 1)
            examples, passes, proxes = np.moveaxis(np.asarray(client_work), 2, 0).astype(np.int64)
            gradients = examples.sum(axis=1) + passes[:, :-1] @ federation.schedule.work_sizes
            work = work + np.stack([gradients, proxes.sum(axis=1)], axis=1)
            state = segments.store_client_states(advanced, segment, state, rounds_done)
            segment = next_segment
            if rounds_done % segments.eval_every == 0:
                break
        return state, segment, work, rounds_done


def _check_interrupted() -> None:
    """Raise KeyboardInterrupt after a signal; several hosts do not check, since they end together after a round."""
    if current_hosts() is None:
        check_interrupted()
