"""The bytes that clients, edges and the server send each other in a run, and the simulated time that it takes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np

from fcorun.base.errors import UserError
from fcorun.engine.schedule import Schedule
from fcorun.methods.communication.asynchronous import Asynchronous
from fcorun.methods.communication.contracts import MessageBytes, Topology

_CLIENTS_AT_ONCE = 2**20  # clients of several rounds whose times are computed together


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
    totals: dict[tuple[MessageBytes, float], dict[str, np.ndarray]] = field(
        default_factory=dict, compare=False, repr=False
    )
    times: dict[MessageBytes, dict[str, np.ndarray]] = field(default_factory=dict, compare=False, repr=False)

    def bytes_after(
        self, rounds: int, sizes: MessageBytes, counted: int = 0, dropout: float | None = None
    ) -> dict[str, int]:
        """Return the byte counters after ``rounds`` rounds of messages of these sizes.

        Args:
            counted: the bytes of broadcasts to all clients in these rounds that the downlink has counted.
            dropout: the run's ``Faults.dropout_threshold``; None: that of the schedule's faults.
        """
        threshold = self.schedule.faults.dropout_threshold if dropout is None else dropout
        if (sizes, threshold) not in self.totals:  # by counter, before and after each round
            schedule = self.schedule
            same_bytes = schedule.takes_all_clients or not self.topology.bytes_depend_on_cohort
            is_even = self.sizes_of_round is None and schedule.participation is None and same_bytes
            is_even = is_even and not (self.topology.redraws_links or schedule.faults.drops_out)
            first = self._round_bytes(0, sizes, threshold)
            if self.frozen:
                first = dict.fromkeys(first, 0)
            if self.frozen or is_even:
                totals_of = {name: np.arange(self.rounds + 1) * count for name, count in first.items()}
            else:
                by_round = [self._round_bytes(number, sizes, threshold) for number in range(self.rounds)]
                totals_of = {name: np.cumsum([0, *(counts[name] for counts in by_round)]) for name in first}
            self.totals[sizes, threshold] = totals_of
        if self.sending_rounds is not None:
            rounds = min(rounds, self.sending_rounds)
        totals = {name: int(total[rounds]) for name, total in self.totals[sizes, threshold].items()}
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
        expected = self._gradient_counts[rounds]
        if expected != grad_evals:
            raise UserError(f"the clock counts one gradient for each row of a local step, {expected} in {rounds} "
                            f"rounds, and this algorithm computed {grad_evals}, so its simulated time is unknown: "
                            "leave clock out")  # fmt: skip

    @cached_property
    def _gradient_counts(self) -> np.ndarray:
        """The rows of the local steps of all clients up to each round, (rounds + 1,)."""
        counts = [0]
        for number in range(self.rounds):
            cohort = self.schedule.draw_cohort(number)
            works = self.schedule.number_works(np.full(len(cohort), number))
            counts.append(self.schedule.count_gradients(works, cohort).sum())
        return np.cumsum(counts)

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

    def _round_bytes(self, number: int, sizes: MessageBytes, threshold: float) -> dict[str, int]:
        """Return the bytes of a round, counted from 0, with this ``Faults.dropout_threshold``."""
        if self.sizes_of_round is not None:
            uploads, broadcasts = self.sizes_of_round(number, sizes.uploads, sizes.broadcasts)
            sizes = sizes._replace(uploads=uploads, broadcasts=broadcasts, edge_broadcast=broadcasts[-1])
        cohort, links = self.schedule.draw_participants(number), self.links_in_round(number)
        counts = self.topology.round_bytes(cohort, links, sizes)
        faults = self.schedule.faults
        if not faults.drops_out:
            return counts
        present = cohort[self.schedule.draw_present(np.array([number]), cohort[None], threshold)[0]]
        of_present = self.topology.round_bytes(present, links, sizes)
        return {
            name: count if name.endswith("down") and not faults.drops_before else of_present[name]
            for name, count in counts.items()
        }

    def links_in_round(self, number: int) -> Any:
        """Return the links of a round, counted from 0."""
        drawn = self.topology.draw_links(self.links, self.schedule.seed, np.array([number]))
        return self.topology.links_of_round(self.links, jax.tree.map(lambda values: values[0], drawn))
