"""The rendezvous of several hosts: followers call the leader, which checks that all run the same command and versions.

A follower and the leader prove to each other that they know the secret, each by a digest of a number that the other
has drawn: the secret itself is never sent. Only JSON and arrays of numbers are exchanged; nothing of it is executed.
"""

import hmac
import json
import os
import platform
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from multiprocessing.connection import Connection

from fcorun.base.errors import UserError
from fcorun.base.system.files import POLL_SECONDS
from fcorun.base.system.hosts import Hosts
from fcorun.base.system.machine import SECRET_VARIABLE, HostOptions, fcorun_version, set_hosts

_PACKAGES = ("jax", "jaxlib")  # of which all hosts must have the same version, as of fcorun
_BACKLOG = 1000  # hosts that may call at once
_RETRY_SECONDS = 0.1  # between two calls of a leader that does not answer yet
_HANDSHAKE_SECONDS = 5.0  # for a caller to name itself and to prove that it knows the secret
_HEARTBEAT_TIMEOUT = 300  # seconds after which JAX aborts all for a silent host: later than fcorun reports the loss
_SHUTDOWN_TIMEOUT = 30  # seconds in which all hosts leave at the end
_REFUSED = b"refused"


def join_hosts(options: HostOptions, command: Sequence[str] = ()) -> Hosts:
    """Connect to the other hosts, check that they match, and have JAX compute over all of them.

    To be called before JAX's backend starts. ``command`` must be the same on all hosts. Raises UserError for hosts
    that do not come in time or do not match.
    """
    greeting = {
        "rank": options.rank,
        "name": platform.node(),
        "count": options.count,
        "command": list(command),
        "versions": {"fcorun": fcorun_version(), **{package: version(package) for package in _PACKAGES}},
    }
    options.secret()  # refuses a missing secret before anything is waited for
    hosts, jax_address = (_call_leader if options.rank else _gather_followers)(options, greeting)
    hosts.rows = options.rows
    _start_jax(options, jax_address)
    set_hosts(hosts)
    return hosts


def _gather_followers(options: HostOptions, greeting: dict) -> tuple[Hosts, str]:
    """Wait, on the leader, for all followers, and tell them the address at which JAX's processes meet."""
    host, port = options.endpoint
    connections: dict[int, Connection] = {}
    bind_address = (host if options.is_loopback else "", port)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server(bind_address, family=family, backlog=_BACKLOG) as server:
            greetings = _accept_followers(server, options, greeting, connections)
        _check_matching(greetings)
    except OSError as error:
        reason = str(error.strerror or error).partition(" (")[0]  # without the address, which the sentence has already
        raise UserError(
            f"hosts.address={options.address}: host 0 cannot have the port ({reason}); give another, or one rank each"
        ) from error
    except BaseException:
        for connection in connections.values():
            with suppress(OSError):
                connection.send_bytes(json.dumps({"do": "end", "code": 2}).encode())
        raise
    by_rank = dict(sorted(connections.items()))  # the order in which their rows are put together
    hosts = Hosts(0, [each["name"] for each in greetings], by_rank)
    with socket.create_server(("", 0)) as server:
        free_port = server.getsockname()[1]
    bracketed = f"[{host}]" if ":" in host else host
    jax_address = f"{bracketed}:{free_port}"
    hosts.broadcast("meet", names=hosts.names, address=jax_address)
    return hosts, jax_address


def _accept_followers(
    server: socket.socket, options: HostOptions, greeting: dict, connections: dict[int, Connection]
) -> list[dict]:
    """Return the greeting of each host by rank, and fill ``connections``. Raises UserError."""
    assert options.count is not None
    greetings = {0: greeting}
    deadline = time.monotonic() + options.timeout
    strangers = 0
    while missing := [rank for rank in range(options.count) if rank not in greetings]:
        server.settimeout(min(POLL_SECONDS, max(deadline - time.monotonic(), 1e-3)))
        try:
            connection = _to_connection(server.accept()[0])
        except TimeoutError as error:
            if time.monotonic() < deadline:
                continue
            plural = "s" if len(missing) > 1 else ""
            ranks = ", ".join(map(str, missing))
            turned_away = ""
            if strangers:
                turned_away = f" (others called {strangers} times without the secret, and were turned away)"
            raise UserError(
                f"host{plural} {ranks} of {options.count} did not come within hosts.timeout={options.timeout:g} "
                f"seconds{turned_away}: see what they say, and start all with one address"
            ) from error
        try:
            with _closed_after(connection, _HANDSHAKE_SECONDS):
                hello = _receive_greeting(connection, options.secret())
        except _Stranger:
            strangers += 1
            continue
        if hello is None:
            continue
        rank = hello["rank"]
        name = hello["name"]
        # the second of two hosts with one rank is kept as -1, so that it is told of the end, too
        connections[rank if rank not in connections else -1] = connection
        if rank in greetings:
            raise UserError(f"hosts.rank={rank} was given to {name} and to {greetings[rank]['name']}: give each its "
                            "own")  # fmt: skip
        if hello["count"] != options.count:
            raise UserError(f"hosts.count is {hello['count']} on {name} and {options.count} on {greeting['name']}: "
                            "give all the same")  # fmt: skip
        greetings[rank] = hello
    return [greetings[rank] for rank in range(options.count)]


