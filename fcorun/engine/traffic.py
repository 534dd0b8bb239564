"""Bytes that clients, edges and the server send each other."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fcorun.algorithms.base import Algorithm, PyTree
from fcorun.algorithms.local_data import LocalData, RecordingLocalData
from fcorun.algorithms.output_check import trace_outputs
from fcorun.communication.base import Topology
from fcorun.communication.rounds import MessageBytes
from fcorun.datasets.base import FederatedData
from fcorun.engine.arrays import first_row
from fcorun.engine.schedule import Schedule
from fcorun.problem.problem import Problem


class MessageShapes(NamedTuple):
    """The shapes of an algorithm's messages, and the optional inputs that its functions access.

    Attributes:
        uploads, broadcasts: what a client sends, and what it receives, in each exchange of a round.
        edge_upload: what an edge sends.
        accessed: the names of "key_bits", "shared_uniforms" and "whole" that ``local`` reads, and "server_key" if a
            function of the server reads ``problem.key``.
    """

    uploads: tuple[PyTree, ...]
    broadcasts: tuple[PyTree, ...]
    edge_upload: PyTree
    accessed: set[str]


def trace_message_shapes(
    algorithm: Algorithm,
    problem: Problem,
    data: FederatedData,
    schedule: Schedule,
    *,
    dtype: Any,
    shape_of: Callable,
    frozen: bool = False,
) -> MessageShapes:
    """Trace the shapes of the messages; ``shape_of`` returns the shapes of a function's result."""
    accessed: set[str] = set()
    recording_problem = replace(problem, accessed=accessed)

    def trees():
        rows = jnp.zeros((1 if schedule.full_batch_steps else int(schedule.steps.max()), 1), jnp.int32)
        first = LocalData(*first_row(data, dtype), rows, dtype).with_whole_data(rows[0])
        steps = {
            "full_batch_steps": schedule.full_batch_steps,
            "uneven_steps": schedule.uneven_steps,
            "whole": first.whole,
        }
        local, local_frozen = (
            RecordingLocalData(first.x, first.y, rows, dtype, **steps, frozen=value, accessed=accessed)
            for value in (False, True)
        )
        w0 = problem.zeros(dtype)
        return trace_outputs(algorithm, recording_problem, w0, local, frozen=local_frozen if frozen else None)

    uploads, broadcasts, edge_upload = shape_of(trees)
    return MessageShapes(uploads, broadcasts, edge_upload, accessed)


@dataclass(frozen=True)
class Traffic:
    """The bytes that a run sends, which its topology knows for each round.

    Attributes:
        links: the array of ``Topology.connect``, or None.
        frozen: whether the server's model is fixed, so that nothing is sent.
        sending_rounds: the number of rounds in which messages are sent, the first ones; None: all rounds.
        sizes_of_round: the method ``round_bytes`` of an algorithm whose rounds send different messages, or None.
    """

    topology: Topology
    links: Any
    schedule: Schedule
    rounds: int
    frozen: bool = False
    sending_rounds: int | None = None
    sizes_of_round: Callable[[int, tuple[int, ...], tuple[int, ...]], tuple] | None = None
    totals: dict[MessageBytes, dict[str, np.ndarray]] = field(default_factory=dict, compare=False, repr=False)

    def bytes_after(self, rounds: int, sizes: MessageBytes) -> dict[str, int]:
        """Return the byte counters after ``rounds`` rounds of messages of these sizes."""
        if sizes not in self.totals:
            self.totals[sizes] = self._totals(sizes)
        if self.sending_rounds is not None:
            rounds = min(rounds, self.sending_rounds)
        return {name: int(total[rounds]) for name, total in self.totals[sizes].items()}

    def _totals(self, sizes: MessageBytes) -> dict[str, np.ndarray]:
        """Return the bytes sent before and after each round, (rounds + 1,), by counter."""
        schedule = self.schedule
        first = self._round_bytes(0, sizes)
        if self.frozen:
            first = dict.fromkeys(first, 0)
        all_clients = schedule.cohort_size == len(schedule.sizes)
        is_even = self.sizes_of_round is None and (all_clients or not self.topology.bytes_depend_on_cohort)
        if self.frozen or is_even:
            return {name: np.arange(self.rounds + 1) * count for name, count in first.items()}
        by_round = [self._round_bytes(number, sizes) for number in range(self.rounds)]
        return {name: np.cumsum([0, *(counts[name] for counts in by_round)]) for name in first}

    def _round_bytes(self, number: int, sizes: MessageBytes) -> dict[str, int]:
        """Return the bytes of a round, counted from 0."""
        if self.sizes_of_round is not None:
            uploads, broadcasts = self.sizes_of_round(number, sizes.uploads, sizes.broadcasts)
            sizes = sizes._replace(uploads=uploads, broadcasts=broadcasts)
        return self.topology.round_bytes(self.schedule.draw_cohort(number), self.links, sizes)
