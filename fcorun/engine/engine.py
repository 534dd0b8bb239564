"""What compiles and loops: rounds and evaluations in turn, of one run or of several that differ in numbers."""

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

RESULTS_VERSION = 4  # raise it whenever the same configuration gives other numbers: old records are then not reused


@dataclass
class CompiledPrograms:
    """Functions of arrays, each compiled once for arguments of the same shapes, by whichever thread is first.

    Attributes:
        seconds: spent compiling.
    """

    compile_seconds: float = 0.0
    compiled: dict = field(default_factory=dict, repr=False)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def estimated_recompile_seconds(self) -> float:
        """What compiling takes for another number of runs, the rounds and an evaluation, by what it took so far."""
        return 2 * self.compile_seconds / max(len(self.compiled), 1)

    def get(self, function: Callable, *arguments: Any) -> Callable:
        """The program of a function for such arguments."""
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(arguments))
        with self.lock:
            if (function.__name__, shapes) not in self.compiled:
                before = time.perf_counter()
                self.compiled[function.__name__, shapes] = jax.jit(function).lower(*arguments).compile()
                self.compile_seconds += time.perf_counter() - before
            return self.compiled[function.__name__, shapes]


@dataclass(frozen=True)
class Engine:
    """Runs of a federation, evaluated every ``eval_every`` rounds.

    Several threads may call ``run`` at once; they share the compiled programs. On several ``devices``, a batch of runs
    is dealt out to them if each then has as many, else the clients of each round are. ``budget`` is how many bytes rows
    may take that stay on disk and are fetched; None: as many as are of use.
    """

    federation: Federation
    rounds: int
    eval_every: int
    devices: int = 1
    row_bytes_budget: int | None = None
    programs: CompiledPrograms = field(default_factory=CompiledPrograms, repr=False)

    def initial_state(self, points: Sequence[Numbers], seeds: Sequence[int] | None = None) -> PyTree:
        """The state before the first round."""
        numbers = self.federation.stack_numbers(points)
        z0 = self.federation.initial_duals(seeds or [self.federation.schedule.seed] * len(points))
        return self._program(self.federation.initial_state, numbers, z0)(numbers, z0)

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
        ``state``, ``done``, ``seconds`` and ``work`` of a snapshot of the same runs go on from there; the first
        snapshot is then that one again. Ends early when every run has diverged. ``states`` are those of a population's
        clients, of each run, as ``states`` makes them; by default they are kept in memory.
        """
        seeds = list(seeds or [self.federation.schedule.seed] * len(points))
        state = self.initial_state(points, seeds) if state is None else jax.device_put(state)
        work = np.zeros((len(points), 2), np.int64) if work is None else work
        client_states = (
            self.open_client_states(points, seeds, [None] * len(points)) if client_states is None else client_states
        )
        course, state = self._course(points, seeds, state, client_states)
        course.evaluate(state, only_compile=True)
        course.started = time.perf_counter() - elapsed_seconds
        now, stretch = course.take_snapshot(state, rounds_done, work), course.segments.next_segment(rounds_done)
        while True:
            paused = time.perf_counter()
            yield now
            if stretch is None or now.diverged.all():
                return
            course.started += time.perf_counter() - paused
            state, stretch, work, rounds_done = course.run_to_evaluation(now.state, stretch, now.work, rounds_done)
            now = course.take_snapshot(state, rounds_done, work)

    def follow(
        self,
        points: Sequence[Numbers],
        seeds: Sequence[int],
        rounds_done: int,
        read_diverged: Callable[[], np.ndarray | None],
    ) -> None:
        """The part of a host that is not the first in what ``run`` computes there on ``devices`` of all, after ``done``
        rounds. ``told`` says after each evaluation which runs have diverged, (G,); None that there are no more rounds.
        """
        work = np.zeros((len(points), 2), np.int64)
        elsewhere = [RemoteStates(leaves) for leaves in self._fetched(points, seeds)]
        course, state = self._course(points, seeds, self.initial_state(points, seeds), elsewhere or None)
        course.contribute_sums(state)
        stretch = course.segments.next_segment(rounds_done)
        while stretch is not None and (diverged := read_diverged()) is not None:
            state |= {"diverged": diverged}
            state, stretch, work, rounds_done = course.run_to_evaluation(state, stretch, work, rounds_done)
            course.contribute_sums(state)

    def _course(
        self, points: Sequence[Numbers], seeds: Sequence[int], state: PyTree, states: Sequence[RemoteStates] | None
    ) -> tuple[RunLoop, PyTree]:
        """Runs that begin at a state of theirs, and that state where they are computed."""
        devices = Devices.for_runs(1 if self.federation.debug else self.devices, len(points))
        with self.programs.lock:  # one thread makes them
            rows, extra = self.federation.arrays
        measured = (None, None) if rows is None or self.federation.data.on_disk else (rows.x, rows.y)
        numbers, state = devices.shard_by_run((self.federation.stack_numbers(points), state))
        until = {"rounds": self.rounds, "eval_every": self.eval_every, "row_bytes_budget": self.row_bytes_budget}
        cut = self.federation.data.host_bounds
        until["devices_per_host"] = 1 if cut is None else self.devices // (len(cut) - 1)
        course = RunLoop(
            devices=devices,
            numbers=numbers,
            rows=devices.replicate(rows) if cut is None else devices.shard_by_host(rows),
            evaluation_rows=devices.place_for_evaluation((*measured, extra)),
            segments=Segments(self.federation, seeds, states, **until),
            compile_for=self._program,
        )
        return course, course.broadcast_from_first(state)

    def open_client_states(
        self, points: Sequence[Numbers], seeds: Sequence[int], files: Sequence[Path | None], rounds_done: int = 0
    ) -> list[ClientStateFile] | None:
        """The states of a population's clients after ``done`` rounds, of each run that has one of these files; where
        that is None, in memory. None where clients keep none, or all of them are resident."""
        begun = zip(files, self._fetched(points, seeds), strict=False)  # runs that fill a program have no file
        return [
            ClientStateFile(file, leaves, self.federation.data.n_clients, rounds_done) for file, leaves in begun
        ] or None

    def _fetched(self, points: Sequence[Numbers], seeds: Sequence[int]) -> list[list[np.ndarray]]:
        """Of each run, the leaves of the state that a population's clients begin with; empty where clients keep none,
        or all of them are resident."""
        if self.federation.data.generated is None:
            return []
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(self.initial_state(points, seeds)["clients"])]
        return [[leaf[g, 0] for leaf in leaves] for g in range(len(points))] if leaves else []

    def _program(self, function: Callable, *arguments: Any) -> Callable:
        return without_jit(function) if self.federation.debug else self.programs.get(function, *arguments)


def without_jit(function: Callable) -> Callable:
    """The function itself, called without jit: slow, and an error in it says where it came up."""

    def call(*arguments: Any) -> Any:
        with jax.disable_jit():
            return function(*arguments)

    return call
