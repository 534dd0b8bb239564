"""The clients and rows of each round, drawn ahead on the host, and the simulated times of clients.

Times follow from the clients' speeds, the rows of their minibatches and the bytes of their messages, not from any
number that a run computes. So the host knows them before a round, and a resumed run has the same times.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fcorun.base.system import random_streams
from fcorun.methods.clocks.clock import ClientSpeeds
from fcorun.methods.communication.faults import FaultDraws, Faults, NoFaults

# the streams of a run
START, _COHORT, _BATCHES, _SHARED, _KEY, _SERVER_KEY = range(6)
_INITIAL_KEY, _TIMES, _DROPOUTS, _UNRELIABLE, _LIARS, _PARTICIPATION, _NOISE, _TURNS = range(6, 14)
_CACHED = 2**16  # random numbers that are sorted at a time, so that they stay in the cache
_ROUNDS_AHEAD = 64
_NUMBERS_AHEAD = 2**18  # row numbers of minibatches that are drawn at a time


@dataclass(frozen=True)
class ClientTimes:
    """The times of M clients, from their speeds.

    Attributes:
        deadline: the seconds after which a client ends its local steps; None: no deadline.
    """

    speeds: ClientSpeeds
    deadline: float | None = None

    def gradient_seconds(self, seed: int, numbers: np.ndarray, clients: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return the seconds of the gradient of one example, (N,), of clients in the rounds ``numbers``.

        All arguments but the seed have the shape (N,). ``keys`` identify the clients in their random streams.
        """
        seconds = 1 / self.speeds.gradients_per_second[clients]
        if not self.speeds.variation:
            return seconds
        from scipy.special import ndtri  # takes long to import, and few runs have a clock

        uniform = random_streams.draw_uniforms(random_streams.stream_states(_TIMES, seed, numbers, keys), 1)[:, 0]
        return seconds * np.exp(self.speeds.variation * ndtri(uniform + 2.0**-54))

    def message_seconds(self, clients: np.ndarray, n_bytes: int) -> np.ndarray:
        """Return the seconds that a message of so many bytes to or from each client takes, (N,)."""
        return self.speeds.latency[clients] + n_bytes / self.speeds.bytes_per_second[clients]


class Arrivals(NamedTuple):
    """The arrivals of uploads at an asynchronous server, in their order.

    Attributes:
        clients: the client of each arrival, (R,).
        seconds: the time of each arrival, (R,).
        starts: the number of arrivals before the client began, (R,).
        works: the number of the client's own arrivals before, (R,).
    """

    clients: np.ndarray
    seconds: np.ndarray
    starts: np.ndarray
    works: np.ndarray


def order_arrivals(work_seconds: Callable[[int], np.ndarray], n_arrivals: int) -> Arrivals:
    """Return the first arrivals of clients that all begin at time 0, and begin anew whenever their upload has arrived.

    Of two uploads that arrive at once, that of the client of the smaller number is first.

    Args:
        work_seconds: returns for a number J the seconds of the first J works of each client, (M, J).
    """
    count = 1
    while True:
        times = np.cumsum(work_seconds(count), axis=1)
        known = times <= times[:, -1].min()  # later arrivals may be preceded by ones that are not yet drawn
        if known.sum() >= n_arrivals:
            break
        count *= 2
    clients, works = np.nonzero(known)
    order = np.lexsort((clients, times[known]))[:n_arrivals]
    clients, seconds, works = clients[order], times[known][order], works[order]
    starts = np.zeros(n_arrivals, np.int64)
    by_client = np.argsort(clients, kind="stable")  # the arrivals of each client one after the other
    same_client = clients[by_client][1:] == clients[by_client][:-1]
    starts[by_client[1:][same_client]] = by_client[:-1][same_client] + 1
    return Arrivals(clients, seconds, starts, works)


