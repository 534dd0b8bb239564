"""States of clients in a file, a place for each client that has taken part: of millions, few are in memory."""

import contextlib
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np


class States:
    """What each of M clients keeps between rounds, in a file that grows with those who have taken part; the others have
    the state that all begin with.

    A place holds a client's two newest states and the rounds after which they were written. What was its newest state
    when ``keep`` was last called is never written over, so a file that a killed process left goes on from there.
    """

    def __init__(self, file: Path | None, initial: Sequence[np.ndarray], clients: int, done: int = 0):
        """``initial`` are the leaves of the state that clients begin with. After ``done`` rounds, other than 0, the
        ``file`` goes on from what it held then; without a file, all is in memory. Raises OSError."""
        self.initial = [np.asarray(leaf) for leaf in initial]
        state = np.dtype([(str(k), leaf.dtype, leaf.shape) for k, leaf in enumerate(self.initial)])
        place = np.dtype([("client", np.int64), ("round", np.int64, 2), ("state", state, 2)])
        self.path, self.done = file, done
        if file is None:
            self.file = np.zeros(clients, place)
        else:  # of M places, of which the system stores those that are written
            self.file = np.memmap(file, place, "r+" if done else "w+", shape=(clients,))
        self.used = _first(lambda k: self.file[k]["client"] == 0, clients)
        self.place = np.full(clients, -1, np.int32)
        self.place[self.file["client"][: self.used] - 1] = np.arange(self.used)
        self.rounds = np.array(self.file["round"][: self.used])  # from 1: 0 is none
        late = self.rounds > done + 1
        self.rounds[late] = 0
        self.file["round"][: self.used] = self.rounds
        self.kept = done + 1 if done else 0

    def read(self, clients: np.ndarray) -> list[np.ndarray]:
        """The leaves of the states of these clients (P,), each with a leading axis P."""
        found = [np.repeat(leaf[None], len(clients), axis=0) for leaf in self.initial]
        place = self.place[clients]
        there = place >= 0
        place = place[there]
        newest = self.rounds[place].argmax(axis=1)
        known = self.rounds[place].max(axis=1, initial=0) > 0
        there[there], place, newest = known, place[known], newest[known]
        kept = self.file["state"][place, newest]
        for k, leaf in enumerate(found):
            leaf[there] = kept[str(k)]
        self._forget()
        return found

    def write(self, clients: np.ndarray, leaves: Sequence[np.ndarray], done: int) -> None:
        """Keep the states of these clients, each named once, as they are after ``done`` rounds. Raises OSError where
        the disk is full."""
        self.done = done  # whatever comes between, this is no longer what it was
        new = clients[self.place[clients] < 0]
        self._make_room(len(new))
        self.place[new] = np.arange(self.used, self.used + len(new))
        self.rounds = np.concatenate([self.rounds, np.zeros((len(new), 2), self.rounds.dtype)])
        self.file["client"][self.used : self.used + len(new)] = new + 1
        self.used += len(new)
        place = self.place[clients]
        newest, latest = self.rounds[place].argmax(axis=1), self.rounds[place].max(axis=1)
        which = np.where(latest > self.kept, newest, 1 - newest)
        for k, leaf in enumerate(leaves):
            self.file["state"][str(k)][place, which] = leaf
        self.file["round"][place, which] = self.rounds[place, which] = done + 1
        self._forget()

    def keep(self) -> None:
        """What is there now can be gone on from."""
        self.kept = self.done + 1

    def taken_part(self, clients: np.ndarray) -> int:
        """How many of these clients have taken part."""
        return int((self.place[clients] >= 0).sum())

    def _make_room(self, count: int) -> None:
        """Have the disk give what so many places more take: a memory map that found it full would end the process."""
        if self.path is None or not count or not hasattr(os, "posix_fallocate"):
            return
        size = self.file.dtype.itemsize
        with self.path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), self.used * size, count * size)

    def _forget(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # what is in memory, or a system that takes no advice
            self.file._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def _first(empty, count: int) -> int:
    """The first of ``count`` places that is empty, all after it being so too; ``count`` if none is."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if empty(middle) else (middle + 1, high)
    return low
