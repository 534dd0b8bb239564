"""Several hosts that compute together: which ones, and the messages between them.

The host of rank 0 is the leader: it alone reads and writes records, prints, and decides what is computed. The others
are followers, which execute its commands. They exchange JSON over sockets of their own, beside those of JAX, so that a
host that never comes, has other versions or is lost can be named.
"""

import atexit
import ipaddress
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Literal

from fcorun.config import Count, Index, Positive, build
from fcorun.errors import HostLost, UserError
from fcorun.system.interruption import POLL_SECONDS, check_interrupted, is_interrupted

# The hosts that compute together: given by the keys ``hosts.*``, or started by Slurm, Open MPI or Kubernetes.

SECRET_VARIABLE = "FCORUN_HOSTS_SECRET"  # the environment variable that may hold the secret
_MIN_SECRET_BYTES = 16
_UNKNOWN_LEADER = "several tasks were started together, and the address of the first one is not known"


@dataclass(frozen=True)
class HostOptions:
    """The keys of ``hosts``.

    Attributes:
        address: HOST:PORT of the leader, the host of rank 0; an IPv6 address is in brackets.
        count: the number of hosts.
        rank: the number of this host, from 0.
        timeout: seconds to wait for the other hosts.
        rows: the rows that each host loads: those of its own clients ("own"), or all ("all"). "auto" is "own" unless
            a run needs all rows.
        gpus: the numbers of the GPUs that this process uses; None: all that it sees.
        secret_file: a file with a secret that all hosts share. Without it, the environment variable
            ``SECRET_VARIABLE`` holds the secret.
    """

    address: str | None = None
    count: Count | None = None
    rank: Index | None = None
    timeout: Positive = 300.0
    rows: Literal["auto", "own", "all"] = "auto"
    gpus: list[int] | None = None
    secret_file: str | None = None

    @property
    def endpoint(self) -> tuple[str, int]:
        """The leader's host, without the brackets of IPv6, and its port."""
        host, _, port = str(self.address).rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def is_loopback(self) -> bool:
        """Return whether the address is reachable from this machine alone."""
        host, _ = self.endpoint
        try:
            return host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:  # a host name
            return False

    def secret(self) -> bytes:
        """Return the secret that the hosts share; on a loopback address it may be empty.

        Raises UserError for a missing secret, and for one that is short enough to be guessed.
        """
        secret = os.environ.get(SECRET_VARIABLE, "").encode()
        source = SECRET_VARIABLE
        if self.secret_file is not None:
            source = f"hosts.secret_file={self.secret_file}"
            try:
                secret = Path(self.secret_file).read_bytes()
            except OSError as error:
                raise UserError(
                    f"{source} cannot be read ({error.strerror}): give a file with a secret, the same on all hosts"
                ) from error
        secret = secret.strip()
        if not secret and not self.is_loopback:
            raise UserError(
                f"hosts.address={self.address} can be reached by others: give all hosts the same secret, in a file as "
                f"hosts.secret_file=FILE or in the environment variable {SECRET_VARIABLE}"
            )
        if (secret or self.secret_file) and len(secret) < _MIN_SECRET_BYTES:
            raise UserError(
                f"{source} holds a secret of {len(secret)} bytes: give {_MIN_SECRET_BYTES} or more, such as those of "
                "openssl rand -hex 32"
            )
        return secret


