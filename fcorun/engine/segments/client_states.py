"""Clients' states in a file, one slot for each client that has taken part: few of millions are in memory."""

import io
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fcorun.base.system.files import name_file_in_errors, read_rows_at, write_rows_at

_BLOCK = 2**14  # slots that are read together


class RemoteStates:
    """Clients' states stored by another host, which broadcasts them; this host passes initial states in their place."""

    def __init__(self, initial: Sequence[np.ndarray]):
        self.initial = [np.asarray(leaf) for leaf in initial]

    def read(self, clients: np.ndarray) -> list[np.ndarray]:
        """Return leaves of the shape of these clients' states (P,), each with a leading axis P."""
        return [np.repeat(leaf[None], len(clients), axis=0) for leaf in self.initial]

    def write(self, clients: np.ndarray, leaves: Sequence[np.ndarray], rounds_done: int) -> None:
        """Discard the states."""


class ClientStateFile(RemoteStates):
    """The states of M clients between rounds, in a file that grows with the number of clients that have taken part.

    A slot holds a client's two newest states and the rounds after which they were written. The newest state at the last
    ``checkpoint`` is never overwritten, so that a run can resume from the file of a killed process. Clients without a
    slot have the initial state.
    """

    def __init__(self, file: Path | None, initial: Sequence[np.ndarray], clients: int, rounds_done: int = 0):
        """Open the states; ``initial`` are the leaves of a client's initial state.

        Where ``rounds_done`` is not 0, resume from the content of ``file`` after so many rounds. Without a file, states
        are in memory. Raises OSError.
        """
        super().__init__(initial)
        state = np.dtype([(str(k), leaf.dtype, leaf.shape) for k, leaf in enumerate(self.initial)])
        self.slot_dtype = np.dtype([("client", np.int64), ("round", np.int64, 2), ("state", state, 2)])
        self.rounds_done = rounds_done
        self.checkpointed = rounds_done + 1 if rounds_done else 0
        self.file = io.BytesIO() if file is None else file.open("r+b" if rounds_done else "w+b", buffering=0)
        weakref.finalize(self, self.file.close)
        self.slot_of_client = np.full(clients, -1, np.int32)
        self.slot_rounds = np.zeros((0, 2), np.int64)  # the rounds done plus 1; 0: no state
        n_slots = self.file.seek(0, io.SEEK_END) // self.slot_dtype.itemsize
        for first in range(0, n_slots, _BLOCK):
            slots = np.arange(first, min(first + _BLOCK, n_slots))
            content = self._read(slots)
            content["round"][content["round"] > rounds_done + 1] = 0
            self._write(slots, content)
            self.slot_rounds = np.concatenate([self.slot_rounds, content["round"]])
            self.slot_of_client[content["client"]] = slots

    def read(self, clients: np.ndarray) -> list[np.ndarray]:
        """Return the leaves of the states of these clients (P,), each with a leading axis P."""
        leaves = super().read(clients)
        slot = self.slot_of_client[clients]
        stored = np.flatnonzero(slot >= 0)
        stored = stored[self.slot_rounds[slot[stored]].max(axis=1, initial=0) > 0]
        stored = stored[np.argsort(slot[stored], kind="stable")]
        content = self._read(slot[stored])
        newest = content["state"][np.arange(len(stored)), self.slot_rounds[slot[stored]].argmax(axis=1)]
        for k, leaf in enumerate(leaves):
            leaf[stored] = newest[str(k)]
        return leaves

    def write(self, clients: np.ndarray, leaves: Sequence[np.ndarray], rounds_done: int) -> None:
        """Store the states of these distinct clients after ``rounds_done`` rounds. Raises OSError for a full disk."""
        self.rounds_done = rounds_done  # set first: an interrupted write leaves no state of the rounds before
        new_clients = clients[self.slot_of_client[clients] < 0]
        n_known = len(self.slot_rounds)
        self.slot_of_client[new_clients] = np.arange(n_known, n_known + len(new_clients))
        self.slot_rounds = np.concatenate([self.slot_rounds, np.zeros((len(new_clients), 2), np.int64)])
        order = np.argsort(self.slot_of_client[clients], kind="stable")
        slot, rows = self.slot_of_client[clients][order], np.arange(len(clients))
        content = np.zeros(len(clients), self.slot_dtype)
        content[slot < n_known] = self._read(slot[slot < n_known])
        newest, newest_round = self.slot_rounds[slot].argmax(axis=1), self.slot_rounds[slot].max(axis=1)
        # overwrite the newest state, unless a restart would resume from it
        target = np.where(newest_round > self.checkpointed, newest, 1 - newest)
        for k, leaf in enumerate(leaves):
            content["state"][str(k)][rows, target] = leaf[order]
        content["client"] = clients[order]
        self.slot_rounds[slot, target] = rounds_done + 1
        content["round"] = self.slot_rounds[slot]
        self._write(slot, content)

    def _read(self, slots: np.ndarray) -> np.ndarray:
        """Read the content of these slots, which are sorted."""
        content = np.zeros(len(slots), self.slot_dtype)
        read_rows_at(self.file, slots, content)
        return content

    def _write(self, slots: np.ndarray, content: np.ndarray) -> None:
        with name_file_in_errors(getattr(self.file, "name", "")):
            write_rows_at(self.file, slots, content)

    def checkpoint(self) -> None:
        """Make the current states the checkpoint that a restart resumes from."""
        self.checkpointed = self.rounds_done + 1

    def count_participants(self, clients: np.ndarray) -> int:
        """Count the clients among these that have taken part."""
        return int((self.slot_of_client[clients] >= 0).sum())
