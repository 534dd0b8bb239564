"""Signals that end a process: noted when they arrive, and acted on between steps, so that no file stays half-written.

Ctrl-C, a scheduler's request to end (SIGTERM) and a closed terminal (SIGHUP) are one thing here, an interruption.
Outside of ``interruptible``, as in a notebook, Ctrl-C raises KeyboardInterrupt as usual.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
POLL_SECONDS = 0.5  # the length of a wait between two calls of ``check_interrupted``
_DOUBLE_SIGNAL_SECONDS = 0.2  # within them a second signal counts as the first: ``timeout`` sends a process two


@dataclass
class _State:
    """The interruption of this process.

    Attributes:
        noted: whether a signal has arrived.
        at_once: whether the first signal raises KeyboardInterrupt at the line where it arrives.
    """

    noted: bool = False
    at_once: bool = False


_STATE = _State()  # one for the process, as handlers of signals are


def check_interrupted() -> None:
    """Raise KeyboardInterrupt if a signal has been noted. To be called between steps, in any thread."""
    if is_interrupted():
        raise KeyboardInterrupt


def is_interrupted() -> bool:
    """Return whether a signal has been noted."""
    return _STATE.noted


def wait_for_first(running: set[Future]) -> tuple[set[Future], set[Future]]:
    """Wait until at least one future is done; return the done futures and the others. Raises KeyboardInterrupt."""
    while True:
        check_interrupted()
        done, others = wait(running, POLL_SECONDS, FIRST_COMPLETED)
        if done:
            return done, others


@contextmanager
def interruptible() -> Iterator[None]:
    """Note signals within the context, except ignored ones (as SIGHUP is under nohup).

    A second signal ends the process at once; the record's lock is then free, which marks the run as interrupted. A
    nested ``interruptible`` changes nothing.
    """
    if any(signal.getsignal(kind) is _note for kind in SIGNALS):
        yield
        return
    previous_handlers = {kind: signal.getsignal(kind) for kind in SIGNALS}
    handled = [kind for kind, handler in previous_handlers.items() if handler not in (signal.SIG_IGN, None)]
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    threading.Thread(target=_exit_at_second_signal, args=(reader, handled), daemon=True).start()
    _STATE.noted = False
    previous_wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    for kind in handled:
        signal.signal(kind, _note)
    try:
        yield
    finally:
        for kind in handled:
            signal.signal(kind, previous_handlers[kind])
        signal.set_wakeup_fd(previous_wakeup)
        writer.close()
        _STATE.noted = False


@contextmanager
def interruptible_at_once() -> Iterator[None]:
    """Let a signal raise KeyboardInterrupt at the line where it arrives: for long steps that write no file."""
    with _set_at_once(True):
        check_interrupted()  # a signal may have arrived before
        yield


@contextmanager
def defer_interruption() -> Iterator[None]:
    """Only note a signal within the context, even inside ``interruptible_at_once``: for writing files."""
    with _set_at_once(False):
        yield


@contextmanager
def _set_at_once(at_once: bool) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # signal handlers run in the main thread
        yield
        return
    before = _STATE.at_once
    _STATE.at_once = at_once
    try:
        yield
    finally:
        _STATE.at_once = before


def _note(*_: Any) -> None:
    is_first = not _STATE.noted
    _STATE.noted = True
    if is_first and _STATE.at_once:
        raise KeyboardInterrupt


def _exit_at_second_signal(reader: socket.socket, kinds: Collection[int]) -> None:
    """End the process at the second of these signals.

    The signal numbers arrive through a socket, because a handler would wait until the main thread returns from a
    program that computes or compiles.
    """
    first_time = None
    with reader:
        while number := reader.recv(1):
            if number[0] not in kinds:
                continue
            now = time.monotonic()
            if first_time is None:
                first_time = now
            if now > first_time + _DOUBLE_SIGNAL_SECONDS:
                if sys.stdout.isatty():
                    os.write(sys.stdout.fileno(), b"\x1b[?25h")  # shows the cursor, which a progress bar hides
                os._exit(130)


def ignore_signals() -> None:
    """Ignore signals for the rest of the process, whose work is done."""
    for kind in SIGNALS:
        signal.signal(kind, signal.SIG_IGN)
