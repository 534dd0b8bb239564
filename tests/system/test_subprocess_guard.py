"""A process that computes for another host, in a child of the one that was started."""

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
from fcorun.system.subprocess_guard import in_a_child
in_a_child()
print("what the child says", file=sys.stderr, flush=True)
sys.stdin.read()
raise SystemExit(3)
"""


def soon(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def heeds(process: psutil.Process, number: int) -> bool:
    """Whether a process has a handler of a signal, as Linux tells."""
    (mask,) = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
    return bool(int(mask, 16) >> (number - 1) & 1)


@contextmanager
def ended(started: subprocess.Popen) -> Iterator[None]:
    """After it a process is over, a stopped one too; its child sees that it is gone."""
    try:
        yield
    finally:
        started.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_ctrl_z_stops_both_and_both_go_on():
    piped = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", SCRIPT], **piped) as started, ended(started):
        parent = psutil.Process(started.pid)
        soon(parent.children)
        (child,) = parent.children()
        soon(lambda: heeds(parent, signal.SIGTSTP))
        parent.send_signal(signal.SIGTSTP)
        soon(lambda: {each.status() for each in (parent, child)} == {psutil.STATUS_STOPPED})
        parent.send_signal(signal.SIGCONT)
        soon(lambda: psutil.STATUS_STOPPED not in {each.status() for each in (parent, child)})
        _, said = started.communicate("", timeout=20)
    assert started.returncode == 3
    assert said == "what the child says\n"