def _call_leader(options: HostOptions, greeting: dict) -> tuple[Hosts, str]:
    """Call the leader, on a follower, until it answers; return its hosts and the address at which JAX meets."""
    deadline = time.monotonic() + options.timeout
    within = f"within hosts.timeout={options.timeout:g} seconds"
    while True:
        try:
            remaining = max(deadline - time.monotonic(), 1e-3)
            connection = _to_connection(socket.create_connection(options.endpoint, timeout=remaining))
            break
        except OSError as error:
            if time.monotonic() + _RETRY_SECONDS > deadline:
                raise UserError(
                    f"host 0 did not come {within}: nobody answers at hosts.address={options.address} "
                    f"({error.strerror or error})"
                ) from error
            time.sleep(_RETRY_SECONDS)
    try:
        _send_greeting(connection, greeting, options)
        deadline = time.monotonic() + options.timeout + _RETRY_SECONDS  # the leader still waits for later followers
        while not connection.poll(POLL_SECONDS):
            if time.monotonic() > deadline:
                raise UserError(f"host 0 did not continue {within}: start all hosts at about the same time")
        answer = json.loads(connection.recv_bytes())
    except (EOFError, OSError, ValueError) as error:
        raise UserError(f"host 0 at hosts.address={options.address} has ended, or is no fcorun") from error
    if answer["do"] == "end":  # the leader prints the reason
        raise SystemExit(answer["code"])
    assert options.rank is not None
    return Hosts(options.rank, answer["names"], {0: connection}), answer["address"]


def _to_connection(connected: socket.socket) -> Connection:
    connected.settimeout(None)
    return Connection(connected.detach())


@contextmanager
def _closed_after(connection: Connection, seconds: float) -> Iterator[None]:
    """Shut a connection down if the context takes longer than ``seconds``; its reader then finds the end."""

    def shut_down() -> None:
        with suppress(OSError):
            duplicate.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, shut_down)
    timer.daemon = True
    with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


class _Stranger(Exception):
    """A caller that does not know the secret."""


def _receive_greeting(connection: Connection, secret: bytes) -> dict | None:
    """Return the greeting of a follower; None from a caller that is no fcorun.

    Raises _Stranger for a caller without the secret.
    """
    challenge = secrets.token_hex(32)
    try:
        connection.send_bytes(challenge.encode())
        message = json.loads(connection.recv_bytes(2**20)) if connection.poll(_HANDSHAKE_SECONDS) else {}
        follower_challenge = str(message["challenge"])
        greeting = str(message["hello"])
        expected = _proof(secret, "hello", challenge, follower_challenge, greeting)
        if not hmac.compare_digest(str(message["proof"]).encode(), expected.encode()):
            connection.send_bytes(_REFUSED)
            raise _Stranger
        connection.send_bytes(_proof(secret, "welcome", challenge, follower_challenge).encode())
        return dict(json.loads(greeting))
    except (EOFError, OSError, ValueError, TypeError, KeyError):
        return None


def _send_greeting(connection: Connection, greeting: dict, options: HostOptions) -> None:
    """Send a follower's greeting to the leader, after each has proved to the other that it knows the secret.

    Raises UserError for a leader without the secret; EOFError, OSError or ValueError if no fcorun answers.
    """
    follower_challenge = secrets.token_hex(32)
    text = json.dumps(greeting)
    challenge = _receive_answer(connection, options.timeout).decode()
    proof = _proof(options.secret(), "hello", challenge, follower_challenge, text)
    message = {"challenge": follower_challenge, "hello": text, "proof": proof}
    connection.send_bytes(json.dumps(message).encode())
    answer = _receive_answer(connection, options.timeout)
    expected = _proof(options.secret(), "welcome", challenge, follower_challenge)
    if not hmac.compare_digest(answer, expected.encode()):
        raise UserError(f"host 0 at hosts.address={options.address} has another secret: give all hosts the same, in "
                        f"hosts.secret_file=FILE or {SECRET_VARIABLE}")  # fmt: skip


def _receive_answer(connection: Connection, seconds: float) -> bytes:
    """Return the leader's next message of a handshake; the leader greets one follower after the other."""
    if not connection.poll(seconds):
        raise EOFError
    return connection.recv_bytes(2**10)


def _proof(secret: bytes, purpose: str, *texts: str) -> str:
    """Return a digest that only who knows the secret can compute."""
    return hmac.new(secret, "\n".join([purpose, *texts]).encode(), "sha256").hexdigest()


def _check_matching(greetings: Sequence[dict]) -> None:
    """Raise UserError if a follower has other versions or another command than the leader."""
    leader, *followers = greetings
    leader_name = f"host 0 ({leader['name']})"
    for follower in followers:
        follower_name = f"host {follower['rank']} ({follower['name']})"
        for package, number in leader["versions"].items():
            other_number = follower["versions"].get(package)
            if other_number != number:
                raise UserError(f"{follower_name} has {package} {other_number} and {leader_name} has {number}: "
                                "install the same on all")  # fmt: skip
        leader_command = set(leader["command"])
        follower_command = set(follower["command"])
        if leader_command != follower_command:
            only_follower = " ".join(sorted(follower_command - leader_command)) or "nothing of it"
            only_leader = " ".join(sorted(leader_command - follower_command)) or "nothing of it"
            raise UserError(f"{follower_name} is given {only_follower}, and {leader_name} {only_leader}: give all the "
                            "same command, but for hosts.rank")  # fmt: skip


def _start_jax(options: HostOptions, address: str) -> None:
    """Start JAX's distributed runtime. Raises UserError if its processes do not find each other."""
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM for itself
    try:
        jax.distributed.initialize(
            address,
            options.count,
            options.rank,
            local_device_ids=options.gpus,
            cluster_detection_method="deactivate",
            heartbeat_timeout_seconds=_HEARTBEAT_TIMEOUT,
            shutdown_timeout_seconds=_SHUTDOWN_TIMEOUT,
            initialization_timeout=max(int(options.timeout), 1),
        )
        jax.devices()  # now, while all processes wait for each other's devices
    except RuntimeError as error:
        raise UserError(f"JAX's processes do not find each other at {address}: {str(error).splitlines()[0]}") from error
