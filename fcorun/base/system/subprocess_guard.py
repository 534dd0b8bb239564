"""A guard around a follower's process: the follower computes in a child, and the parent reports how the child ended."""

import os
import signal
import sys
import threading
from typing import NoReturn

from fcorun.base.system.files import SIGNALS
from fcorun.base.system.hosts import RERUN_HINT

_ABORT_MESSAGE = b"JAX distributed service detected fatal errors"  # printed by JAX before it ends a process by abort()


def continue_in_child() -> None:
    """Fork, and return in the child process alone; the parent ends with the child's messages and exit code.

    Used by followers: when the leader is lost, JAX ends the processes of all others by abort() and prints a stack
    trace. The parent replaces that trace by a sentence. The child's standard output is discarded.
    """
    error_reader, error_writer = os.pipe()
    parent_alive_reader, parent_alive_writer = os.pipe()
    if child := os.fork():
        os.close(error_writer)
        os.close(parent_alive_reader)
        _report_child(child, error_reader, parent_alive_writer)
    signal.set_wakeup_fd(-1)  # that of the parent, which alone reacts to signals and ends this process
    os.setpgrp()  # a terminal's Ctrl-C goes to the parent, which passes it on
    os.close(error_reader)
    os.close(parent_alive_writer)
    os.dup2(error_writer, 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.close(error_writer)

    def exit_with_parent() -> None:
        os.read(parent_alive_reader, 1)  # returns when the parent has ended
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


def _report_child(child: int, error_reader: int, parent_alive_writer: int) -> NoReturn:
    """Pass signals on to the child, print what it wrote to standard error, and end with its exit code."""
    for kind in SIGNALS:
        if signal.getsignal(kind) != signal.SIG_IGN:
            signal.signal(kind, lambda number, _: os.kill(child, number))
    with open(error_reader, "rb") as errors:
        messages = errors.read()  # Python handles signals meanwhile
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(parent_alive_writer)
    if code == -signal.SIGABRT and _ABORT_MESSAGE in messages:
        # without the lines on the connection that broke, and the line within which JAX's message begins
        lines = messages.partition(_ABORT_MESSAGE)[0].splitlines(keepends=True)[:-1]
        messages = b"".join(line for line in lines if b"coordination_service" not in line)
        messages += f"fcorun: failed: host 0 was lost; {RERUN_HINT}\n".encode()
        code = 1
    elif code < 0:
        messages += f"fcorun: failed: {signal.Signals(-code).name} ended this host; {RERUN_HINT}\n".encode()
    sys.stderr.flush()
    os.write(2, messages)
    raise SystemExit(code if code >= 0 else 128 - code)
