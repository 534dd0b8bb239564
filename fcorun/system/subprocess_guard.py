"""A process that computes for another host, and another process that says how it ended."""

import os
import select
import signal
import sys
import threading

from fcorun.errors import UserError
from fcorun.system.hosts import RERUN_HINT
from fcorun.system.interruption import SIGNALS
from fcorun.system.polling import POLL_SECONDS

_GONE = b"JAX distributed service detected fatal errors"  # what JAX says when it ends a process by abort()


def continue_in_child() -> None:
    """Go on in a child process, whose standard output goes nowhere; its parent says what the child had to say, and ends
    as it does. For all hosts but the first: when that is gone, JAX ends their processes by abort(), with a stack.

    Raises UserError on a system that has no such children.
    """
    if not hasattr(os, "fork"):
        raise UserError("hosts.*: several hosts are for Linux and macOS")
    heard, said = os.pipe()
    alive, kept = os.pipe()
    if child := os.fork():
        os.close(said)
        os.close(alive)
        for kind in SIGNALS:
            if signal.getsignal(kind) != signal.SIG_IGN:
                signal.signal(kind, lambda number, _: os.kill(child, number))
        if signal.getsignal(signal.SIGTSTP) != signal.SIG_IGN:
            signal.signal(signal.SIGTSTP, lambda *_: _stop_both(child))
        text = _heard(heard)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.close(kept)
        if code == -signal.SIGABRT and _GONE in text:
            text, code = f"fcorun: failed: host 0 was lost; {RERUN_HINT}\n".encode(), 1
        sys.stderr.flush()
        os.write(2, text)
        raise SystemExit(code if code >= 0 else 128 - code)
    signal.set_wakeup_fd(-1)  # the parent ends at a second signal, and this process with it
    os.setpgrp()  # a terminal's Ctrl-C and Ctrl-Z go to the parent, which passes them on
    for place in (heard, kept):
        os.close(place)
    os.dup2(said, 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.close(said)

    def watch() -> None:
        os.read(alive, 1)  # returns when the parent is gone
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _heard(place: int) -> bytes:
    """All that comes from a pipe."""
    found = b""
    while True:
        if select.select([place], [], [], POLL_SECONDS)[0]:
            more = os.read(place, 2**16)
            if not more:
                return found
            found += more


def _stop_both(child: int) -> None:
    """What Ctrl-Z asks of this process, of the child as well, and on the way back."""
    os.kill(child, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)
    os.kill(child, signal.SIGCONT)
