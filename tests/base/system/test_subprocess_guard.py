"""A follower's process and the parent that guards it."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

SCRIPT = """
import sys
from fcorun.base.system.subprocess_guard import continue_in_child
continue_in_child()
print("what the child says", file=sys.stderr, flush=True)
sys.stdin.read()
raise SystemExit(3)
"""


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def handles_signal(process: psutil.Process, number: int) -> bool:
    """Return whether a process has a handler of a signal, according to Linux."""
    (mask,) = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
    return bool(int(mask, 16) >> (number - 1) & 1)


@contextmanager
def kill_at_end(process: subprocess.Popen) -> Iterator[None]:
    """Kill a process after the context, even if it is stopped; its child then ends too."""
    try:
        yield
    finally:
        process.kill()


JAX_TRACE = b"""E0102 03:04:05 9 coordination_service_agent.cc:289] Polled an error from coordination service.
F0102 03:04:05 9 client.h:80] Terminating process because the JAX distributed service detected fatal errors. This
*** Check failure stack trace: ***
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the guard forks")
@pytest.mark.parametrize(
    ("number", "trace", "code", "event"),
    [
        (signal.SIGABRT, JAX_TRACE, 1, "host 0 was lost"),
        (signal.SIGABRT, b"", 134, "SIGABRT ended this host"),
        (signal.SIGSEGV, b"", 139, "SIGSEGV ended this host"),
        (signal.SIGKILL, b"", 137, "SIGKILL ended this host"),
    ],
)
def test_a_child_that_a_signal_ends_is_told_after_its_messages(number, trace, code, event):
    script = SCRIPT.replace("sys.stdin.read()", f"import os; os.write(2, {trace!r}); os.kill(os.getpid(), {number:d})")
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert process.returncode == code
    assert process.stderr == f"what the child says\nfcorun: failed: {event}; the same command resumes\n"
