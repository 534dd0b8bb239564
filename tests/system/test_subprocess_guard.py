"""A follower's process and the parent that guards it."""

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
from fcorun.system.subprocess_guard import continue_in_child
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


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_ctrl_z_stops_parent_and_child_and_both_continue():
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", SCRIPT], **pipes) as process, kill_at_end(process):
        parent = psutil.Process(process.pid)
        wait_until(parent.children)
        (child,) = parent.children()
        wait_until(lambda: handles_signal(parent, signal.SIGTSTP))
        parent.send_signal(signal.SIGTSTP)
        wait_until(lambda: {each.status() for each in (parent, child)} == {psutil.STATUS_STOPPED})
        parent.send_signal(signal.SIGCONT)
        wait_until(lambda: psutil.STATUS_STOPPED not in {each.status() for each in (parent, child)})
        _, errors = process.communicate("", timeout=20)
    assert process.returncode == 3
    assert errors == "what the child says\n"
