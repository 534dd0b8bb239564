"""Several hosts that compute together, and the messages between them.

The host of rank 0 is the leader: it alone reads and writes records, prints, and decides what is computed. The others
are followers, which execute its commands. They exchange JSON through queues of a Dask scheduler. A host that is lost is
noticed by the command that has started all, which is none of them: see ``fcorun.runs.executors.dask_hosts``.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import Any

from fcorun.base.errors import HostLost
from fcorun.base.system.files import POLL_SECONDS, check_interrupted

RERUN_HINT = "the same command resumes"
_POLL_OFTEN_SECONDS = 0.02


@dataclass
class Hosts:
    """The hosts of a run, as this host sees them.

    Attributes:
        rank: the number of this host.
        names: the name of each host, by rank.
        mailboxes: the queue of texts to each host, by rank, of Dask or one with its methods ``put`` and ``get``.
        rows: the rows that each host loads, as ``fcorun.base.system.machine.HostOptions`` explains.
        identities: those of the runs that the command asks for.
        free_memory: the free bytes of main memory of the host that had least when all met.
        failure: which host was lost or failed, once that is known.
        closed: whether the hosts have finished.
        inboxes: the messages received from each host, by rank.
    """

    rank: int
    names: list[str]
    mailboxes: Mapping[int, Any] = field(repr=False)
    rows: str = "auto"
    identities: tuple[str, ...] = ()
    free_memory: int = 0
    failure: str = ""
    closed: bool = False
    inboxes: dict[int, Queue] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.inboxes = {rank: Queue() for rank in self.others}

    @property
    def count(self) -> int:
        """The number of hosts."""
        return len(self.names)

    @property
    def others(self) -> list[int]:
        """The ranks from which this host receives: of a leader its followers, and of a follower the leader."""
        return [0] if self.rank else list(range(1, self.count))

    def describe_host(self, rank: int) -> str:
        """Return the rank and name of a host as text."""
        return f"host {rank} ({self.names[rank]})"

    def broadcast(self, command: str, **arguments: Any) -> None:
        """Send a command to all followers."""
        for rank in range(1, self.count):
            self._send(rank, {"do": command, **arguments})

    def send(self, **content: Any) -> None:
        """Send a message to the leader."""
        self._send(0, content)

    def _send(self, rank: int, content: dict[str, Any]) -> None:
        self.mailboxes[rank].put(json.dumps({"from": self.rank, **content}))

    def receive(self, rank: int = 0) -> dict[str, Any]:
        """Return the next message of a host.

        Raises HostLost if a host is lost or this one has failed, KeyboardInterrupt if the leader was interrupted.
        """
        message = self._next_message(rank)
        if "failed" in message:
            raise self.make_lost_error(rank, message["failed"])
        return message

    def _next_message(self, rank: int) -> dict[str, Any]:
        """Return the next message of a host, also one of failure."""
        while True:
            if not self.rank:
                check_interrupted()
            try:
                message = self.inboxes[rank].get(timeout=POLL_SECONDS)
                break
            except Empty:
                continue
        if "lost" in message:
            raise self.make_lost_error(message["lost"])
        return message

    def has_message(self, rank: int = 0) -> bool:
        """Return whether a message of a host has arrived."""
        return not self.inboxes[rank].empty()

    def all_failed(self, timeout: float) -> bool:
        """Return whether each follower reports a failure within ``timeout`` seconds; then all await a new command.

        Raises HostLost if a host is lost.
        """
        deadline = time.monotonic() + timeout
        unheard = set(self.others)
        while unheard and time.monotonic() < deadline:
            for rank in list(unheard):
                if self.has_message(rank):
                    if "failed" not in self._next_message(rank):
                        return False
                    unheard.remove(rank)
            time.sleep(_POLL_OFTEN_SECONDS)
        return not unheard

    def check_failures(self, timeout: float = 0.0) -> None:
        """Receive the messages that have arrived, or that arrive within ``timeout`` seconds: raises as ``receive``."""
        deadline = time.monotonic() + timeout
        while True:
            for rank in self.others:
                if self.has_message(rank):
                    self.receive(rank)
            if time.monotonic() >= deadline:
                return
            time.sleep(_POLL_OFTEN_SECONDS)

    def make_lost_error(self, rank: int, reason: str = "") -> HostLost:
        """Return the error for a host that is lost, or that has failed for a reason. The first such error is kept."""
        if not self.failure:
            event = f"failed: {reason}" if reason else "was lost"
            self.failure = f"{self.describe_host(rank)} {event}; {RERUN_HINT}"
        return HostLost(self.failure)

    def start_receiving(self) -> None:
        """Receive the messages of other hosts from now on, in a thread, for ``receive``."""
        threading.Thread(target=self._receive_messages, daemon=True).start()

    def _receive_messages(self) -> None:
        """Receive messages for ever. A follower whose leader has failed has nothing to save, and ends at once."""
        while True:
            try:
                message = json.loads(self.mailboxes[self.rank].get())
            except Exception:  # Dask has closed at the end of the run, or its scheduler and the command are gone
                if self.closed:
                    return
                _exit(1)
            if message.get("do") == "end" and message["code"]:
                _exit(message["code"])
            if "lost" in message:
                for inbox in self.inboxes.values():
                    inbox.put(message)
            else:
                self.inboxes[message.pop("from")].put(message)

    def close(self, code: int) -> None:
        """End the common computation; with an exit code other than 0, this process ends at once.

        JAX's own shutdown, which waits for all hosts, and ends this process by abort() if one is lost, is for a good
        end.
        """
        import jax

        self.closed = True
        if not self.rank:
            self.broadcast("end", code=code)
        if code or self.failure:
            _exit(code)
        jax.distributed.shutdown()


def _exit(code: int) -> None:
    """End this process without the handlers that are registered for its exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def silence_stdout() -> Iterator[None]:
    """Discard the standard output within the context, where JAX's Gloo lists its peers before its first sum."""
    sys.stdout.flush()
    original = os.dup(1)
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(original, 1)
        os.close(original)
        os.close(devnull)