def resolve_hosts(values: Mapping[str, Any] | None) -> HostOptions | None:
    """Return the hosts that the keys name, or that a cluster has started; None for a single host.

    Raises UserError for incomplete or contradictory keys.
    """
    options = build(HostOptions, {key: value for key, value in (values or {}).items() if value is not None}, "hosts")
    if options.count == 1:
        return None
    is_incomplete = None in (options.address, options.count, options.rank)
    if is_incomplete and (_count_tasks() > 1 or _is_indexed_pod()):
        options = _detect(options)
    address, count, rank = options.address, options.count, options.rank
    given = [f"hosts.{key}" for key in ("address", "count", "rank") if getattr(options, key) is not None]
    if not given:
        return None
    if address is None or count is None or rank is None:
        raise UserError(f"{', '.join(given)} without the rest: give hosts.address, hosts.count and hosts.rank together")
    if rank >= count:
        raise UserError(f"hosts.rank={rank} must be less than hosts.count={count}: the first one is 0")
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit() and 0 < int(port) < 2**16):
        raise UserError(f"hosts.address={address} must be HOST:PORT, of the first host")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise UserError(f"hosts.address={address}: give an address of IPv6 in brackets, as [::1]:4321")
    return options


def require_single_host(command: str, values: Mapping[str, Any] | None) -> None:
    """Raise UserError if several hosts are configured, or were started, for a ``command`` that runs on one host."""
    if resolve_hosts(values) is not None:
        raise UserError(f"{command} computes on one host: leave hosts.* out and start it once, or give hosts.count=1")


def _count_tasks() -> int:
    """Return the number of tasks that Slurm or Open MPI have started together."""
    tasks = [os.environ.get("OMPI_COMM_WORLD_SIZE", "")]
    if "SLURM_STEP_NODELIST" in os.environ:  # unset in a batch script, which is one process
        tasks.append(os.environ.get("SLURM_STEP_NUM_TASKS") or os.environ.get("SLURM_NTASKS", ""))
    return max(int(number) if number.isdigit() else 1 for number in tasks)


def _is_indexed_pod() -> bool:
    """Return whether this is a pod of an indexed Kubernetes job, and the Kubernetes client is installed."""
    is_indexed = "KUBERNETES_SERVICE_HOST" in os.environ and "JOB_COMPLETION_INDEX" in os.environ
    return is_indexed and find_spec("kubernetes") is not None


def _detect(options: HostOptions) -> HostOptions:
    """Return the options with missing ones filled in from the cluster. Raises UserError if one stays unknown."""
    from jax._src.clusters import ClusterEnv  # used by jax.distributed, and not public

    try:
        address, count, rank, gpus = ClusterEnv.auto_detect_unset_distributed_params(
            coordinator_address=options.address,
            num_processes=options.count,
            process_id=options.rank,
            local_device_ids=None,
            cluster_detection_method=None,
            initialization_timeout=int(options.timeout),
        )
    except Exception as error:
        raise UserError(f"{_UNKNOWN_LEADER} ({error}): give hosts.address, hosts.count and hosts.rank, or "
                        "hosts.count=1 for each alone") from error  # fmt: skip
    if count == 1:
        return replace(options, address=None, count=None, rank=None)
    if None in (address, count, rank):
        raise UserError(f"{_UNKNOWN_LEADER}: give hosts.address, hosts.count and hosts.rank, or hosts.count=1 for "
                        "each alone")  # fmt: skip
    return replace(options, address=address, count=count, rank=rank, gpus=None if gpus is None else list(gpus))


# Several hosts that compute together, and the messages between them.

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
        rows: the rows that each host loads, as ``fcorun.system.hosts.HostOptions`` explains.
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


# The hosts of this process: none or one. This is a fact of the process, as JAX's group of processes is, which cannot be
# left and joined again. An argument would pass through all functions between the command and each collective step.
_CURRENT: list[Hosts] = []


def current_hosts() -> Hosts | None:
    """Return the hosts that this process computes with; None if it computes alone."""
    return _CURRENT[0] if _CURRENT else None


def set_hosts(hosts: Hosts) -> None:
    """Make ``hosts`` the current ones, and begin to receive their messages."""
    _CURRENT.append(hosts)
    threading.Thread(target=hosts.receive_messages, daemon=True).start()


def shutdown(code: int) -> None:
    """Close the current hosts, if this process has any, with an exit code."""
    if hosts := current_hosts():
        _CURRENT.clear()
        hosts.close(code)


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
