"""Signals that end a process, as Ctrl-C."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible(*also: signal.Signals) -> Iterator[None]:
    """Within it TERM and HUP are Ctrl-C, so that what runs keeps its checkpoints and says so; not where they are
    ignored, as HUP is under nohup. ``also`` are others that are, even where they are ignored."""
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGHUP, *also)}
    for kind, handler in before.items():
        if kind in also or handler != signal.SIG_IGN:
            signal.signal(kind, signal.default_int_handler)
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
