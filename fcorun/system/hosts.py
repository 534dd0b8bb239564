"""Several hosts that compute together: who they are, how they find each other, and what they tell each other.

The first one, of rank 0, leads: it alone reads and writes records, prints, and says what is to be computed. Each other
one does that, and nothing else. They talk in JSON over sockets of their own, beside those of JAX, so that a host that
never comes, has other versions or is gone can be named.
"""

import json
import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from fcorun.errors import HostLost

GOES_ON = "the same command goes on"
_GRACE = 20.0  # seconds in which the main thread comes to see that a host is gone, unless it waits for it
_PATIENCE = 10.0  # seconds until the others are thought to have heard that all is over


@dataclass
class Hosts:
    """The hosts of this run, as this one sees them.

    Attributes:
        rank: which one this is.
        names: what each is called, by rank.
        links: the connections: of the first one to each other by rank, of another one to the first.
        why: which host was lost, once that is known.
        over: whether all is over, so that nobody is lost any more.
    """

    rank: int
    names: list[str]
    links: dict[int, Connection] = field(repr=False)
    why: str = ""
    over: bool = False

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.names)

    def name(self, rank: int) -> str:
        """A host in words."""
        return f"host {rank} ({self.names[rank]})"

    def tell(self, do: str, **more: Any) -> None:
        """Tell all others what to do. Raises HostLost."""
        content = json.dumps({"do": do, **more}, default=str).encode()
        for rank, link in self.links.items():
            try:
                link.send_bytes(content)
            except OSError as error:
                raise self.lost(rank) from error

    def hear(self, rank: int = 0) -> dict[str, Any]:
        """What a host says next. Raises HostLost if it is gone or has failed, and KeyboardInterrupt if it was
        interrupted."""
        try:
            told = json.loads(self.links[rank].recv_bytes())
        except (EOFError, OSError) as error:
            raise self.lost(rank) from error
        if "failed" in told:
            raise self.lost(rank, told["failed"])
        if "interrupted" in told:
            raise KeyboardInterrupt
        return told

    def heed(self, patience: float = 0.0) -> None:
        """Hear what others say unasked for, at most after so many seconds: raises as ``hear`` does."""
        ranks = {link: rank for rank, link in self.links.items()}
        for link in wait(list(ranks), patience):
            self.hear(ranks[link])  # type: ignore[index]

    def say(self, **more: Any) -> None:
        """Answer the first host; if it is gone, that is noticed when it is listened to."""
        with suppress(OSError):
            self.links[0].send_bytes(json.dumps(more, default=str).encode())

    def lost(self, rank: int, why: str = "") -> HostLost:
        """The error that says that a host is gone, or why it has failed."""
        self.why = self.why or f"{self.name(rank)} {f'failed: {why}' if why else 'was lost'}; {GOES_ON}"
        return HostLost(self.why)

    def end(self, code: int) -> None:
        """No more: tell the others, and leave together. With an exit code other than 0 this process ends here."""
        import jax

        self.over = True
        if not self.rank:
            content = json.dumps({"do": "end", "code": code, "why": self.why}).encode()
            for link in self.links.values():
                with suppress(OSError):
                    link.send_bytes(content)
        if not code:
            jax.distributed.shutdown()
            return
        sys.stdout.flush()
        sys.stderr.flush()
        if not self.rank:  # JAX ends them by abort() when this process is gone
            deadline = time.monotonic() + _PATIENCE
            for link in self.links.values():
                with suppress(EOFError, OSError):
                    while link.poll(max(deadline - time.monotonic(), 0)):
                        link.recv_bytes()
        os._exit(code)  # JAX would wait for those that are gone

    def watch(self) -> None:
        """End this process where a host is gone and the main thread does not come to see it: on a GPU, it may be waiting
        for that very host."""
        polled = select.poll()
        for link in self.links.values():
            polled.register(link.fileno(), getattr(select, "POLLRDHUP", 0))
        gone = polled.poll()
        if self.over:
            return
        rank = {link.fileno(): rank for rank, link in self.links.items() if not link.closed}.get(gone[0][0], 0)
        time.sleep(_GRACE)
        if not (self.over or self.why):
            print(f"fcorun: failed: {self.lost(rank)}", file=sys.stderr, flush=True)
            os._exit(1)


_JOINED: list[Hosts] = []  # of this process: one at most


def joined() -> Hosts | None:
    """The hosts that this process computes with; None where it computes alone."""
    return _JOINED[0] if _JOINED else None


def joins(hosts: Hosts) -> None:
    """From now on this process computes with these."""
    _JOINED.append(hosts)
    threading.Thread(target=hosts.watch, daemon=True).start()


def leave(code: int) -> None:
    """Leave the others, if there are any, with an exit code."""
    if hosts := joined():
        _JOINED.clear()
        hosts.end(code)


@contextmanager
def hushed() -> Iterator[None]:
    """Within it nothing reaches the standard output: of its first sum over hosts, JAX's Gloo says there whom it sees."""
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