class Rounds(NamedTuple):
    """T rounds. On a tree, rows, shared_uniforms and both keys have one more axis after T, the rounds of an edge.

    Attributes:
        cohort: the clients of each round, (T, S).
        rows: the rows of each batch, (T, S, K, B) with -1 for none; (T, S, 0) where each batch is all of a client's
            data, so that no rows are drawn.
        weights: the weights of the cohort's clients, (T, S).
        cohort_share: the cohort's part of the weights of all clients, (T,).
        shared_uniforms: two numbers drawn uniformly from [0, 1) for all clients of a round, (T, 2).
        keys: the bits of a random key for each client, (T, S, 2).
        state_index: the position of each client's state among the loaded states, (T, S); None: all are loaded.
        whole_rows: all rows of each client, (T, S, L) with -1 for none, where they are fetched for the rounds, or None.
        assignment: the positions in the cohort that each of D devices computes, (T, D, W) with -1 for none; None: an
            equal number each, in order.
        server_keys: the bits of a random key for the server, (T, 2), where they are read, or None.
        links: what ``Topology.draw_links`` returns for these rounds, stacked along T, or None.
        faults: which clients drop out and lie, or None.
    """

    cohort: np.ndarray
    rows: np.ndarray
    weights: np.ndarray
    cohort_share: np.ndarray
    shared_uniforms: np.ndarray
    keys: np.ndarray
    state_index: np.ndarray | None = None
    whole_rows: np.ndarray | None = None
    assignment: np.ndarray | None = None
    server_keys: np.ndarray | None = None
    links: Any = None
    faults: FaultDraws | None = None


