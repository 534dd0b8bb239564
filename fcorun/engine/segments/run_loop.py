"""The loop of a batch of runs: segment after segment, with evaluations in between."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.algorithms.base import PyTree
from fcorun.engine.arrays import target_dtype
from fcorun.engine.devices import Devices
from fcorun.engine.segments.evaluation_blocks import evaluation_splits, read_blocks
from fcorun.engine.segments.segment import Segment, Segments
from fcorun.rows.rows import Rows
from fcorun.system.arrays import DoubleBuffer
from fcorun.system.hosts import current_hosts, silence_stdout
from fcorun.system.interruption import check_interrupted


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
        metrics = self.segments.federation.evaluation.add_ranking(metrics)
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
            state = self.devices.shard_by_run(self.segments.with_client_states(state, [clients] * len(states)))
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
            sums = self._sum_blocks(numbers, {"server": server})
        else:
            arguments = (numbers, {"server": server}, *self.evaluation_rows)
            sums = self.compile_untimed(devices.map_evaluate(federation.split_sums), *arguments)(*arguments)
        if not devices.sharded_rows:
            return sums
        sums = devices.shard_by_host(sums)
        return self.compile_untimed(devices.sum_over_hosts, sums)(sums)

    def contribute_sums(self, state: PyTree) -> None:
        """Compute this follower's part of the leader's evaluation, where rows are sharded."""
        if self.devices.sharded_rows:
            self.split_sums(state)

    def _sum_blocks(self, numbers: Any, state: PyTree) -> dict[str, dict[str, jax.Array]]:
        federation = self.segments.federation
        function = self.devices.map_evaluate(federation.split_sums)
        sums: dict[str, dict[str, jax.Array]] = {}
        y_dtype = target_dtype(federation.data, federation.precision)
        for split, block in read_blocks(self._evaluation_splits, y_dtype, federation.precision, self.buffers):
            _check_interrupted()
            jax.block_until_ready(sums)  # the next block reuses the memory of the block before
            block = self.devices.place_for_evaluation(block)
            block_sums = self.compile_untimed(function, numbers, state, *block)(numbers, state, *block)["train"]
            sums[split] = jax.tree.map(jnp.add, sums[split], block_sums) if split in sums else block_sums
        return sums

    @cached_property
    def _evaluation_splits(self) -> dict[str, Rows]:
        return evaluation_splits(self.segments.federation.evaluation)

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
