"""Runs on their way: stretch after stretch, and what is measured in between."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.algorithms.base import Tree
from fcorun.engine.devices import Devices
from fcorun.engine.stretch.ahead import Stretch, Stretches
from fcorun.engine.stretch.blocks import Part, blocks, parts
from fcorun.system.arrays import Buffers
from fcorun.system.hosts import hushed, joined
from fcorun.system.interruption import check_interrupted


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
class Course:
    """The runs of a call on their way: what does not change, and the time that they have taken.

    Attributes:
        measured: x and y that are measured, or None where they stay on disk, and what the evaluation needs beside them.
        compiled: the program of a function for such arguments.
        clock: when they would have begun, had they never paused.
    """

    devices: Devices
    numbers: Any
    rows: Any
    measured: tuple
    stretches: Stretches
    compiled: Callable[..., Callable]
    clock: float = 0.0
    buffers: Buffers = field(default_factory=Buffers)

    def snapshot(self, state: Tree, done: int, work: np.ndarray) -> Snapshot:
        """The runs after ``done`` rounds."""
        metrics, *found = self.measure(state)
        metrics = self.stretches.federation.evaluation.ranked(metrics)
        now = _judged((metrics, *found), state, done, work)
        return replace(now, seconds=time.perf_counter() - self.clock)

    def program(self, function: Callable, *given: Any) -> Callable:
        """The program of a function; compiling it takes none of the runs' time."""
        begun = time.perf_counter()
        found = self.compiled(function, *given)
        self.clock += time.perf_counter() - begun
        return found

    def from_first(self, tree: Tree) -> Tree:
        """What the first of several hosts has, everywhere; the others give arrays of the same shapes."""
        if joined() is None:
            return tree
        passed = self.program(self.devices.from_first, tree)
        with hushed():
            return jax.block_until_ready(passed(tree))

    def measure(self, state: Tree, only_compile: bool = False) -> Any:
        """What ``Federation.evaluate`` returns. Rows that stay on disk are read in blocks while the device computes."""
        federation, states = self.stretches.federation, self.stretches.states
        if states is not None and federation.algorithm.personalises:
            evaluated = np.arange(len(federation.data.sizes))
            state = self.devices.by_run(self.stretches.of_clients(state, [evaluated] * len(states)))
        measured = self.measured
        if federation.data.on_disk or federation.data.cut is not None:
            if only_compile:
                return None
            state, measured = state | {"sums": self.sums(state)}, (None, None, measured[-1])
        numbers, state = self.devices.first((self.numbers, state))
        function = self.devices.evaluate(federation.evaluate)
        evaluate = self.program(function, numbers, state, *measured)
        return None if only_compile else evaluate(numbers, state, *measured)

    def sums(self, state: Tree) -> dict[str, dict[str, jax.Array]]:
        """Of each run, the sums over the rows of each part; of all hosts together, which are all to ask for them."""
        federation, devices = self.stretches.federation, self.devices
        numbers, server = devices.first((self.numbers, state["server"]))
        if federation.data.on_disk:
            found = self._by_block(numbers, {"server": server})
        else:
            given = (numbers, {"server": server}, *self.measured)
            found = self.program(devices.evaluate(federation.sums), *given)(*given)
        if federation.data.cut is None:
            return found
        found = devices.by_host(found)
        return self.program(devices.over_hosts(self.stretches.each), found)(found)

    def share(self, state: Tree) -> None:
        """On a host that is not the first: its part in what that one measures."""
        if self.stretches.federation.data.cut is not None:
            self.sums(state)

    def _by_block(self, numbers: Any, state: Tree) -> dict[str, dict[str, jax.Array]]:
        federation, found = self.stretches.federation, {}
        function = self.devices.evaluate(federation.sums)
        for part, block in blocks(self._parts, federation.precision, self.buffers):
            _check_interrupted()
            jax.block_until_ready(found)  # the block before is done with, whose memory the next one gets
            block = self.devices.where_measured(block)
            more = self.program(function, numbers, state, *block)(numbers, state, *block)["train"]
            found[part] = jax.tree.map(jnp.add, found[part], more) if part in found else more
        return found

    @cached_property
    def _parts(self) -> list[Part]:
        return parts(self.stretches.federation.evaluation)

    def to_evaluation(
        self, state: Tree, stretch: Stretch | None, work: np.ndarray, done: int
    ) -> tuple[Tree, Stretch | None, np.ndarray, int]:
        """The runs, the next stretch, the work and the rounds that were done, when there is an evaluation next."""
        due = False
        while stretch is not None and not due:
            _check_interrupted()
            state, stretch, more, done = self.advance(state, stretch, done)
            work, due = work + more, done % self.stretches.eval_every == 0
        return state, stretch, work, done

    def advance(self, state: Tree, stretch: Stretch, done: int) -> tuple[Tree, Stretch | None, np.ndarray, int]:
        """The runs after a stretch, the next stretch, the work that was done, (G, 2), and the rounds done."""
        federation, devices = self.stretches.federation, self.devices
        begun = devices.by_run(self.stretches.begun(state, stretch))
        begun = begun if stretch.clients is None else self.from_first(begun)  # which has the clients' states
        own = federation.data.cut is not None
        put = devices.by_host if own else devices.everywhere
        rows = self.rows if stretch.rows is None else put(stretch.rows)
        given = (self.numbers, begun, rows, devices.rounds(stretch.rounds), devices.everywhere(np.int32(done)))
        function = devices.advance(federation.advance, stretch.rounds.cohort.ndim == 2, own)
        end, more = self.program(function, *given)(*given)  # returns before it has finished,
        done += stretch.count
        following = self.stretches.after(done)  # so that the next rounds are drawn, and read, meanwhile
        examples, passes, proxes = np.moveaxis(np.asarray(more), 2, 0).astype(np.int64)  # each (G, clients + 1)
        gradients = examples.sum(axis=1) + passes[:, :-1] @ federation.schedule.worked
        work = np.stack([gradients, proxes.sum(axis=1)], axis=1)
        return self.stretches.ended(end, stretch, state, done), following, work, done


def _check_interrupted() -> None:
    """Raise KeyboardInterrupt if a signal has been noted; not on several hosts, which end together after a round."""
    if joined() is None:
        check_interrupted()


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
