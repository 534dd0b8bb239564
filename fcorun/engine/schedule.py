"""Who takes part in a round, and with which minibatches: drawn on the host, ahead of the rounds that use them.

Each draw has a generator of its own, seeded by (seed, stream, round): the algorithm has no part in it, and a resumed
run draws what an unbroken one would have drawn.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

START, _COHORT, _BATCHES, _CHANCE = 0, 1, 2, 3


class Rounds(NamedTuple):
    """T rounds: cohorts (T, S), the rows of each batch (T, S, K, B) with -1 for none, clients' weights (T, S).

    Where each batch is all of a client's data, there are no rows to draw: (T, S, 0). ``share`` is the cohort's part of
    all weights, (T,); ``chances`` are two numbers drawn uniformly from [0, 1) for all clients of the round, (T, 2). On
    a tree, rows and chances have an axis more after T, the rounds of an edge.
    """

    cohort: np.ndarray
    rows: np.ndarray
    weight: np.ndarray
    share: np.ndarray
    chances: np.ndarray
    keys: np.ndarray


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

    @cached_property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)

    @property
    def cohort_size(self) -> int:
        return self.clients_per_round or len(self.sizes)

    @cached_property
    def batch(self) -> int:
        """The longest batch, B."""
        return int(min(self.batch_size or self.sizes.max(), self.sizes.max()))

    @cached_property
    def steps(self) -> np.ndarray:
        """Local steps of each client, shape (M,)."""
        if self.local_steps is not None:
            return np.full(len(self.sizes), self.local_steps)
        return -(-self.sizes // self.batch) * (self.local_epochs or 1)

    @cached_property
    def repeats(self) -> int | None:
        """The number of local steps, where all of them take the client's whole data; else None."""
        full = self.batch >= self.sizes.max()
        return int(self.steps[0]) if full else None

    @property
    def uneven(self) -> bool:
        """Whether some clients take fewer steps than others."""
        return bool((self.steps != self.steps[0]).any())

    def of(self, seed: int) -> "Schedule":
        """That of another seed."""
        return self if seed == self.seed else replace(self, seed=seed)

    def draw(self, start: int, count: int) -> Rounds:
        """The rounds start, ..., start + count - 1, counted from 0."""
        drawn = [self._round(r) for r in range(start, start + count)]
        return Rounds(*(np.stack(parts) for parts in zip(*drawn, strict=True)))

    def cohort(self, number: int) -> np.ndarray:
        """The clients of a round, counted from 0."""
        clients = len(self.sizes)
        if self.cohort_size == clients:
            return np.arange(clients)
        return np.random.default_rng([self.seed, _COHORT, number]).choice(clients, self.cohort_size, replace=False)

    def _round(self, number: int) -> tuple:
        clients, cohort = len(self.sizes), self.cohort(number)
        weight = self.sizes[cohort] if self.client_weighting == "examples" else np.ones(len(cohort))
        share = weight.sum() / (self.sizes.sum() if self.client_weighting == "examples" else clients)
        if self.edge_rounds is None:
            rows, chances, keys = self._local(cohort, number)
        else:
            inner = range(number * self.edge_rounds, (number + 1) * self.edge_rounds)
            rows, chances, keys = (
                np.stack(parts) for parts in zip(*(self._local(cohort, n) for n in inner), strict=True)
            )
        return cohort.astype(np.int32), rows, weight.astype(np.float32), share, chances, keys

    def _local(self, cohort: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The rows of each batch, and the two numbers that all clients share."""
        rows = np.empty((len(cohort), 0)) if self.repeats else self._batches(cohort, number)
        keys = np.zeros((len(cohort), 2), np.uint32)
        return rows.astype(np.int32), np.random.default_rng([self.seed, _CHANCE, number]).random(2), keys

    def _batches(self, cohort: np.ndarray, number: int) -> np.ndarray:
        rng, size, sizes = np.random.default_rng([self.seed, _BATCHES, number]), self.batch, self.sizes[cohort]
        steps, most = self.steps[cohort], int(self.steps.max())
        if (self.sizes == self.sizes[0]).all():
            return self._shuffled(rng, self.offsets[cohort], int(sizes[0]), most)
        rows = np.full((len(cohort), most, size), -1)
        for place, (start, count, taken) in enumerate(zip(self.offsets[cohort], sizes, steps, strict=True)):
            rows[place, :taken] = self._shuffled(rng, np.array([start]), int(count), int(taken))[0]
        return rows

    def _shuffled(self, rng: np.random.Generator, starts: np.ndarray, count: int, steps: int) -> np.ndarray:
        """``steps`` batches of clients with ``count`` rows each, from as many epochs as that takes: (S, steps, B)."""
        per_epoch = -(-count // self.batch)
        epochs = -(-steps // per_epoch)
        # Sorting random keys shuffles all of them at once.
        order = rng.random((len(starts), epochs, count), dtype=np.float32).argsort(axis=-1, kind="stable")
        rows = np.full((len(starts), epochs, per_epoch * self.batch), -1)
        rows[..., :count] = order + starts[:, None, None]
        return rows.reshape(len(starts), epochs * per_epoch, self.batch)[:, :steps]
