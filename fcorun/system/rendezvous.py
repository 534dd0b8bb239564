"""How several hosts come together: they call the first one, which checks that they are alike.

A host and the first one prove to each other that they know the secret, each by a digest of a number that the other one
has drawn: the secret itself does not travel. What travels is JSON and arrays of numbers; nothing of it is executed.
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

from fcorun.errors import UserError
from fcorun.system.cluster import SECRET_VARIABLE, HostOptions
from fcorun.system.hosts import Hosts, set_hosts
from fcorun.system.polling import POLL_SECONDS

_PACKAGES = ("fcorun", "jax", "jaxlib")
_BACKLOG = 1000  # hosts that call at once
_AGAIN = 0.1  # seconds between two calls of a host that does not answer yet
_LATE = 300  # seconds after which JAX ends all by abort(), where a host does not answer: after fcorun has
_REFUSED = b"refused"
_GREETING = 5.0  # seconds that a caller has to say who it is and to prove it
_LEAVING = 30  # seconds in which all leave, at the end


def join_hosts(asked: HostOptions, command: Sequence[str] = ()) -> Hosts:
    """Meet the others, check that they are alike, and have JAX compute over all of them.

    To be called before JAX's backend starts. ``command`` is to be the same on all. Raises UserError for hosts that do
    not come in time or are not alike.
    """
    told = {"rank": asked.rank, "name": platform.node(), "count": asked.count, "command": list(command)}
    told |= {"versions": {package: version(package) for package in _PACKAGES}}
    asked.secret()  # refuses one that is missing before anything is waited for
    hosts, address = (_call if asked.rank else _gather)(asked, told)
    hosts.rows = asked.rows
    _start_jax(asked, address)
    set_hosts(hosts)
    return hosts


def _gather(asked: HostOptions, told: dict) -> tuple[Hosts, str]:
    """On the first host: wait for all others, and tell them where JAX is to meet."""
    host, port = asked.endpoint
    links: dict[int, Connection] = {}
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host if asked.is_loopback else "", port), family=family, backlog=_BACKLOG) as server:
            there = _answered(server, asked, told, links)
        _check_alike(there)
    except OSError as error:
        why = str(error.strerror or error).partition(" (")[0]  # without the address, which stands before
        taken = f"hosts.address={asked.address}: host 0 cannot have the port ({why}); give another, or one rank each"
        raise UserError(taken) from error
    except BaseException:
        for link in links.values():
            with suppress(OSError):
                link.send_bytes(json.dumps({"do": "end", "code": 2}).encode())
        raise
    hosts = Hosts(0, [each["name"] for each in there], links)
    address = f"{f'[{host}]' if ':' in host else host}:{_free_port()}"
    hosts.broadcast("meet", names=hosts.names, address=address)
    return hosts, address


def _answered(server: socket.socket, asked: HostOptions, told: dict, links: dict[int, Connection]) -> list[dict]:
    """What each host says of itself, by rank; ``links`` takes the connections. Raises UserError."""
    assert asked.count is not None
    there, deadline, strangers = {0: told}, time.monotonic() + asked.timeout, 0
    while missing := [rank for rank in range(asked.count) if rank not in there]:
        server.settimeout(min(POLL_SECONDS, max(deadline - time.monotonic(), 1e-3)))
        try:
            link = _link(server.accept()[0])
        except TimeoutError as error:
            if time.monotonic() < deadline:
                continue
            who = f"host{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} of {asked.count}"
            within = f"within hosts.timeout={asked.timeout:g} seconds"
            turned = f" (others called {strangers} times without the secret, and were turned away)" if strangers else ""
            raise UserError(
                f"{who} did not come {within}{turned}: see what they say, and start all with one address"
            ) from error
        try:
            with _ended_after(link, _GREETING):
                hello = _hello(link, asked.secret())
        except _Stranger:
            strangers += 1
            continue
        if hello is None:
            continue
        rank, name = hello["rank"], hello["name"]
        links[rank if rank not in links else -1] = link  # the second of two that have one rank is told of the end, too
        if rank in there:
            raise UserError(f"hosts.rank={rank} was given to {name} and to {there[rank]['name']}: give each its own")
        if hello["count"] != asked.count:
            counts = f"hosts.count is {hello['count']} on {name} and {asked.count} on {told['name']}"
            raise UserError(f"{counts}: give all the same")
        there[rank] = hello
    return [there[rank] for rank in range(asked.count)]


def _call(asked: HostOptions, told: dict) -> tuple[Hosts, str]:
    """On another host: call the first one until it answers, and hear where JAX is to meet."""
    (host, port), deadline = asked.endpoint, time.monotonic() + asked.timeout
    within = f"within hosts.timeout={asked.timeout:g} seconds"
    while True:
        try:
            left = max(deadline - time.monotonic(), 1e-3)
            link = _link(socket.create_connection((host, port), timeout=left))
            break
        except OSError as error:
            if time.monotonic() + _AGAIN > deadline:
                silent = f"host 0 did not come {within}: nobody answers at hosts.address={asked.address}"
                raise UserError(f"{silent} ({error.strerror or error})") from error
            time.sleep(_AGAIN)
    try:
        _introduce(link, told, asked)
        deadline = time.monotonic() + asked.timeout + _AGAIN  # the first one waits for those that come after this one
        while not link.poll(POLL_SECONDS):
            if time.monotonic() > deadline:
                raise UserError(f"host 0 did not go on {within}: start all at about the same time")
        meet = json.loads(link.recv_bytes())
    except (EOFError, OSError, ValueError) as error:
        raise UserError(f"host 0 at hosts.address={asked.address} has ended, or is no fcorun") from error
    if meet["do"] == "end":  # the first one says why
        raise SystemExit(meet["code"])
    assert asked.rank is not None
    return Hosts(asked.rank, meet["names"], {0: link}), meet["address"]


def _link(connected: socket.socket) -> Connection:
    connected.settimeout(None)
    return Connection(connected.detach())


@contextmanager
def _ended_after(link: Connection, seconds: float) -> Iterator[None]:
    """End a connection, whose reader then finds its end, where what is done within takes longer than so long."""

    def end() -> None:
        with suppress(OSError):
            view.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    with socket.socket(fileno=os.dup(link.fileno())) as view:
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


class _Stranger(Exception):
    """A caller that does not know the secret."""


def _hello(link: Connection, secret: bytes) -> dict | None:
    """What a host says of itself; None where it is no host of fcorun. Raises _Stranger for one without the secret."""
    challenge = secrets.token_hex(32)
    try:
        link.send_bytes(challenge.encode())
        told = json.loads(link.recv_bytes(2**20)) if link.poll(_GREETING) else {}
        mine, text = str(told["challenge"]), str(told["hello"])
        if not hmac.compare_digest(
            str(told["proof"]).encode(), _proof(secret, "hello", challenge, mine, text).encode()
        ):
            link.send_bytes(_REFUSED)
            raise _Stranger
        link.send_bytes(_proof(secret, "welcome", challenge, mine).encode())
        return dict(json.loads(text))
    except (EOFError, OSError, ValueError, TypeError, KeyError):
        return None


def _introduce(link: Connection, told: dict, asked: HostOptions) -> None:
    """Say to the first host who this one is, once each has proved to the other that it knows the secret.

    Raises UserError where that is not so; EOFError, OSError or ValueError where nobody of fcorun answers.
    """
    mine, text = secrets.token_hex(32), json.dumps(told)
    challenge = _answer(link, asked.timeout).decode()
    proof = _proof(asked.secret(), "hello", challenge, mine, text)
    link.send_bytes(json.dumps({"challenge": mine, "hello": text, "proof": proof}).encode())
    if not hmac.compare_digest(
        _answer(link, asked.timeout), _proof(asked.secret(), "welcome", challenge, mine).encode()
    ):
        raise UserError(f"host 0 at hosts.address={asked.address} has another secret: give all hosts the same, in "
                        f"hosts.secret_file=FILE or {SECRET_VARIABLE}")  # fmt: skip


def _answer(link: Connection, seconds: float) -> bytes:
    """What the first host says next, while two introduce themselves; it greets others before."""
    if not link.poll(seconds):
        raise EOFError
    return link.recv_bytes(2**10)


def _proof(secret: bytes, what: str, *texts: str) -> str:
    """A digest that tells that its maker knows the secret."""
    return hmac.new(secret, "\n".join([what, *texts]).encode(), "sha256").hexdigest()


def _check_alike(there: Sequence[dict]) -> None:
    """Raises UserError where a host has other versions or another command than the first."""
    first, *others = there
    one = f"host 0 ({first['name']})"
    for other in others:
        two = f"host {other['rank']} ({other['name']})"
        for package, number in first["versions"].items():
            theirs = other["versions"].get(package)
            if theirs != number:
                raise UserError(f"{two} has {package} {theirs} and {one} has {number}: install the same on all")
        mine, theirs = (set(each["command"]) for each in (first, other))
        if mine != theirs:
            given = [" ".join(sorted(own - rest)) or "nothing of it" for own, rest in ((theirs, mine), (mine, theirs))]
            told = f"{two} is given {given[0]}, and {one} {given[1]}"
            raise UserError(f"{told}: give all the same command, but for hosts.rank")


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def _start_jax(asked: HostOptions, address: str) -> None:
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it takes SIGTERM for itself
    try:
        jax.distributed.initialize(
            address,
            asked.count,
            asked.rank,
            local_device_ids=asked.gpus,
            cluster_detection_method="deactivate",
            heartbeat_timeout_seconds=_LATE,
            shutdown_timeout_seconds=_LEAVING,
            initialization_timeout=max(int(asked.timeout), 1),
        )
        jax.devices()  # here, where all are waiting for each other's
    except RuntimeError as error:
        raise UserError(f"JAX's processes do not find each other at {address}: {str(error).splitlines()[0]}") from error
