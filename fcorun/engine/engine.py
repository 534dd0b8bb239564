"""What compiles and loops: rounds and evaluations in turn, of one run or of several that differ in numbers."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from fcorun.algorithms.base import Tree
from fcorun.engine.devices import Devices
from fcorun.engine.federation import Federation, Numbers
from fcorun.engine.schedule import Rounds

VERSION = 3  # raise it whenever the same configuration gives other numbers: old records are then not reused


@dataclass(frozen=True)
class Snapshot:
    """G runs at an evaluation.

    Attributes:
        round: rounds done.
        seconds: time spent running so far, for all G together.
        metrics: each of shape (G,).
        solution: the parameters of the output by name, with leading axis G.
        diverged: the round in which a run's state stopped being finite, 0 for those that go on, shape (G,).
        state: everything that a later call needs to go on from here; a pytree of arrays with leading axis G.
        work: gradients of examples and proxes evaluated so far, over all clients and the server, shape (G, 2).
        models: the clients' own models by parameter, with leading axes G, M, on the device; None where they have none.
    """

    round: int
    seconds: float
    metrics: dict[str, np.ndarray]
    solution: dict[str, np.ndarray]
    diverged: np.ndarray
    state: Tree
    work: np.ndarray
    models: dict[str, jax.Array] | None = None


@dataclass
class Programs:
    """Functions of arrays, each compiled once for arguments of the same shapes, by whichever thread is first.

    Attributes:
        seconds: spent compiling.
    """

    seconds: float = 0.0
    compiled: dict = field(default_factory=dict, repr=False)
    guard: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def of(self, function: Callable, *arguments: Any) -> Callable:
        """The program of a function for such arguments."""
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(arguments))
        with self.guard:
            if (function.__name__, shapes) not in self.compiled:
                before = time.perf_counter()
                self.compiled[function.__name__, shapes] = jax.jit(function).lower(*arguments).compile()
                self.seconds += time.perf_counter() - before
            return self.compiled[function.__name__, shapes]


@dataclass(frozen=True)
class Engine:
    """Runs of a federation, evaluated every ``eval_every`` rounds.

    Several threads may call ``run`` at once; they share the compiled programs. On several ``devices``, a batch of runs
    is dealt out to them if each then has as many, else the clients of each round are.
    """

    federation: Federation
    rounds: int
    eval_every: int
    devices: int = 1
    programs: Programs = field(default_factory=Programs, repr=False)

    def start(self, points: Sequence[Numbers], seeds: Sequence[int] | None = None) -> Tree:
        """The state before the first round."""
        numbers = self.federation.stack(points)
        z0 = self.federation.duals(seeds or [self.federation.schedule.seed] * len(points))
        return self._program(self.federation.start, numbers, z0)(numbers, z0)

    def run(
        self,
        points: Sequence[Numbers],
        seeds: Sequence[int] | None = None,
        state: Tree = None,
        done: int = 0,
        *,
        seconds: float = 0.0,
        work: np.ndarray | None = None,
    ) -> Iterator[Snapshot]:
        """Evaluate, then alternate rounds and evaluations to the end.

        ``seeds`` holds the seed of each run, by default the schedule's. Runs of one seed share their minibatches; if
        seeds differ, each run has its own.
        ``state``, ``done``, ``seconds`` and ``work`` of a snapshot of the same runs go on from there; the first
        snapshot is then that one again. Ends early when every run has diverged.
        """
        seeds = list(seeds or [self.federation.schedule.seed] * len(points))
        devices = Devices.of(1 if self.federation.debug else self.devices, len(points))
        with self.programs.guard:  # one thread makes them
            rows, extra = self.federation.arrays
        state = self.start(points, seeds) if state is None else jax.device_put(state)
        numbers = self.federation.stack(points)
        work = np.zeros((len(points), 2), np.int64) if work is None else work
        measured, rows = devices.where_measured((rows.x, rows.y, extra)), devices.everywhere(rows)
        numbers, state = devices.by_run((numbers, state))
        state = devices.from_first(state)
        function = devices.evaluate(self.federation.evaluate)
        evaluate = self._program(function, *devices.first((numbers, state)), *measured)
        clock = time.perf_counter() - seconds

        def snapshot(state, work):
            found = evaluate(*devices.first((numbers, state)), *measured)
            now = _judged(found, state, done, work)
            return replace(now, seconds=time.perf_counter() - clock)

        now = snapshot(state, work)
        rounds = devices.everywhere(self._draw(done, seeds))
        while True:
            paused = time.perf_counter()
            yield now
            if rounds is None or now.diverged.all():
                return
            given = (numbers, devices.by_run(now.state), rows, rounds, devices.everywhere(np.int32(done)))
            advance = self._program(devices.advance(self.federation.advance, rounds.cohort.ndim == 2), *given)
            clock += time.perf_counter() - paused
            state, more = advance(*given)  # returns before it has finished,
            done = self._next(done)
            rounds = devices.everywhere(self._draw(done, seeds))  # so that the next rounds are drawn meanwhile
            examples, passes, proxes = np.moveaxis(np.asarray(more), 2, 0).astype(np.int64)  # each (G, clients + 1)
            gradients = examples.sum(axis=1) + passes[:, :-1] @ self.federation.schedule.worked
            now = snapshot(state, now.work + np.stack([gradients, proxes.sum(axis=1)], axis=1))

    def follow(
        self, points: Sequence[Numbers], seeds: Sequence[int], done: int, told: Callable[[], np.ndarray | None]
    ) -> None:
        """The part of a host that is not the first in what ``run`` computes there on ``devices`` of all, after ``done``
        rounds. ``told`` says after each evaluation which runs have diverged, (G,); None that there are no more rounds.
        """
        devices = Devices.of(self.devices, len(points))
        rows = devices.everywhere(self.federation.arrays[0])
        numbers, state = devices.by_run((self.federation.stack(points), self.start(points, seeds)))
        state, rounds = devices.from_first(state), self._draw(done, seeds)
        while rounds is not None and (diverged := told()) is not None:
            state = devices.by_run(state | {"diverged": diverged})
            given = (numbers, state, rows, devices.everywhere(rounds), devices.everywhere(np.int32(done)))
            advance = self._program(devices.advance(self.federation.advance, rounds.cohort.ndim == 2), *given)
            state, _ = advance(*given)
            done = self._next(done)
            rounds = self._draw(done, seeds)
            jax.block_until_ready(state)

    def _next(self, done: int) -> int:
        """When there is an evaluation next."""
        return min(done + self.eval_every - done % self.eval_every, self.rounds)

    def _draw(self, done: int, seeds: Sequence[int]) -> Rounds | None:
        """The rounds up to the next evaluation; with a leading axis for the runs, if their seeds differ."""
        count = min(self.eval_every - done % self.eval_every, self.rounds - done)
        if count <= 0:
            return None
        schedule = self.federation.schedule
        drawn = {seed: schedule.of(seed).draw(done, count) for seed in set(seeds)}
        if len(drawn) == 1:
            return drawn[seeds[0]]
        return Rounds(*(np.stack(parts) for parts in zip(*(drawn[seed] for seed in seeds), strict=True)))

    def _program(self, function: Callable, *arguments: Any) -> Callable:
        return untraced(function) if self.federation.debug else self.programs.of(function, *arguments)


def _judged(found: tuple, state: Tree, done: int, work: np.ndarray) -> Snapshot:
    """A snapshot of what was measured after ``done`` rounds, without its time; a loss that is lost is divergence."""
    models = found[2]
    metrics, solution = jax.tree.map(np.asarray, found[:2])
    losses = [metrics[name] for name in ("train_loss", "personal_train_loss") if name in metrics]
    diverged = np.asarray(state["diverged"])
    lost = (diverged == 0) & ~np.isfinite(losses).all(axis=0)
    diverged = np.where(lost, max(done, 1), diverged).astype(np.int32)
    return Snapshot(
        round=done,
        seconds=0.0,
        metrics=metrics,
        solution=solution,
        diverged=diverged,
        state=state | {"diverged": jax.device_put(diverged)},
        work=work,
        models=models,
    )


def untraced(function: Callable) -> Callable:
    """The function itself, called without jit: slow, and an error in it says where it came up."""

    def call(*arguments: Any) -> Any:
        with jax.disable_jit():
            return function(*arguments)

    return call
