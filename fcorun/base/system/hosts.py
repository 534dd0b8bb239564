"""Several hosts that compute together, and the messages between them.

The host of rank 0 is the leader: it alone reads and writes records, prints, and decides what is computed. The others
are followers, which execute its commands. They exchange JSON over sockets of their own, beside those of JAX, so that a
host that never comes, has other versions or is lost can be named.
"""

import atexit
import json
import math
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

from fcorun.base.errors import HostLost
from fcorun.base.system.files import POLL_SECONDS, check_interrupted, is_interrupted

RERUN_HINT = "the same command resumes"
_HEARTBEAT_SECONDS = 5.0  # between two signs of life
_SILENCE_SECONDS = 60.0  # without any sign of life, after which a host counts as lost
_LOSS_GRACE_SECONDS = 20.0  # for the main thread to notice that a host is lost, before the process ends
_END_GRACE_SECONDS = 2.0  # for the main thread to notice that the leader has ended
_POLL_OFTEN_SECONDS = 0.02


@dataclass
class Hosts:
    """The hosts of a run, as this host sees them.

    Attributes:
        rank: the number of this host.
        names: the name of each host, by rank.
        connections: on the leader, the connection to each follower by its rank; on a follower, the one to rank 0.
        rows: the rows that each host loads, as ``fcorun.base.system.machine.HostOptions`` explains.
        failure: which host was lost or failed, once that is known.
        closed: whether the hosts have finished, so that the end of a connection is no loss.
        interruption_sent: whether this follower has told the leader that it was interrupted.
        inboxes: the messages received from each host, by rank; None is the last one of a lost host.
        lost_ranks: the hosts whose connection has ended.
        send_lock: guards the connections, to which two threads write.
    """

    rank: int
    names: list[str]
    connections: dict[int, Connection] = field(repr=False)
    rows: str = "auto"
    failure: str = ""
    closed: bool = False
    interruption_sent: bool = False
    inboxes: dict[int, Queue] = field(default_factory=dict, repr=False)
    lost_ranks: set[int] = field(default_factory=set)
    send_lock: Any = field(default_factory=threading.RLock, repr=False)

    def __post_init__(self) -> None:
        self.inboxes = {rank: Queue() for rank in self.connections}

    @property
    def count(self) -> int:
        """The number of hosts."""
        return len(self.names)

    def describe_host(self, rank: int) -> str:
        """Return the rank and name of a host as text."""
        return f"host {rank} ({self.names[rank]})"

    def broadcast(self, command: str, **arguments: Any) -> None:
        """Send a command to all followers. Raises HostLost."""
        for rank in self._send_all({"do": command, **arguments}):
            raise self.make_lost_error(rank)

    def send(self, **content: Any) -> None:
        """Send a message to the leader. A lost leader is noticed by the next ``receive``."""
        self._send_all(content)

    def _send_all(self, content: dict[str, Any]) -> list[int]:
        """Send a message over all connections; return the ranks that could not be reached."""
        message = json.dumps(content).encode()
        unreachable = []
        for rank, connection in self.connections.items():
            try:
                with self.send_lock:
                    connection.send_bytes(message)
            except OSError:
                unreachable.append(rank)
        return unreachable

    def receive(self, rank: int = 0) -> dict[str, Any]:
        """Return the next message of a host.

        Raises HostLost if the host is lost or has failed, KeyboardInterrupt if it was interrupted.
        """
        message = self._next_message(rank)
        if "failed" in message:
            raise self.make_lost_error(rank, message["failed"])
        return message

    def _next_message(self, rank: int) -> dict[str, Any]:
        """Return the next message of a host, also one of failure.

        An interrupted leader raises KeyboardInterrupt, and ends all hosts after a round that all of them have computed.
        An interrupted follower tells the leader.
        """
        while True:
            if not self.rank:
                check_interrupted()
            elif is_interrupted() and not self.interruption_sent:
                self.interruption_sent = True
                self.send(interrupted=True)
            try:
                message = self.inboxes[rank].get(timeout=POLL_SECONDS)
                break
            except Empty:
                continue
        if message is None:
            raise self.make_lost_error(rank)
        if "interrupted" in message:
            raise KeyboardInterrupt
        return message

    def all_failed(self, timeout: float) -> bool:
        """Return whether each follower reports a failure within ``timeout`` seconds; then all await a new command.

        Raises HostLost if a host is lost, KeyboardInterrupt if one was interrupted.
        """
        deadline = time.monotonic() + timeout
        unheard = set(self.connections)
        while unheard and time.monotonic() < deadline:
            for rank in list(unheard):
                if not self.inboxes[rank].empty():
                    if "failed" not in self._next_message(rank):
                        return False
                    unheard.remove(rank)
            time.sleep(_POLL_OFTEN_SECONDS)
        return not unheard

    def check_failures(self, timeout: float = 0.0) -> None:
        """Receive the messages that have arrived, or that arrive within ``timeout`` seconds: raises as ``receive``."""
        deadline = time.monotonic() + timeout
        while True:
            for rank, inbox in self.inboxes.items():
                if not inbox.empty():
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

    def receive_messages(self) -> None:
        """Fill the inboxes and send signs of life, in a thread of its own, until all connections have ended.

        The main thread may be waiting within a round for a host that is lost. Therefore this thread ends the process
        if the main thread does not notice in time that a host is lost, or that the leader has ended.
        """
        ranks: dict[Any, int] = {connection: rank for rank, connection in self.connections.items()}
        last_sent = 0.0
        last_received = dict.fromkeys(self.connections, time.monotonic())
        while ranks:
            now = time.monotonic()
            if now > last_sent + _HEARTBEAT_SECONDS:
                self._send_all({"alive": True})
                last_sent = now
            for connection in wait(list(ranks), _HEARTBEAT_SECONDS):
                rank = ranks[connection]
                try:
                    message = json.loads(connection.recv_bytes())  # type: ignore[union-attr]
                except (EOFError, OSError, ValueError):  # the end of the connection, or no JSON
                    message = None
                last_received[rank] = time.monotonic() if message else -math.inf
                if message and "alive" not in message:
                    self.inboxes[rank].put(message)
                if message and message.get("do") == "end":
                    _run_later(_END_GRACE_SECONDS, self._exit_after_end, message)
            for connection, rank in list(ranks.items()):
                if time.monotonic() > last_received[rank] + _SILENCE_SECONDS:
                    del ranks[connection]
                    self.lost_ranks.add(rank)
                    self.inboxes[rank].put(None)
                    _run_later(_LOSS_GRACE_SECONDS, self._exit_after_loss, rank)

    def _exit_after_loss(self, rank: int) -> None:
        if not (self.closed or self.failure):
            print(f"fcorun: failed: {self.make_lost_error(rank)}", file=sys.stderr, flush=True)
            self.close(1)  # the leader tells the others which host was lost

    def _exit_after_end(self, message: dict[str, Any]) -> None:
        if (message["code"] or message["why"]) and not self.closed:
            if message["why"]:
                print(f"fcorun: failed: {message['why']}", file=sys.stderr, flush=True)
            os._exit(message["code"] or 1)

    def close(self, code: int) -> None:
        """End the common computation; with an exit code other than 0, this process ends at once.

        After a loss JAX's own shutdown is skipped, which would wait for the lost host and then end this process by
        abort().
        """
        import jax

        self.closed = True
        if not self.rank:
            with suppress(HostLost):
                self.broadcast("end", code=code, why=self.failure)
        if not (code or self.failure or self.lost_ranks):
            jax.distributed.shutdown()
            return
        deadline = time.monotonic() + 2 * _END_GRACE_SECONDS
        while not self.rank and len(self.lost_ranks) < len(self.connections) and time.monotonic() < deadline:
            time.sleep(_POLL_OFTEN_SECONDS)  # JAX ends the followers by abort() once the leader has ended
        if code:
            _exit(code)
        else:
            atexit.register(_exit, 0)  # runs before JAX's own handler


def _exit(code: int) -> None:
    """End this process without the handlers that are registered for its exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run_later(seconds: float, function: Callable, *arguments: Any) -> None:
    timer = threading.Timer(seconds, function, arguments)
    timer.daemon = True
    timer.start()


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
