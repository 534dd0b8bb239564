"""Bytes that clients, edges and the server send each other, and the simulated time that a run takes."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.algorithms.base import Algorithm, PyTree
from fcorun.algorithms.local_data import LocalData, RecordingLocalData
from fcorun.algorithms.output_check import trace_messages
from fcorun.communication.asynchronous import Asynchronous
from fcorun.communication.base import Topology
from fcorun.communication.rounds import MessageBytes
from fcorun.datasets.base import FederatedData
from fcorun.engine.arrays import first_row
from fcorun.engine.schedule import Schedule
from fcorun.errors import UserError
from fcorun.problem.problem import Problem

_CLIENTS_AT_ONCE = 2**20  # clients of several rounds whose times are computed together


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

    def through_uplink(self, topology: Topology) -> tuple[PyTree, ...]:
        """Return the shapes of what passes the uplink: uploads, or the messages of nodes to each other."""
        return (self.edge_upload,) if topology.has_nodes else self.uploads


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
        return trace_messages(algorithm, recording_problem, w0, local, frozen=local_frozen if frozen else None)

    uploads, broadcasts, edge_upload = shape_of(trees)
    return MessageShapes(uploads, broadcasts, edge_upload, accessed)


@dataclass(frozen=True)
class Traffic:
    """The bytes that a run sends, which its topology knows for each round, and its simulated time.

    Attributes:
        links: the links of ``Topology.connect``, or None.
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
    times: dict[MessageBytes, dict[str, np.ndarray]] = field(default_factory=dict, compare=False, repr=False)
    gradients: list[np.ndarray] = field(default_factory=list, compare=False, repr=False)

    def bytes_after(self, rounds: int, sizes: MessageBytes, counted: int = 0) -> dict[str, int]:
        """Return the byte counters after ``rounds`` rounds of messages of these sizes.

        ``counted`` are the bytes of broadcasts to all clients in these rounds that the downlink has counted.
        """
        if sizes not in self.totals:
            self.totals[sizes] = self._totals(sizes)
        if self.sending_rounds is not None:
            rounds = min(rounds, self.sending_rounds)
        totals = {name: int(total[rounds]) for name, total in self.totals[sizes].items()}
        totals["bytes_down"] += counted
        return totals

    def times_after(self, rounds: int, sizes: MessageBytes) -> dict[str, float]:
        """Return the simulated time after ``rounds`` rounds, with an asynchronous server also the mean staleness.

        Staleness is the number of the server's updates between a client's start and the arrival of its upload.
        """
        if self.schedule.times is None:
            return {}
        if sizes not in self.times:
            self.times[sizes] = self._times(sizes)
        return {name: float(values[rounds]) for name, values in self.times[sizes].items()}

    def check_gradients(self, rounds: int, grad_evals: int) -> None:
        """Raise UserError if clients computed other gradients than the ones that the simulated time counts."""
        if self.schedule.times is None:
            return
        if not self.gradients:
            self.gradients.append(self._count_gradients())
        if self.gradients[0][rounds] != grad_evals:
            raise UserError(
                f"the clock counts one gradient for each row of a local step, {self.gradients[0][rounds]} in {rounds} "
                f"rounds, and this algorithm computed {grad_evals}, so its simulated time is unknown: leave clock out"
            )

    def _count_gradients(self) -> np.ndarray:
        """Return the rows of the local steps of all clients before and after each round, (rounds + 1,)."""
        schedule = self.schedule
        cohorts = [schedule.draw_cohort(number) for number in range(self.rounds)]
        works = [schedule.number_works(np.full(len(c), r)) for r, c in enumerate(cohorts)]
        counts = [schedule.count_gradients(w, c).sum() for w, c in zip(works, cohorts, strict=True)]
        return np.cumsum([0, *counts])

    def _times(self, sizes: MessageBytes) -> dict[str, np.ndarray]:
        """Return the simulated time before and after each round, (rounds + 1,), and the mean staleness."""
        schedule = self.schedule
        if isinstance(self.topology, Asynchronous):
            arrivals = schedule.arrivals(max(self.rounds, 1))
            staleness = self.topology.staleness(arrivals.starts[: self.rounds], np.arange(self.rounds))
            mean_staleness = np.cumsum(staleness) / np.arange(1, self.rounds + 1)
            return {
                "simulated_seconds": np.append(0.0, arrivals.seconds[: self.rounds]),
                "mean_staleness": np.append(0.0, mean_staleness),
            }
        cohort_size = schedule.cohort_size
        in_a_chunk = max(_CLIENTS_AT_ONCE // cohort_size, 1)
        durations = []
        for start in range(0, self.rounds, in_a_chunk):
            numbers = np.arange(start, min(start + in_a_chunk, self.rounds))
            cohorts = np.concatenate([schedule.draw_cohort(int(number)) for number in numbers])
            message_bytes = (sizes.broadcasts[0], sizes.uploads[0])
            seconds = schedule.client_seconds(np.repeat(numbers, cohort_size), cohorts, message_bytes)
            durations.append(seconds.reshape(-1, cohort_size).max(axis=1))
        return {"simulated_seconds": np.cumsum([0.0, *np.concatenate(durations or [np.zeros(0)])])}

    def _totals(self, sizes: MessageBytes) -> dict[str, np.ndarray]:
        """Return the bytes sent before and after each round, (rounds + 1,), by counter."""
        schedule = self.schedule
        first = self._round_bytes(0, sizes)
        if self.frozen:
            first = dict.fromkeys(first, 0)
        all_clients = schedule.cohort_size == len(schedule.sizes)
        is_even = self.sizes_of_round is None and (all_clients or not self.topology.bytes_depend_on_cohort)
        is_even = is_even and not self.topology.redraws_links
        if self.frozen or is_even:
            return {name: np.arange(self.rounds + 1) * count for name, count in first.items()}
        by_round = [self._round_bytes(number, sizes) for number in range(self.rounds)]
        return {name: np.cumsum([0, *(counts[name] for counts in by_round)]) for name in first}

    def _round_bytes(self, number: int, sizes: MessageBytes) -> dict[str, int]:
        """Return the bytes of a round, counted from 0."""
        if self.sizes_of_round is not None:
            uploads, broadcasts = self.sizes_of_round(number, sizes.uploads, sizes.broadcasts)
            sizes = sizes._replace(uploads=uploads, broadcasts=broadcasts, edge_broadcast=broadcasts[-1])
        return self.topology.round_bytes(self.schedule.draw_cohort(number), self.links_in_round(number), sizes)

    def links_in_round(self, number: int) -> Any:
        """Return the links of a round, counted from 0."""
        drawn = self.topology.draw_links(self.links, self.schedule.seed, np.array([number]))
        return self.topology.links_of_round(self.links, jax.tree.map(lambda values: values[0], drawn))
