"""Who takes part in a round, and with which minibatches: drawn on the host, ahead of the rounds that use them.

The cohort and what all clients share have a generator of their own, seeded by (seed, stream, round); a client's
batches and its key come from (seed, round, client) alone, the client by its name, or by its number where it has none.
So the algorithm, the cohort and the other clients have no part in them, and a resumed run draws what an unbroken one
would have drawn.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fcorun.engine import streams

START, _COHORT, _BATCHES, _CHANCE, _KEY = 0, 1, 2, 3, 4
_CACHED = 2**16  # random numbers that are sorted at a time


class Rounds(NamedTuple):
    """T rounds: cohorts (T, S), the rows of each batch (T, S, K, B) with -1 for none, clients' weights (T, S).

    Where each batch is all of a client's data, there are no rows to draw: (T, S, 0). ``share`` is the cohort's part of
    all weights, (T,); ``chances`` are two numbers drawn uniformly from [0, 1) for all clients of the round, (T, 2);
    ``keys`` are the bits of a random key for each client, (T, S, 2). On a tree, rows, chances and keys have an axis
    more after T, the rounds of an edge. ``place`` says where the states of the cohort are among those that are
    there, (T, S); None: all are there. ``whole`` are all rows of each client, (T, S, L) with -1 for none, where these
    are fetched for the rounds; None: they are not. ``turn`` says which places of the cohort each of D devices computes,
    (T, D, W) with -1 for none; None: as many as the others, in their order.
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


