"""Signals that end a process, as Ctrl-C."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_KINDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LATER = 0.1  # seconds until it is reminded of an interruption


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it TERM and HUP are Ctrl-C, so that what runs keeps its checkpoints and says so; not where they are
    ignored, as HUP is under nohup. Of an interruption that Python cannot raise, for it came within a finalizer, it is
    reminded a little later, or at the end, by KeyboardInterrupt."""
    before = {kind: signal.getsignal(kind) for kind in _KINDS}
    heeded = [kind for kind, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    pending: list[threading.Timer] = []  # the reminder, at most one

    def interrupt(*_: Any) -> None:
        while pending:
            pending.pop().cancel()
        raise KeyboardInterrupt

    def remind() -> None:
        if pending and (main := threading.main_thread().ident):
            signal.pthread_kill(main, heeded[0])

    def lost(told: Any) -> None:
        if not isinstance(told.exc_value, KeyboardInterrupt):
            otherwise(told)
            return
        pending.append(threading.Timer(_LATER, remind))
        pending[-1].daemon = True
        pending[-1].start()

    for kind in heeded:
        signal.signal(kind, interrupt)
    otherwise, sys.unraisablehook = sys.unraisablehook, lost
    try:
        yield
    finally:
        sys.unraisablehook = otherwise
        left = list(pending)
        pending.clear()  # so that no reminder comes from now on
        for timer in left:
            timer.cancel()
            timer.join()  # it may be about to remind
        for kind in heeded:
            signal.signal(kind, before[kind])
    if left:
        raise KeyboardInterrupt
