"""States of clients in a file, a place for each client that has taken part: of millions, few are in memory."""

import io
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fcorun.system.files import errors_name, read_runs, write_runs

_AT_ONCE = 2**14  # places


class Elsewhere:
    """States that another host has, who passes them on: here all clients have the one that they begin with."""

    def __init__(self, initial: Sequence[np.ndarray]):
        self.initial = [np.asarray(leaf) for leaf in initial]

    def read(self, clients: np.ndarray) -> list[np.ndarray]:
        """Leaves of the shape of these clients' states (P,), each with a leading axis P."""
        return [np.repeat(leaf[None], len(clients), axis=0) for leaf in self.initial]

    def write(self, clients: np.ndarray, leaves: Sequence[np.ndarray], done: int) -> None:
        """Nothing is kept."""


class States(Elsewhere):
    """What each of M clients keeps between rounds, in a file that grows with those who have taken part; the others have
    the state that all begin with.

    A place holds a client's two newest states and the rounds after which they were written. What was its newest state
    when ``keep`` was last called is never written over, so a file that a killed process left goes on from there.
    """

    def __init__(self, file: Path | None, initial: Sequence[np.ndarray], clients: int, done: int = 0):
        """``initial`` are the leaves of the state that clients begin with. After ``done`` rounds, other than 0, the
        ``file`` goes on from what it held then; without a file, all is in memory. Raises OSError."""
        super().__init__(initial)
        state = np.dtype([(str(k), leaf.dtype, leaf.shape) for k, leaf in enumerate(self.initial)])
        self.kind = np.dtype([("client", np.int64), ("round", np.int64, 2), ("state", state, 2)])
        self.done, self.kept = done, done + 1 if done else 0
        self.file = io.BytesIO() if file is None else file.open("r+b" if done else "w+b", buffering=0)
        weakref.finalize(self, self.file.close)
        self.place = np.full(clients, -1, np.int32)
        self.rounds = np.zeros((0, 2), np.int64)  # from 1: 0 is none
        size = self.file.seek(0, io.SEEK_END) // self.kind.itemsize
        for first in range(0, size, _AT_ONCE):
            places = np.arange(first, min(first + _AT_ONCE, size))
            found = self._read(places)
            found["round"][found["round"] > done + 1] = 0
            self._write(places, found)
            self.rounds = np.concatenate([self.rounds, found["round"]])
            self.place[found["client"]] = places

    def read(self, clients: np.ndarray) -> list[np.ndarray]:
        """The leaves of the states of these clients (P,), each with a leading axis P."""
        found = super().read(clients)
        place = self.place[clients]
        there = np.flatnonzero(place >= 0)
        there = there[self.rounds[place[there]].max(axis=1, initial=0) > 0]
        there = there[np.argsort(place[there], kind="stable")]
        kept = self._read(place[there])
        kept = kept["state"][np.arange(len(there)), self.rounds[place[there]].argmax(axis=1)]
        for k, leaf in enumerate(found):
            leaf[there] = kept[str(k)]
        return found

    def write(self, clients: np.ndarray, leaves: Sequence[np.ndarray], done: int) -> None:
        """Keep the states of these clients, each named once, as they are after ``done`` rounds. Raises OSError where
        the disk is full."""
        self.done = done  # whatever comes between, this is no longer what it was
        new = clients[self.place[clients] < 0]
        self.place[new] = np.arange(len(self.rounds), len(self.rounds) + len(new))
        known = len(self.rounds)
        self.rounds = np.concatenate([self.rounds, np.zeros((len(new), 2), np.int64)])
        order = np.argsort(self.place[clients], kind="stable")
        place, each = self.place[clients][order], np.arange(len(clients))
        content = np.zeros(len(clients), self.kind)
        content[place < known] = self._read(place[place < known])
        newest, latest = self.rounds[place].argmax(axis=1), self.rounds[place].max(axis=1)
        which = np.where(latest > self.kept, newest, 1 - newest)
        for k, leaf in enumerate(leaves):
            content["state"][str(k)][each, which] = leaf[order]
        content["client"], self.rounds[place, which] = clients[order], done + 1
        content["round"] = self.rounds[place]
        self._write(place, content)

    def _read(self, places: np.ndarray) -> np.ndarray:
        """What is at these places, in order."""
        found = np.zeros(len(places), self.kind)
        read_runs(self.file, places, found)
        return found

    def _write(self, places: np.ndarray, content: np.ndarray) -> None:
        with errors_name(getattr(self.file, "name", "")):
            write_runs(self.file, places, content)

    def keep(self) -> None:
        """What is there now can be gone on from."""
        self.kept = self.done + 1

    def taken_part(self, clients: np.ndarray) -> int:
        """How many of these clients have taken part."""
        return int((self.place[clients] >= 0).sum())