@dataclass(frozen=True)
class Schedule:
    """The cohorts and minibatches of a run.

    A cohort is uniform without replacement. An epoch shuffles a client's rows and cuts them into batches of
    ``batch_size``, keeping the short last one; each epoch is shuffled anew. A client takes ``local_epochs`` epochs, or
    exactly ``local_steps`` batches out of as many epochs as that needs.
    """

    offsets: np.ndarray
    seed: int
    clients_per_round: int | None = None
    batch_size: int | None = None
    local_epochs: int | None = 1
    local_steps: int | None = None
    client_weighting: str = "examples"
    edge_rounds: int | None = None  # on a tree: rounds of an edge with its clients in each round
    names: tuple[str, ...] = ()  # of the clients; empty: they go by their numbers
    client_weights: np.ndarray | None = None  # what each client's rows weigh together; None: their number
    generated_clients: int = (
        0  # how many clients, where each makes as many rows as the first of these and counts them from 0
    )
    host_first_row: np.ndarray | None = None  # the row with which those of each client's host begin; None: 0
    row_positions: np.ndarray | None = None  # where its rows stand among those that are stored; None: in their order

    @cached_property
    def sizes(self) -> np.ndarray:
        if self.generated_clients:
            return np.broadcast_to(self.offsets[1] - self.offsets[0], self.generated_clients)
        return np.diff(self.offsets)

    @property
    def starts(self) -> np.ndarray:
        """The first row of each client, among those of its host, shape (M,)."""
        if self.generated_clients:
            return np.broadcast_to(0, self.generated_clients)
        return self.offsets[:-1] if self.host_first_row is None else self.offsets[:-1] - self.host_first_row

    @property
    def work_sizes(self) -> np.ndarray:
        """The rows of those whose work is counted apart: of each client, or where they make them of the cohort."""
        return self.sizes[: self.cohort_size] if self.generated_clients else self.sizes

    @cached_property
    def averaging_weights(self) -> np.ndarray:
        """The weight of each client in the mean, up to a factor, shape (M,)."""
        if self.client_weighting != "examples":
            return np.broadcast_to(1.0, len(self.sizes))
        return self.sizes if self.client_weights is None else self.client_weights

    @cached_property
    def _identities(self) -> np.ndarray:
        return streams.client_keys(self.names or range(len(self.sizes)))

    def client_keys(self, clients: np.ndarray) -> np.ndarray:
        """What stands for these clients, (N,), in their random numbers."""
        return streams.client_keys(clients) if self.generated_clients else self._identities[clients]

    @property
    def cohort_size(self) -> int:
        return self.clients_per_round or len(self.sizes)

    @cached_property
    def max_rows(self) -> int:
        """The most rows that a client has, L."""
        return int(self.sizes.max())

    @cached_property
    def max_batch(self) -> int:
        """The longest batch, B."""
        return min(self.batch_size or self.max_rows, self.max_rows)

    @cached_property
    def steps(self) -> np.ndarray:
        """Local steps of each client, shape (M,)."""
        if self.local_steps is not None:
            return np.broadcast_to(self.local_steps, len(self.sizes))
        each = self.sizes[:1] if self.generated_clients else self.sizes
        return np.broadcast_to(-(-each // self.max_batch) * (self.local_epochs or 1), len(self.sizes))

    @cached_property
    def full_batch_steps(self) -> int | None:
        """The number of local steps, where all of them take the client's whole data; else None."""
        full = self.max_batch >= self.max_rows
        return int(self.steps[0]) if full else None

    @property
    def uneven_steps(self) -> bool:
        """Whether some clients take fewer steps than others."""
        return bool((self.steps != self.steps[0]).any())

    @property
    def effective_batch_rows(self) -> float:
        """How many rows a round's mean gradient is of, whoever is drawn; as if they all weighed the same.

        A mean of gradients with weights p_i varies as one of 1 / sum p_i^2: those in a short batch count for more, and
        those of clients whose weight is more than their rows. An edge may have a client only.
        """
        some = slice(self.cohort_size if self.generated_clients else None)  # all are alike
        sizes, steps, weights = self.sizes[some], self.steps[some], self.averaging_weights[some]
        full, rest = np.divmod(sizes, self.max_batch)
        short = np.where(rest > 0, steps // (full + (rest > 0)), 0)
        drawn = steps**2 / ((steps - short) / self.max_batch + short / np.maximum(rest, 1))
        drawn = np.minimum(drawn, sizes)
        if self.edge_rounds is not None:
            return float(drawn.min())
        return float((drawn / weights).min() * np.sort(weights)[: self.cohort_size].sum())

    def with_seed(self, seed: int) -> "Schedule":
        """That of another seed."""
        return self if seed == self.seed else replace(self, seed=seed)

    def draw_rounds(self, start: int, count: int) -> Rounds:
        """The rounds start, ..., start + count - 1, counted from 0."""
        numbers = np.arange(start, start + count)
        cohorts = np.stack([self.draw_cohort(int(number)) for number in numbers])
        weight = self.averaging_weights[cohorts]
        share = weight.sum(axis=1) / self.averaging_weights.sum()
        if self.edge_rounds is not None:  # (T, R): the rounds of the edges
            numbers = numbers[:, None] * self.edge_rounds + np.arange(self.edge_rounds)
            cohorts_of = np.broadcast_to(cohorts[:, None], (*numbers.shape, cohorts.shape[1]))
        else:
            cohorts_of = cohorts
        rows, keys = self._local(cohorts_of, np.broadcast_to(numbers[..., None], cohorts_of.shape))
        chances = streams.draw_uniforms(streams.stream_states(_CHANCE, self.seed, numbers.ravel()), 2).reshape(
            *numbers.shape, 2
        )
        return Rounds(
            cohort=cohorts.astype(np.int32),
            rows=rows,
            weights=weight.astype(
                np.float32 if self.client_weights is None else np.float64
            ),  # counts are exact in either
            cohort_share=share,
            shared_uniforms=chances,
            keys=keys,
        )

    def draw_cohort(self, number: int) -> np.ndarray:
        """The clients of a round, counted from 0."""
        clients = len(self.sizes)
        if self.cohort_size == clients:
            return np.arange(clients)
        return np.random.default_rng([self.seed, _COHORT, number]).choice(clients, self.cohort_size, replace=False)

    def _local(self, clients: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows of the batches of these clients (...), each in its round, and the bits of a key for each."""
        shape, clients, numbers = clients.shape, clients.ravel(), numbers.ravel()
        identity = self.client_keys(clients)
        keys = streams.stream_states(_KEY, self.seed, numbers, identity).view(np.uint32).reshape(*shape, 2)
        if self.full_batch_steps:
            return np.empty((*shape, 0), np.int32), keys
        starts, sizes = streams.stream_states(_BATCHES, self.seed, numbers, identity), self.sizes[clients]
        rows = np.full((len(clients), int(self.steps.max()), self.max_batch), -1, np.int32)
        for size in np.unique(sizes):  # clients of one size at once, as many as stay in the cache
            there = np.flatnonzero(sizes == size)
            steps, width = int(self.steps[clients[there[0]]]), max(_CACHED // int(size), 1)
            for some in (there[i : i + width] for i in range(0, len(there), width)):
                rows[some, :steps] = self._cut(starts[some], self.starts[clients[some]], int(size), steps)
        if self.row_positions is not None:
            rows = np.where(rows >= 0, self.row_positions[rows], -1).astype(np.int32)
        return rows.reshape(*shape, *rows.shape[1:]), keys

    def _cut(self, starts: np.ndarray, offsets: np.ndarray, count: int, steps: int) -> np.ndarray:
        """``steps`` batches of clients with ``count`` rows each, from as many epochs as that takes: (S, steps, B)."""
        per_epoch = -(-count // self.max_batch)
        epochs = -(-steps // per_epoch)
        rows = np.full((len(starts), epochs, per_epoch * self.max_batch), -1)
        rows[..., :count] = streams.draw_permutations(starts, epochs, count) + offsets[:, None, None]
        return rows.reshape(len(starts), epochs * per_epoch, self.max_batch)[:, :steps]
