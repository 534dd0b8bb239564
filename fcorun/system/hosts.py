"""Several hosts that compute together: who they are, how they find each other, and what they tell each other.

The first one, of rank 0, leads: it alone reads and writes records, prints, and says what is to be computed. Each other
one does that, and nothing else. They talk in JSON over sockets of their own, beside those of JAX, so that a host that
never comes, has other versions or is gone can be named.
"""

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from queue import Empty, Queue
from typing import Any

from fcorun.errors import HostLost
from fcorun.system.interruption import check_interrupted, is_interrupted
from fcorun.system.polling import POLL_SECONDS

RERUN_HINT = "the same command goes on"
_GRACE = 20.0  # seconds in which the main thread comes to see that a host is gone, unless it waits for it
_BEAT, _SILENT = 5.0, 60.0  # seconds between two signs of life, and without any until a host is thought to be gone
_PATIENCE = 2.0  # seconds in which it comes to hear that all is over
_OFTEN = 0.02  # seconds between two looks


@dataclass
class Hosts:
    """The hosts of this run, as this one sees them.

    Attributes:
        rank: which one this is.
        names: what each is called, by rank.
        links: the connections: of the first one to each other by rank, of another one to the first.
        why: which host was lost, once that is known.
        rows: which rows each has, as ``fcorun.system.cluster.Asked`` says.
        over: whether all is over, so that nobody is lost any more.
        told: whether the first host has been told that this one was interrupted.
    """

    rank: int
    names: list[str]
    connections: dict[int, Connection] = field(repr=False)
    rows: str = "auto"
    failure: str = ""
    closed: bool = False
    interruption_sent: bool = False
    inboxes: dict[int, Queue] = field(default_factory=dict, repr=False)  # by rank; at last None, of a host that is gone
    lost_ranks: set[int] = field(default_factory=set)
    send_lock: Any = field(default_factory=threading.RLock, repr=False)  # two threads talk

    def __post_init__(self) -> None:
        self.inboxes = {rank: Queue() for rank in self.connections}

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.names)

    def describe_host(self, rank: int) -> str:
        """A host in words."""
        return f"host {rank} ({self.names[rank]})"

    def broadcast(self, command: str, **more: Any) -> None:
        """Tell all others what to do. Raises HostLost."""
        for rank in self._send({"do": command, **more}):
            raise self.make_lost_error(rank)

    def send(self, **more: Any) -> None:
        """Answer the first host; if it is gone, that is noticed when it is listened to."""
        self._send(more)

    def _send(self, content: dict[str, Any]) -> list[int]:
        """Send to all others; who could not be reached."""
        text, gone = json.dumps(content).encode(), []
        for rank, link in self.connections.items():
            try:
                with self.send_lock:
                    link.send_bytes(text)
            except OSError:
                gone.append(rank)
        return gone

    def receive(self, rank: int = 0) -> dict[str, Any]:
        """What a host says next. Raises HostLost if it is gone or has failed, and KeyboardInterrupt if it was
        interrupted."""
        told = self._next(rank)
        if "failed" in told:
            raise self.make_lost_error(rank, told["failed"])
        return told

    def _next(self, rank: int, patience: float | None = None) -> dict[str, Any]:
        """What a host says next; of one that says nothing for so many seconds, nothing."""
        while True:
            self._heed_signals()
            try:
                told = self.inboxes[rank].get(timeout=POLL_SECONDS if patience is None else patience)
                break
            except Empty:
                if patience is not None:
                    return {}
        if told is None:
            raise self.make_lost_error(rank)
        if "interrupted" in told:
            raise KeyboardInterrupt
        return told

    def _heed_signals(self) -> None:
        """On the first host, raise KeyboardInterrupt if a signal has been noted. Another host tells the first one, who
        ends all, after a round that all have computed."""
        if not self.rank:
            check_interrupted()
        elif is_interrupted() and not self.interruption_sent:
            self.interruption_sent = True
            self.send(interrupted=True)

    def all_failed(self, timeout: float) -> bool:
        """Whether all others say within so many seconds each that they have failed; they are ready for what comes next
        then. Raises HostLost if one is gone, and KeyboardInterrupt if one was interrupted."""
        return all("failed" in self._next(rank, timeout) for rank in self.connections)

    def check_failures(self, timeout: float = 0.0) -> None:
        """Hear what others say unasked for, waiting for it at most so many seconds: raises as ``hear`` does."""
        deadline = time.monotonic() + timeout
        while True:
            for rank, said in self.inboxes.items():
                if not said.empty():
                    self.receive(rank)
            if time.monotonic() >= deadline:
                return
            time.sleep(_OFTEN)

    def make_lost_error(self, rank: int, why: str = "") -> HostLost:
        """The error that says that a host is gone, or why it has failed."""
        self.failure = (
            self.failure or f"{self.describe_host(rank)} {f'failed: {why}' if why else 'was lost'}; {RERUN_HINT}"
        )
        return HostLost(self.failure)

    def receive_messages(self) -> None:
        """Take in what the others say, in a thread of its own, and say now and then that this one is there.

        It ends this process where the main thread does not come to hear that a host is gone, or that all is over: that
        may be waiting for that very host, within a round.
        """
        ranks: dict[Any, int] = {link: rank for rank, link in self.connections.items()}
        said, last = 0.0, dict.fromkeys(self.connections, time.monotonic())
        while ranks:
            if (now := time.monotonic()) > said + _BEAT:
                self._send({"alive": True})
                said = now
            for link in wait(list(ranks), _BEAT):
                try:
                    told = json.loads(link.recv_bytes())  # type: ignore[union-attr]
                except (EOFError, OSError):
                    told = None
                last[rank := ranks[link]] = time.monotonic() if told else 0.0
                if told and "alive" not in told:
                    self.inboxes[rank].put(told)
                if told and told.get("do") == "end":
                    _later(_PATIENCE, self._leave_at_last, told)
            for link in [link for link, rank in ranks.items() if time.monotonic() > last[rank] + _SILENT]:
                self.lost_ranks.add(rank := ranks.pop(link))
                self.inboxes[rank].put(None)
                _later(_GRACE, self._give_up, rank)

    def _give_up(self, rank: int) -> None:
        if not (self.closed or self.failure):
            print(f"fcorun: failed: {self.make_lost_error(rank)}", file=sys.stderr, flush=True)
            os._exit(1)

    def _leave_at_last(self, told: dict[str, Any]) -> None:
        if (told["code"] or told["why"]) and not self.closed:
            if told["why"]:
                print(f"fcorun: failed: {told['why']}", file=sys.stderr, flush=True)
            os._exit(told["code"] or 1)

    def close(self, code: int) -> None:
        """No more: tell the others, and leave together. With an exit code other than 0 this process ends here.

        Where one is gone, JAX would wait for it and then end this process by abort(), at exit as here: it is left out.
        """
        import jax

        self.closed = True
        if not self.rank:
            with suppress(HostLost):
                self.broadcast("end", code=code, why=self.failure)
        if not (code or self.failure or self.lost_ranks):
            jax.distributed.shutdown()
            return
        deadline = time.monotonic() + 2 * _PATIENCE
        while not self.rank and len(self.lost_ranks) < len(self.connections) and time.monotonic() < deadline:
            time.sleep(_OFTEN)  # JAX ends the others by abort() when this process is gone
        if code:
            _exit(code)
        atexit.register(_exit, 0)  # goes before JAX's own


def _exit(code: int) -> None:
    """End this process, past what is to be done at exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _later(seconds: float, function: Callable, *given: Any) -> None:
    timer = threading.Timer(seconds, function, given)
    timer.daemon = True
    timer.start()


_JOINED: list[Hosts] = []  # of this process: one at most


def current_hosts() -> Hosts | None:
    """The hosts that this process computes with; None where it computes alone."""
    return _JOINED[0] if _JOINED else None


def set_hosts(hosts: Hosts) -> None:
    """From now on this process computes with these."""
    _JOINED.append(hosts)
    threading.Thread(target=hosts.receive_messages, daemon=True).start()


def shutdown(code: int) -> None:
    """Leave the others, if there are any, with an exit code."""
    if hosts := current_hosts():
        _JOINED.clear()
        hosts.close(code)


@contextmanager
def silence_stdout() -> Iterator[None]:
    """Within it nothing reaches the standard output, where JAX's Gloo says whom it sees before its first sum."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
