"""Runs on their way: stretch after stretch, and what is measured in between."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.algorithms.base import PyTree
from fcorun.engine.devices import Devices
from fcorun.engine.segments.evaluation_blocks import EvaluationSplit, evaluation_splits, read_blocks
from fcorun.engine.segments.segment import Segment, Segments
from fcorun.system.arrays import DoubleBuffer
from fcorun.system.hosts import current_hosts, silence_stdout
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
    state: PyTree
    work: np.ndarray
    client_models: dict[str, jax.Array] | None = None


@dataclass
class RunLoop:
    """The runs of a call on their way: what does not change, and the time that they have taken.

    Attributes:
        measured: x and y that are measured, or None where they stay on disk, and what the evaluation needs beside them.
        compiled: the program of a function for such arguments.
        clock: when they would have begun, had they never paused.
    """

    devices: Devices
    numbers: Any
    rows: Any
    evaluation_rows: tuple
    segments: Segments
    compile_for: Callable[..., Callable]
    started: float = 0.0
    buffers: DoubleBuffer = field(default_factory=DoubleBuffer)

    def take_snapshot(self, state: PyTree, rounds_done: int, work: np.ndarray) -> Snapshot:
        """The runs after ``done`` rounds."""
        metrics, *found = self.evaluate(state)
        metrics = self.segments.federation.evaluation.add_ranking(metrics)
        now = _judged((metrics, *found), state, rounds_done, work)
        return replace(now, seconds=time.perf_counter() - self.started)

    def compile_untimed(self, function: Callable, *given: Any) -> Callable:
        """The program of a function; compiling it takes none of the runs' time."""
        begun = time.perf_counter()
        found = self.compile_for(function, *given)
        self.started += time.perf_counter() - begun
        return found

    def broadcast_from_first(self, tree: PyTree) -> PyTree:
        """What the first of several hosts has, everywhere; the others give arrays of the same shapes."""
        if current_hosts() is None:
            return tree
        passed = self.compile_untimed(self.devices.broadcast_from_first, tree)
        with silence_stdout():
            return jax.block_until_ready(passed(tree))

    def evaluate(self, state: PyTree, only_compile: bool = False) -> Any:
        """What ``Federation.evaluate`` returns. Rows that stay on disk are read in blocks while the device computes."""
        federation, states = self.segments.federation, self.segments.states
        if states is not None and federation.algorithm.has_personal_models:
            evaluated = np.arange(len(federation.data.sizes))
            state = self.devices.shard_by_run(self.segments.with_client_states(state, [evaluated] * len(states)))
        measured = self.evaluation_rows
        if federation.data.on_disk or federation.data.host_bounds is not None:
            if only_compile:
                return None
            state, measured = state | {"sums": self.split_sums(state)}, (None, None, measured[-1])
        numbers, state = self.devices.first_shard((self.numbers, state))
        function = self.devices.map_evaluate(federation.evaluate)
        evaluate = self.compile_untimed(function, numbers, state, *measured)
        return None if only_compile else evaluate(numbers, state, *measured)

    def split_sums(self, state: PyTree) -> dict[str, dict[str, jax.Array]]:
        """Of each run, the sums over the rows of each part; of all hosts together, which are all to ask for them."""
        federation, devices = self.segments.federation, self.devices
        numbers, server = devices.first_shard((self.numbers, state["server"]))
        if federation.data.on_disk:
            found = self._by_block(numbers, {"server": server})
        else:
            given = (numbers, {"server": server}, *self.evaluation_rows)
            found = self.compile_untimed(devices.map_evaluate(federation.split_sums), *given)(*given)
        if federation.data.host_bounds is None:
            return found
        found = devices.shard_by_host(found)
        return self.compile_untimed(devices.sum_over_hosts(self.segments.devices_per_host), found)(found)

    def contribute_sums(self, state: PyTree) -> None:
        """On a host that is not the first: its part in what that one measures."""
        if self.segments.federation.data.host_bounds is not None:
            self.split_sums(state)

    def _by_block(self, numbers: Any, state: PyTree) -> dict[str, dict[str, jax.Array]]:
        federation, found = self.segments.federation, {}
        function = self.devices.map_evaluate(federation.split_sums)
        for part, block in read_blocks(self._parts, federation.precision, self.buffers):
            _check_interrupted()
            jax.block_until_ready(found)  # the block before is done with, whose memory the next one gets
            block = self.devices.place_for_evaluation(block)
            more = self.compile_untimed(function, numbers, state, *block)(numbers, state, *block)["train"]
            found[part] = jax.tree.map(jnp.add, found[part], more) if part in found else more
        return found

    @cached_property
    def _parts(self) -> list[EvaluationSplit]:
        return evaluation_splits(self.segments.federation.evaluation)

    def run_to_evaluation(
        self, state: PyTree, stretch: Segment | None, work: np.ndarray, rounds_done: int
    ) -> tuple[PyTree, Segment | None, np.ndarray, int]:
        """The runs, the next stretch, the work and the rounds that were done, when there is an evaluation next."""
        due = False
        while stretch is not None and not due:
            _check_interrupted()
            state, stretch, more, rounds_done = self.run_segment(state, stretch, rounds_done)
            work, due = work + more, rounds_done % self.segments.eval_every == 0
        return state, stretch, work, rounds_done

    def run_segment(
        self, state: PyTree, stretch: Segment, rounds_done: int
    ) -> tuple[PyTree, Segment | None, np.ndarray, int]:
        """The runs after a stretch, the next stretch, the work that was done, (G, 2), and the rounds done."""
        federation, devices = self.segments.federation, self.devices
        begun = devices.shard_by_run(self.segments.load_client_states(state, stretch))
        begun = begun if stretch.clients is None else self.broadcast_from_first(begun)  # which has the clients' states
        own = federation.data.host_bounds is not None
        put = devices.shard_by_host if own else devices.replicate
        rows = self.rows if stretch.rows is None else put(stretch.rows)
        given = (
            self.numbers,
            begun,
            rows,
            devices.place_rounds(stretch.rounds),
            devices.replicate(np.int32(rounds_done)),
        )
        function = devices.map_advance(federation.advance, stretch.rounds.cohort.ndim == 2, own)
        end, more = self.compile_untimed(function, *given)(*given)  # returns before it has finished,
        rounds_done += stretch.n_rounds
        following = self.segments.next_segment(rounds_done)  # so that the next rounds are drawn, and read, meanwhile
        examples, passes, proxes = np.moveaxis(np.asarray(more), 2, 0).astype(np.int64)  # each (G, clients + 1)
        gradients = examples.sum(axis=1) + passes[:, :-1] @ federation.schedule.work_sizes
        work = np.stack([gradients, proxes.sum(axis=1)], axis=1)
        return self.segments.store_client_states(end, stretch, state, rounds_done), following, work, rounds_done


def _check_interrupted() -> None:
    """Raise KeyboardInterrupt if a signal has been noted; not on several hosts, which end together after a round."""
    if current_hosts() is None:
        check_interrupted()


def _judged(found: tuple, state: PyTree, done: int, work: np.ndarray) -> Snapshot:
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
        client_models=models,
    )
