"""Signals that end a process, as Ctrl-C."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it TERM and HUP are Ctrl-C, so that what runs keeps its checkpoints and says so; not where they are
    ignored, as HUP is under nohup."""
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGHUP)}
    for kind, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(kind, signal.default_int_handler)
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
