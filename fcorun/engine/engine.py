"""The engine: compiles programs, and alternates rounds and evaluations of a batch of runs."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fcorun.algorithms.base import PyTree
from fcorun.engine.devices import Devices
from fcorun.engine.federation import Federation, Numbers
from fcorun.engine.segments.client_states import ClientStateFile, RemoteStates
from fcorun.engine.segments.run_loop import RunLoop, Snapshot
from fcorun.engine.segments.segment import Segments

RESULTS_VERSION = 8  # raise it whenever the same configuration gives other numbers, so that old records are not reused


@dataclass
class CompiledPrograms:
    """Functions of arrays, each compiled once for arguments of the same shapes, by the first thread that needs it.

    Attributes:
        compile_seconds: the time spent compiling.
        lock: held while a thread compiles.
    """

    compile_seconds: float = 0.0
    compiled: dict = field(default_factory=dict, repr=False)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def estimated_recompile_seconds(self) -> float:
        """Estimate the time to compile two programs, rounds and evaluation, for another number of runs."""
        return 2 * self.compile_seconds / max(len(self.compiled), 1)

    def get(self, function: Callable, *arguments: Any) -> Callable:
        """Return the program of a function for arguments of these shapes."""
        key = function.__name__, tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(arguments))
        with self.lock:
            if key not in self.compiled:
                before = time.perf_counter()
                self.compiled[key] = jax.jit(function).lower(*arguments).compile()
                self.compile_seconds += time.perf_counter() - before
            return self.compiled[key]


@dataclass(frozen=True)
class Engine:
    """Runs of a federation, evaluated every ``eval_every`` rounds.

    Several threads may call ``run`` at once; they share the compiled programs. On several ``devices``, the runs of a
    batch are sharded if each device gets equally many, else the clients of each round are. ``row_bytes_budget`` bounds
    the bytes of rows fetched from disk; None: as many as are useful.
    """

    federation: Federation
    rounds: int
    eval_every: int
    devices: int = 1
    row_bytes_budget: int | None = None
    programs: CompiledPrograms = field(default_factory=CompiledPrograms, repr=False)

    def initial_state(self, points: Sequence[Numbers], seeds: Sequence[int] | None = None) -> PyTree:
        """Return the state before the first round."""
        numbers = self.federation.stack_numbers(points)
        seeds = seeds or [self.federation.schedule.seed] * len(points)
        arguments = (numbers, self.federation.initial_duals(seeds), self.federation.initial_keys(seeds))
        return self._compile(self.federation.initial_state, *arguments)(*arguments)

    def run(
        self,
        points: Sequence[Numbers],
        seeds: Sequence[int] | None = None,
        state: PyTree = None,
        rounds_done: int = 0,
        *,
        elapsed_seconds: float = 0.0,
        work: np.ndarray | None = None,
        client_states: Sequence[ClientStateFile] | None = None,
    ) -> Iterator[Snapshot]:
        """Evaluate, then alternate rounds and evaluations to the end.

        ``seeds`` holds the seed of each run, by default the schedule's. Runs of one seed share their minibatches; if
        seeds differ, each run has its own.
        With ``state``, ``rounds_done``, ``elapsed_seconds`` and ``work`` of a snapshot the same runs resume from it,
        and the first snapshot is that one again. Ends early when every run has diverged. ``client_states`` are the
        states of generated clients for each run, from ``open_client_states``; by default they are in memory.
        """
        seeds = list(seeds or [self.federation.schedule.seed] * len(points))
        state = self.initial_state(points, seeds) if state is None else jax.device_put(state)
        work = np.zeros((len(points), 2), np.int64) if work is None else work
        if client_states is None:
            client_states = self.open_client_states(points, seeds, [None] * len(points))
        loop, state = self._start_loop(points, seeds, state, client_states)
        loop.evaluate(state, only_compile=True)
        loop.started = time.perf_counter() - elapsed_seconds
        snapshot = loop.take_snapshot(state, rounds_done, work)
        segment = loop.next_segment(rounds_done)
        while True:
            paused = time.perf_counter()
            yield snapshot
            if segment is None or snapshot.diverged.all():
                return
            loop.started += time.perf_counter() - paused
            state, segment, work, rounds_done = loop.run_to_evaluation(
                snapshot.state, segment, snapshot.work, rounds_done
            )
            snapshot = loop.take_snapshot(state, rounds_done, work)

    def follow(
        self,
        points: Sequence[Numbers],
        seeds: Sequence[int],
        rounds_done: int,
        read_diverged: Callable[[], np.ndarray | None],
    ) -> None:
        """Compute a follower's part of the leader's ``run`` on the devices of all hosts, from ``rounds_done`` on.

        After each evaluation ``read_diverged`` returns the leader's ``diverged``, (G,), or None at the end.
        """
        work = np.zeros((len(points), 2), np.int64)
        remote_states = [RemoteStates(leaves) for leaves in self._initial_client_states(points, seeds)]
        loop, state = self._start_loop(points, seeds, self.initial_state(points, seeds), remote_states or None)
        loop.contribute_sums(state)
        segment = loop.next_segment(rounds_done)
        while segment is not None and (diverged := read_diverged()) is not None:
            state |= {"diverged": diverged}
            state, segment, work, rounds_done = loop.run_to_evaluation(state, segment, work, rounds_done)
            loop.contribute_sums(state)

    def _start_loop(
        self, points: Sequence[Numbers], seeds: Sequence[int], state: PyTree, states: Sequence[RemoteStates] | None
    ) -> tuple[RunLoop, PyTree]:
        """Return the loop of these runs, and their state on the devices."""
        federation = self.federation
        n_shards = federation.data.train.n_hosts
        devices = Devices.for_runs(1 if federation.debug else self.devices, len(points), n_shards)
        with self.programs.lock:  # one thread puts the arrays on the device
            rows, extra = federation.arrays
        x, y = (None, None) if rows is None or federation.evaluates_blocks else (rows.x, rows.y)
        numbers, state = devices.shard_by_run((federation.stack_numbers(points), state))
        segments = Segments(
            federation,
            seeds,
            states,
            devices=devices,
            rounds=self.rounds,
            eval_every=self.eval_every,
            row_bytes_budget=self.row_bytes_budget,
        )
        make_loop: type[RunLoop] = RunLoop
        if federation.data.train.stays_at_sites:
            from fcorun.engine.remote.loop import RemoteLoop as make_loop
        loop = make_loop(
            numbers=numbers,
            rows=devices.place_rows(rows),
            evaluation_rows=devices.place_for_evaluation((x, y, extra)),
            segments=segments,
            compile_for=self._compile,
        )
        return loop, loop.broadcast_from_first(state)

    def open_client_states(
        self, points: Sequence[Numbers], seeds: Sequence[int], files: Sequence[Path | None], rounds_done: int = 0
    ) -> list[ClientStateFile] | None:
        """Open the states of generated clients after ``rounds_done`` rounds, for each run with an entry in ``files``.

        States without a file are in memory. Returns None where clients have no states, or all are on the device.
        """
        # runs that fill up a program have no entry in ``files``
        initial_states = zip(files, self._initial_client_states(points, seeds), strict=False)
        n_clients = self.federation.data.n_clients
        return [ClientStateFile(file, leaves, n_clients, rounds_done) for file, leaves in initial_states] or None

    def _initial_client_states(self, points: Sequence[Numbers], seeds: Sequence[int]) -> list[list[np.ndarray]]:
        """Return for each run the leaves of the initial state of a generated client.

        Returns nothing where clients have no states, or all are on the device.
        """
        if not self.federation.schedule.generated_clients:
            return []
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(self.initial_state(points, seeds)["clients"])]
        return [[leaf[g, 0] for leaf in leaves] for g in range(len(points))] if leaves else []

    def _compile(self, function: Callable, *arguments: Any) -> Callable:
        return without_jit(function) if self.federation.debug else self.programs.get(function, *arguments)


def without_jit(function: Callable) -> Callable:
    """Return the function without jit: slow, and an error in it names the line where it arose."""

    def call(*arguments: Any) -> Any:
        with jax.disable_jit():
            return function(*arguments)

    return call
