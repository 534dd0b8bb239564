"""States of clients in a file, a place for each client that has taken part: of millions, few are in memory."""

import io
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fcorun.system.files import name_file_in_errors, read_rows_at, write_rows_at

_AT_ONCE = 2**14  # places


class RemoteStates:
    """States that another host has, who passes them on: here all clients have the one that they begin with."""

    def __init__(self, initial: Sequence[np.ndarray]):
        self.initial = [np.asarray(leaf) for leaf in initial]

    def read(self, clients: np.ndarray) -> list[np.ndarray]:
        """Leaves of the shape of these clients' states (P,), each with a leading axis P."""
        return [np.repeat(leaf[None], len(clients), axis=0) for leaf in self.initial]

    def write(self, clients: np.ndarray, leaves: Sequence[np.ndarray], rounds_done: int) -> None:
        """Nothing is kept."""


class ClientStateFile(RemoteStates):
    """What each of M clients keeps between rounds, in a file that grows with those who have taken part; the others have
    the state that all begin with.

    A place holds a client's two newest states and the rounds after which they were written. What was its newest state
    when ``keep`` was last called is never written over, so a file that a killed process left goes on from there.
    """

    def __init__(self, file: Path | None, initial: Sequence[np.ndarray], clients: int, rounds_done: int = 0):
        """``initial`` are the leaves of the state that clients begin with. After ``done`` rounds, other than 0, the
        ``file`` goes on from what it held then; without a file, all is in memory. Raises OSError."""
        super().__init__(initial)
        state = np.dtype([(str(k), leaf.dtype, leaf.shape) for k, leaf in enumerate(self.initial)])
        self.slot_dtype = np.dtype([("client", np.int64), ("round", np.int64, 2), ("state", state, 2)])
        self.done, self.checkpointed = rounds_done, rounds_done + 1 if rounds_done else 0
        self.file = io.BytesIO() if file is None else file.open("r+b" if rounds_done else "w+b", buffering=0)
        weakref.finalize(self, self.file.close)
        self.slot_of_client = np.full(clients, -1, np.int32)
        self.slot_rounds = np.zeros((0, 2), np.int64)  # from 1: 0 is none
        size = self.file.seek(0, io.SEEK_END) // self.slot_dtype.itemsize
        for first in range(0, size, _AT_ONCE):
            places = np.arange(first, min(first + _AT_ONCE, size))
            found = self._read(places)
            found["round"][found["round"] > rounds_done + 1] = 0
            self._write(places, found)
            self.slot_rounds = np.concatenate([self.slot_rounds, found["round"]])
            self.slot_of_client[found["client"]] = places

    def read(self, clients: np.ndarray) -> list[np.ndarray]:
        """The leaves of the states of these clients (P,), each with a leading axis P."""
        found = super().read(clients)
        place = self.slot_of_client[clients]
        there = np.flatnonzero(place >= 0)
        there = there[self.slot_rounds[place[there]].max(axis=1, initial=0) > 0]
        there = there[np.argsort(place[there], kind="stable")]
        kept = self._read(place[there])
        kept = kept["state"][np.arange(len(there)), self.slot_rounds[place[there]].argmax(axis=1)]
        for k, leaf in enumerate(found):
            leaf[there] = kept[str(k)]
        return found

    def write(self, clients: np.ndarray, leaves: Sequence[np.ndarray], rounds_done: int) -> None:
        """Keep the states of these clients, each named once, as they are after ``done`` rounds. Raises OSError where
        the disk is full."""
        self.done = rounds_done  # whatever comes between, this is no longer what it was
        new = clients[self.slot_of_client[clients] < 0]
        self.slot_of_client[new] = np.arange(len(self.slot_rounds), len(self.slot_rounds) + len(new))
        known = len(self.slot_rounds)
        self.slot_rounds = np.concatenate([self.slot_rounds, np.zeros((len(new), 2), np.int64)])
        order = np.argsort(self.slot_of_client[clients], kind="stable")
        place, each = self.slot_of_client[clients][order], np.arange(len(clients))
        content = np.zeros(len(clients), self.slot_dtype)
        content[place < known] = self._read(place[place < known])
        newest, latest = self.slot_rounds[place].argmax(axis=1), self.slot_rounds[place].max(axis=1)
        which = np.where(latest > self.checkpointed, newest, 1 - newest)
        for k, leaf in enumerate(leaves):
            content["state"][str(k)][each, which] = leaf[order]
        content["client"], self.slot_rounds[place, which] = clients[order], rounds_done + 1
        content["round"] = self.slot_rounds[place]
        self._write(place, content)

    def _read(self, places: np.ndarray) -> np.ndarray:
        """What is at these places, in order."""
        found = np.zeros(len(places), self.slot_dtype)
        read_rows_at(self.file, places, found)
        return found

    def _write(self, places: np.ndarray, content: np.ndarray) -> None:
        with name_file_in_errors(getattr(self.file, "name", "")):
            write_rows_at(self.file, places, content)

    def checkpoint(self) -> None:
        """What is there now can be gone on from."""
        self.checkpointed = self.done + 1

    def count_participants(self, clients: np.ndarray) -> int:
        """How many of these clients have taken part."""
        return int((self.slot_of_client[clients] >= 0).sum())
