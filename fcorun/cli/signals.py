"""Signals that end a process, as Ctrl-C."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LATER = 0.1  # seconds


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it TERM and HUP are Ctrl-C, so that what runs keeps its checkpoints and says so; not where they are
    ignored, as HUP is under nohup. Of an interruption that Python cannot raise, for it came within a finalizer, it is
    reminded a little later."""
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGHUP)}
    for kind, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(kind, signal.default_int_handler)
    said, sys.unraisablehook = sys.unraisablehook, _reminding(sys.unraisablehook)
    try:
        yield
    finally:
        sys.unraisablehook = said
        for kind, handler in before.items():
            signal.signal(kind, handler)


def _reminding(otherwise: Any) -> Any:
    """What is done with an error that cannot be raised, which is ``otherwise`` done with others than interruptions."""

    def remind(lost: Any) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            otherwise(lost)
            return
        later = threading.Timer(_LATER, _interrupt)
        later.daemon = True
        later.start()

    return remind


def _interrupt() -> None:
    """Interrupt the main thread, if something still does."""
    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heeded = [kind for kind in kinds if signal.getsignal(kind) is signal.default_int_handler]
    if heeded and (main := threading.main_thread().ident):
        signal.pthread_kill(main, heeded[0])