@dataclass(frozen=True)
class Schedule:
    """The cohorts and minibatches of a run.

    A cohort, and the numbers that all its clients share, come from a generator seeded by (seed, stream, round). A
    client's batches and its key come from (seed, round, client) alone, where a client is identified by its name, or by
    its number without one. So they do not depend on the algorithm, the cohort or the other clients, and a resumed run
    draws the same numbers as an unbroken one.

    A cohort is uniform without replacement, or each client takes part by a probability, or clients take turns in one
    random order, over and over again: each takes part again after M / S rounds, rounded up or down. An epoch shuffles
    a client's rows and cuts them into batches of ``batch_size``, keeping the short last one; each epoch is shuffled
    anew. A client takes ``local_epochs`` epochs, or exactly ``local_steps`` batches from as many epochs as that needs.

    Attributes:
        clients_per_round: the number of clients of each round; None: all, or those of ``participation``.
        in_turn: whether clients take part in turn.
        participation: the probability, below 1, by which each client takes part in a round; None: a fixed number.
        edge_rounds: on a tree, the rounds of an edge with its clients in each round; else None.
        names: the names of the clients; empty: clients are identified by their numbers.
        client_weights: the total weight of each client's rows, (M,); None: their number.
        generated_clients: the number of clients, where each generates as many rows as ``offsets`` gives the first one,
            and numbers them from 0; else 0.
        device_starts: the position of each client's first row among the rows on its host's devices, (M,); None: as
            ``offsets`` gives it.
        row_positions: the position of each row among the rows on the device, (N,); None: in order.
        times: the simulated times of clients, whose deadline ends local steps; None: no simulated time.
        message_bytes: with an asynchronous server, the bytes of what a client receives and of its upload; its rounds
            are the arrivals of single uploads. None: the server waits for the cohort.
        arrivals_by_seed: the arrivals that are known, by the seed of the run and their number.
        faults: which clients drop out of rounds, and which lie.
        absences: the rounds and clients of ``Faults.find_absences``, or None.
    """

    offsets: np.ndarray
    seed: int
    clients_per_round: int | None = None
    in_turn: bool = False
    participation: float | None = None
    batch_size: int | None = None
    local_epochs: int | None = 1
    local_steps: int | None = None
    client_weighting: str = "examples"
    edge_rounds: int | None = None
    names: tuple[str, ...] = ()
    client_weights: np.ndarray | None = None
    generated_clients: int = 0
    device_starts: np.ndarray | None = None
    row_positions: np.ndarray | None = None
    times: ClientTimes | None = None
    message_bytes: tuple[int, int] | None = None
    arrivals_by_seed: dict[tuple[int, int], Arrivals] = field(default_factory=dict, compare=False, repr=False)
    faults: Faults = field(default_factory=NoFaults)
    absences: np.ndarray | None = None

    @cached_property
    def sizes(self) -> np.ndarray:
        """Return the number of rows of each client, shape (M,)."""
        if self.generated_clients:
            return np.broadcast_to(self.offsets[1] - self.offsets[0], self.generated_clients)
        return np.diff(self.offsets)

    @property
    def starts(self) -> np.ndarray:
        """Return the first row of each client, counted from the first one on its host, shape (M,)."""
        if self.generated_clients:
            return np.broadcast_to(0, self.generated_clients)
        return self.offsets[:-1] if self.device_starts is None else self.device_starts

    @property
    def work_sizes(self) -> np.ndarray:
        """Return the sizes of the clients whose work is counted: all clients, or a cohort of generated clients."""
        return self.sizes[: self.cohort_size] if self.generated_clients else self.sizes

    @cached_property
    def averaging_weights(self) -> np.ndarray:
        """Return the weight of each client in the server's mean, up to a factor, shape (M,)."""
        if self.client_weighting != "examples":
            return np.broadcast_to(1.0, len(self.sizes))
        return self.sizes if self.client_weights is None else self.client_weights

    @cached_property
    def _stored_keys(self) -> np.ndarray:
        return random_streams.client_keys(self.names or range(len(self.sizes)))

    def client_keys(self, clients: np.ndarray) -> np.ndarray:
        """Return the keys that identify these clients, (N,), in their random streams."""
        return random_streams.client_keys(clients) if self.generated_clients else self._stored_keys[clients]

    @property
    def cohort_size(self) -> int:
        """Return the number of clients that a round computes, of which not all take part with ``participation``.

        The number of those that take part exceeds it with a probability below 1e-15, by the inequality of Bernstein.
        """
        if self.message_bytes is not None:
            return 1
        if self.participation is not None:
            mean = self.participation * len(self.sizes)
            third = math.log(1e15) / 3
            return min(math.ceil(mean + third + math.sqrt(third**2 + 6 * third * mean)), len(self.sizes))
        return self.clients_per_round or len(self.sizes)

    @property
    def expected_share(self) -> float:
        """Return the part of the weights of all clients that a cohort has on average over the rounds."""
        return self.participation or self.cohort_size / len(self.sizes)

    @property
    def takes_all_clients(self) -> bool:
        """Return whether all clients take part in every round."""
        return self.participation is None and self.cohort_size == len(self.sizes)

    @cached_property
    def max_rows(self) -> int:
        """Return the largest number of rows of a client, L."""
        return int(self.sizes.max())

    @cached_property
    def max_batch(self) -> int:
        """Return the length of the longest batch, B."""
        return min(self.batch_size or self.max_rows, self.max_rows)

    @property
    def batch_sizes(self) -> np.ndarray:
        """Return the number of rows of the first batch of each client, (M,)."""
        return np.minimum(self.sizes, self.max_batch)

    @cached_property
    def steps(self) -> np.ndarray:
        """Return the number of local steps of each client, shape (M,)."""
        if self.local_steps is not None:
            return np.broadcast_to(self.local_steps, len(self.sizes))
        sizes = self.sizes[:1] if self.generated_clients else self.sizes
        return np.broadcast_to(-(-sizes // self.max_batch) * (self.local_epochs or 1), len(self.sizes))

    @cached_property
    def full_batch_steps(self) -> int | None:
        """Return the number of local steps where each takes a client's whole data, else None."""
        full = self.max_batch >= self.max_rows and not self.has_deadline
        return int(self.steps[0]) if full else None

    @property
    def has_deadline(self) -> bool:
        """Return whether a deadline may end the local steps of a client."""
        return self.times is not None and self.times.deadline is not None

    @property
    def uneven_steps(self) -> bool:
        """Return whether some clients take fewer steps than others."""
        return self.has_deadline or bool((self.steps != self.steps[0]).any())

    @property
    def effective_batch_rows(self) -> float:
        """Return a lower bound on the effective number of rows in a round's mean gradient, for any cohort.

        A mean of gradients with weights p_i has the variance of a mean of 1 / sum p_i^2 equally weighted gradients:
        rows in a short batch weigh more, and so do rows of clients whose weight exceeds their number of rows. On a tree
        an edge's cohort may be a single client, and so may that of ``participation``.
        """
        clients = slice(self.cohort_size if self.generated_clients else None)  # generated clients are all alike
        sizes, steps, weights = self.sizes[clients], self.steps[clients], self.averaging_weights[clients]
        full_batches, remainder = np.divmod(sizes, self.max_batch)
        short_steps = np.where(remainder > 0, steps // (full_batches + (remainder > 0)), 0)
        effective = steps**2 / ((steps - short_steps) / self.max_batch + short_steps / np.maximum(remainder, 1))
        effective = np.minimum(effective, sizes)
        if self.edge_rounds is not None or self.participation is not None:
            return float(effective.min())
        return float((effective / weights).min() * np.sort(weights)[: self.cohort_size].sum())

    def with_seed(self, seed: int) -> "Schedule":
        """Return the schedule of the same run with another seed."""
        return self if seed == self.seed else replace(self, seed=seed)

    def draw_rounds(self, start: int, count: int, client_mask: np.ndarray | None = None) -> Rounds:
        """Draw the rounds start, ..., start + count - 1, counted from 0.

        With ``client_mask`` (M,), only the draws of these clients are returned: of a single round, or of several rounds
        of all clients.
        """
        numbers = np.arange(start, start + count)
        cohorts = np.stack([self.draw_cohort(int(number)) for number in numbers])
        cohort_share = self.averaging_weights[cohorts].sum(axis=1) / self.averaging_weights.sum()
        if client_mask is not None:
            cohorts = cohorts[:, client_mask[cohorts[0]]]
        weights, faults = self.averaging_weights[cohorts], self._draw_faults(numbers, cohorts)
        clients = cohorts
        if self.edge_rounds is not None:  # (T, R): the rounds of the edges
            numbers = _number_edge_rounds(numbers, self.edge_rounds)
            clients = np.broadcast_to(cohorts[:, None], (*numbers.shape, cohorts.shape[1]))
        rows, keys = self._draw_batches(clients, np.broadcast_to(numbers[..., None], clients.shape))
        shared_states = random_streams.stream_states(_SHARED, self.seed, numbers.ravel())
        return Rounds(
            cohort=cohorts.astype(np.int32),
            rows=rows,
            weights=weights.astype(np.float32 if self.client_weights is None else np.float64),  # counts are exact
            cohort_share=cohort_share,
            shared_uniforms=random_streams.draw_uniforms(shared_states, 2).reshape(*numbers.shape, 2),
            keys=keys,
            faults=faults,
        )

    def _draw_faults(self, numbers: np.ndarray, cohorts: np.ndarray) -> FaultDraws | None:
        """Draw the faults of the clients of cohorts (T, S) in the rounds ``numbers`` (T,); None without faults."""
        if not self.faults.acts and self.participation is None:
            return None
        return FaultDraws(
            dropout_level=self._draw_dropout_levels(numbers, cohorts) if self.faults.drops_out else None,
            liar_rank=self.liar_ranks[cohorts].astype(np.int32) if self.faults.has_liars else None,
            takes_part=None if self.participation is None else self._draw_participants(numbers, cohorts),
        )

    def draw_present(self, numbers: np.ndarray, cohorts: np.ndarray, threshold: float) -> np.ndarray:
        """Draw which clients of cohorts (T, S) do not drop out of the rounds ``numbers`` (T,), bool (T, S).

        ``threshold`` is the ``Faults.dropout_threshold`` of the run.
        """
        return self._draw_dropout_levels(numbers, cohorts) >= np.float32(threshold)

    def _draw_dropout_levels(self, numbers: np.ndarray, cohorts: np.ndarray) -> np.ndarray:
        """Draw the levels of clients of cohorts (T, S) in the rounds ``numbers`` (T,), float32 (T, S)."""
        n_clients = len(self.sizes)
        if self.absences is not None:
            is_absent = np.isin(numbers[:, None] * n_clients + cohorts, self.absences @ [n_clients, 1])
            return np.where(is_absent, np.float32(0), np.float32(1))
        uniforms = self._draw_client_uniforms(_DROPOUTS, numbers, cohorts)
        return self.faults.dropout_levels(uniforms, cohorts, self._unreliability).astype(np.float32)

    def _draw_participants(self, numbers: np.ndarray, cohorts: np.ndarray) -> np.ndarray:
        """Draw which clients of cohorts (T, S) take part in the rounds ``numbers`` (T,), bool (T, S)."""
        return self._draw_client_uniforms(_PARTICIPATION, numbers, cohorts) < self.participation

    def _draw_client_uniforms(self, stream: int, numbers: np.ndarray, cohorts: np.ndarray) -> np.ndarray:
        """Draw a number from [0, 1) for each client of cohorts (T, S) in the rounds ``numbers`` (T,), (T, S)."""
        in_rounds = np.broadcast_to(numbers[:, None], cohorts.shape).ravel()
        states = random_streams.stream_states(stream, self.seed, in_rounds, self.client_keys(cohorts.ravel()))
        return random_streams.draw_uniforms(states, 1).reshape(cohorts.shape)

    @cached_property
    def _order_of_turns(self) -> np.ndarray:
        """The order in which clients take part, (M,)."""
        return np.argsort(self._rank_clients(_TURNS))

    @cached_property
    def _unreliability(self) -> np.ndarray:
        """The place of each client in the order in which clients become unreliable, (M,)."""
        return self._rank_clients(_UNRELIABLE)

    @cached_property
    def liar_ranks(self) -> np.ndarray:
        """Return the place of each client in the order in which clients become liars, (M,)."""
        return self.faults.liar_ranks(self._rank_clients(_LIARS))

    def _rank_clients(self, stream: int) -> np.ndarray:
        """Draw an order of all clients, and return the place of each in it, (M,)."""
        clients = np.arange(len(self.sizes))
        states = random_streams.stream_states(stream, self.seed, np.zeros(1, np.int64), self.client_keys(clients))
        return np.argsort(np.argsort(random_streams.draw_uniforms(states, 1)[:, 0]))

    def draw_server_keys(self, start: int, count: int) -> np.ndarray:
        """Draw the bits of the server's random key in each of ``count`` rounds, (T, 2), on a tree (T, R, 2)."""
        numbers = np.arange(start, start + count)
        if self.edge_rounds is not None:
            numbers = _number_edge_rounds(numbers, self.edge_rounds)
        return _key_bits(_SERVER_KEY, self.seed, numbers)

    def draw_initial_key(self) -> np.ndarray:
        """Draw the bits of the random key of the initial states, (2,)."""
        return _key_bits(_INITIAL_KEY, self.seed, np.zeros((), np.int64))

    def draw_noise_key(self) -> np.ndarray:
        """Draw the bits of the random key of privacy's noise, (2,)."""
        return _key_bits(_NOISE, self.seed, np.zeros((), np.int64))

    def draw_cohort(self, number: int) -> np.ndarray:
        """Draw the clients of the round ``number``, counted from 0.

        With ``participation`` others fill up the cohort, in the order of the clients; ``draw_participants`` has none.
        """
        clients = len(self.sizes)
        if self.message_bytes is not None:
            return self.arrivals(number + 1).clients[number : number + 1]
        if self.cohort_size == clients:
            return np.arange(clients)
        if self.participation is not None:
            uniforms = self._draw_client_uniforms(_PARTICIPATION, np.array([number]), np.arange(clients)[None])[0]
            return np.sort(np.argpartition(uniforms, self.cohort_size)[: self.cohort_size])
        if self.in_turn:
            turns = number * self.cohort_size + np.arange(self.cohort_size)
            return np.sort(self._order_of_turns[turns % clients])
        return np.random.default_rng([self.seed, _COHORT, number]).choice(clients, self.cohort_size, replace=False)

    def draw_participants(self, number: int) -> np.ndarray:
        """Draw the clients that take part in the round ``number``, counted from 0."""
        cohort = self.draw_cohort(number)
        if self.participation is None:
            return cohort
        return cohort[self._draw_participants(np.array([number]), cohort[None])[0]]

    def _draw_batches(self, clients: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draw the rows of the batches of each client (...) in its round, and the bits of its key."""
        shape, clients, numbers = clients.shape, clients.ravel(), numbers.ravel()
        client_keys = self.client_keys(clients)
        keys = random_streams.stream_states(_KEY, self.seed, numbers, client_keys).view(np.uint32).reshape(*shape, 2)
        if self.full_batch_steps:
            return np.empty((*shape, 0), np.int32), keys
        states = random_streams.stream_states(_BATCHES, self.seed, numbers, client_keys)
        sizes = self.sizes[clients]
        rows = np.full((len(clients), int(self.steps.max()), self.max_batch), -1, np.int32)
        for size in map(int, np.unique(sizes)):  # clients of one size together, as many as stay in the cache
            same_size = np.flatnonzero(sizes == size)
            steps = int(self.steps[clients[same_size[0]]])
            width = max(_CACHED // size, 1)
            per_epoch = -(-size // self.max_batch)
            epochs = -(-steps // per_epoch)
            for start in range(0, len(same_size), width):
                some = same_size[start : start + width]
                drawn = np.full((len(some), epochs, per_epoch * self.max_batch), -1)
                offsets = self.starts[clients[some]][:, None, None]
                drawn[..., :size] = random_streams.draw_permutations(states[some], epochs, size) + offsets
                rows[some, :steps] = drawn.reshape(len(some), epochs * per_epoch, self.max_batch)[:, :steps]
        if self.has_deadline:
            rows[~self._steps_in_time(self.number_works(numbers), clients)] = -1
        if self.row_positions is not None:
            rows = np.where(rows >= 0, self.row_positions[rows], -1).astype(np.int32)
        return rows.reshape(*shape, *rows.shape[1:]), keys

    def arrivals(self, count: int) -> Arrivals:
        """Return at least ``count`` arrivals at an asynchronous server."""
        n_arrivals = 1 << max(count - 1, 0).bit_length()
        if (self.seed, n_arrivals) not in self.arrivals_by_seed:
            self.arrivals_by_seed[self.seed, n_arrivals] = order_arrivals(self._work_seconds, n_arrivals)
        return self.arrivals_by_seed[self.seed, n_arrivals]

    def number_works(self, numbers: np.ndarray) -> np.ndarray:
        """Return the numbers by which the times of works are drawn in the rounds ``numbers``, counted from 0.

        A client's work belongs to a round, or with an asynchronous server to the count of the client's arrivals before.
        """
        if self.message_bytes is None:
            return numbers
        return self.arrivals(int(numbers.max()) + 1).works[numbers]

    def _work_seconds(self, count: int) -> np.ndarray:
        """Return the seconds of the first ``count`` works of each client with their messages, (M, count)."""
        assert self.message_bytes is not None
        shape = (len(self.sizes), count)
        clients, numbers = (grid.ravel() for grid in np.indices(shape))
        return self.client_seconds(numbers, clients, self.message_bytes).reshape(shape)

    def client_seconds(self, numbers: np.ndarray, clients: np.ndarray, message_bytes: tuple[int, int]) -> np.ndarray:
        """Return the seconds from the broadcast to the arrival of the upload of clients in their works, (N,).

        A client whose steps a deadline ends works until the deadline, or to the end of its first step.

        Args:
            numbers: the numbers of the works, as ``number_works`` returns them.
            message_bytes: the bytes of what a client receives, and of its upload.
        """
        assert self.times is not None
        n_gradients = self.count_gradients(numbers, clients)
        seconds = n_gradients * self.times.gradient_seconds(self.seed, numbers, clients, self.client_keys(clients))
        if self.times.deadline is not None:
            is_ended = n_gradients < self._step_rows(clients).sum(axis=1)
            seconds = np.where(is_ended, np.maximum(seconds, self.times.deadline), seconds)
        return seconds + sum(self.times.message_seconds(clients, n_bytes) for n_bytes in message_bytes)

    def count_gradients(self, numbers: np.ndarray, clients: np.ndarray) -> np.ndarray:
        """Return the rows of all local steps of clients in their works, (N,)."""
        return np.where(self._steps_in_time(numbers, clients), self._step_rows(clients), 0).sum(axis=1)

    def _steps_in_time(self, numbers: np.ndarray, clients: np.ndarray) -> np.ndarray:
        """Return which local steps clients take in their works, (N, K): the first one, and those before a deadline."""
        step_rows = self._step_rows(clients)
        taken = step_rows > 0
        if self.times is None or self.times.deadline is None:
            return taken
        seconds = self.times.gradient_seconds(self.seed, numbers, clients, self.client_keys(clients))
        within_rounding = self.times.deadline * (1 + 1e-9)  # a step that ends exactly at the deadline is in time
        in_time = step_rows.cumsum(axis=1) * seconds[:, None] <= within_rounding
        in_time[:, 0] = True
        return taken & in_time

    def _step_rows(self, clients: np.ndarray) -> np.ndarray:
        """Return the number of rows of each local step of clients, (N, K), with 0 beyond a client's steps."""
        sizes, steps = self.sizes[clients][:, None], self.steps[clients][:, None]
        number = np.arange(int(self.steps.max()))
        position = number % -(-sizes // self.max_batch) * self.max_batch  # of a step's first row in its epoch
        return np.where(number < steps, np.minimum(sizes - position, self.max_batch), 0)


def _number_edge_rounds(numbers: np.ndarray, edge_rounds: int) -> np.ndarray:
    """Return the numbers of the rounds of an edge in the rounds ``numbers`` (T,), shape (T, R)."""
    return numbers[:, None] * edge_rounds + np.arange(edge_rounds)


def _key_bits(stream: int, seed: int, numbers: np.ndarray) -> np.ndarray:
    """Return the bits of a random key for each of these rounds (...), uint32 (..., 2)."""
    return random_streams.stream_states(stream, seed, numbers.ravel()).view(np.uint32).reshape(*numbers.shape, 2)


@dataclass
class DrawsAhead:
    """The draws of single rounds of a run, for some of the clients.

    Rounds of all clients are drawn many at a time, which gives the same numbers as one by one. With partial
    participation, the number of these clients in a cohort varies, so that each round is drawn alone.

    Attributes:
        schedule: the schedule of the run.
        client_mask: the mask of the clients whose draws are needed, (M,).
        with_server_keys: whether the random keys of the server are drawn, too.
    """

    schedule: Schedule
    client_mask: np.ndarray
    with_server_keys: bool = False
    _start: int = 0
    _rounds: Rounds | None = field(default=None, repr=False)

    def draw(self, number: int) -> Rounds:
        """Return the draws of the round ``number``, counted from 0, without an axis of rounds."""
        if self._rounds is None or not 0 <= number - self._start < len(self._rounds.cohort):
            self._start = number
            self._rounds = self.schedule.draw_rounds(number, self._count, client_mask=self.client_mask)
            if self.with_server_keys:
                server_keys = self.schedule.draw_server_keys(number, self._count)
                self._rounds = self._rounds._replace(server_keys=server_keys)
        index = number - self._start
        of_round: list[Any] = [None if values is None else values[index] for values in self._rounds]
        return Rounds(*of_round)

    @property
    def _count(self) -> int:
        """The number of rounds that are drawn at a time."""
        schedule = self.schedule
        if schedule.message_bytes is not None or schedule.cohort_size < len(schedule.sizes):
            return 1
        if schedule.full_batch_steps:
            return _ROUNDS_AHEAD
        numbers = max(int(self.client_mask.sum()) * int(schedule.steps.max()) * schedule.max_batch, 1)
        return min(max(_NUMBERS_AHEAD // numbers, 1), _ROUNDS_AHEAD)
