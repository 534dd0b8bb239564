"""Signals that end a process: noted when they come, heeded between steps, so that nothing is broken off half-written.

Ctrl-C, the end that a shell or a scheduler asks for, and a terminal that is closed are one thing here, an interruption.
Without ``interruptible``, as in a notebook, Ctrl-C raises KeyboardInterrupt as ever.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_TWICE = 0.2  # seconds in which a second signal is the first one again: ``timeout`` sends a process two


@dataclass
class _State:
    """The interruption of this process.

    Attributes:
        noted: whether a signal has come.
        at_once: whether the first one raises KeyboardInterrupt where it comes.
    """

    noted: bool = False
    at_once: bool = False


_STATE = _State()  # of the process, as its handlers of signals are


def check_interrupted() -> None:
    """Raise KeyboardInterrupt if a signal has been noted. To be called between steps, in any thread."""
    if is_interrupted():
        raise KeyboardInterrupt


def is_interrupted() -> bool:
    """Whether a signal has been noted."""
    return _STATE.noted


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it signals are noted, but for those that are ignored, as HUP is under nohup. A second one ends the process
    at once, whatever it is doing: a record then says that it was interrupted, for its lock is gone. Within another
    ``interruptible`` it changes nothing."""
    if any(signal.getsignal(kind) is _note for kind in SIGNALS):
        yield
        return
    before = {kind: signal.getsignal(kind) for kind in SIGNALS}
    heeded = [kind for kind, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    heard, said = socket.socketpair()
    said.setblocking(False)
    threading.Thread(target=_end_at_the_second, args=(heard, heeded), daemon=True).start()
    _STATE.noted = False
    outer = signal.set_wakeup_fd(said.fileno(), warn_on_full_buffer=False)
    for kind in heeded:
        signal.signal(kind, _note)
    try:
        yield
    finally:
        for kind in heeded:
            signal.signal(kind, before[kind])
        signal.set_wakeup_fd(outer)
        said.close()
        _STATE.noted = False


@contextmanager
def interruptible_at_once() -> Iterator[None]:
    """Within it a signal raises KeyboardInterrupt where it comes: for long steps that write no file."""
    with _raising(True):
        check_interrupted()  # a signal that came before
        yield


@contextmanager
def defer_interruption() -> Iterator[None]:
    """Within it a signal is only noted, also in a part that is ``interruptible_at_once``: for writing."""
    with _raising(False):
        yield


@contextmanager
def _raising(at_once: bool) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # handlers run in that one
        yield
        return
    before, _STATE.at_once = _STATE.at_once, at_once
    try:
        yield
    finally:
        _STATE.at_once = before


def _note(*_: Any) -> None:
    first, _STATE.noted = not _STATE.noted, True
    if first and _STATE.at_once:
        raise KeyboardInterrupt


def _end_at_the_second(heard: socket.socket, kinds: Collection[int]) -> None:
    """End the process at the second of these signals, whose numbers come as they do: handlers would have to wait until
    the main thread is back from a program that computes or compiles."""
    first = None
    with heard:
        while number := heard.recv(1):
            if number[0] not in kinds:
                continue
            now = time.monotonic()
            first = now if first is None else first
            if now > first + _TWICE:
                if sys.stdout.isatty():
                    os.write(sys.stdout.fileno(), b"\x1b[?25h")  # the cursor, which a progress bar hides
                os._exit(130)


def ignore_signals() -> None:
    """Let nothing interrupt what is left of this process, whose work is done."""
    for kind in SIGNALS:
        signal.signal(kind, signal.SIG_IGN)
