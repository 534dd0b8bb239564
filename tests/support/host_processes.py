"""A command on several hosts, which are processes of this machine, and hosts that differ or fail."""

import os
import textwrap
import time
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
from helpers import rows_of
from warm_processes import CommandProcess, start_command

from fcorun import Record

# A module that Python imports first: in the process of a host it runs the code of ``start_on_hosts``. The hosts come in
# any order; ``is_odd`` is true in one of them, the first of a name.
_SITE = """
import os, sys

def is_odd(name):
    try:
        os.mkdir({folder!r} + "/" + name)
    except FileExistsError:
        return False
    return True

if "fcorun.interface.cli.host" in sys.orig_argv:
{code}
"""


def start_on_hosts(*arguments: str, count: int = 2, code: str = "") -> CommandProcess:
    """Start a command on so many hosts, each with one device; ``code`` runs first in the process of each host."""
    environment = os.environ | {"FCORUN_CORES": "1"}
    if code:
        folder = Path("site").absolute()
        folder.mkdir()
        text = _SITE.format(folder=str(folder), code=textwrap.indent(textwrap.dedent(code), "    "))
        (folder / "sitecustomize.py").write_text(text)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return start_command([*arguments, f"hosts.count={count}", "hosts.timeout=600"], env=environment)


def wait_for_end(command: CommandProcess) -> tuple[int, str, str]:
    """Return the exit code, output and errors of a command, which is killed if it does not end in time."""
    try:
        output = command.communicate(timeout=900)
    finally:
        if command.poll() is None:
            command.kill()
            command.communicate()
    return (command.returncode, *output)


def run_on_hosts(*arguments: str, count: int = 2, code: str = "") -> str:
    """Run a command on so many hosts; return its output. It must end well, without a word to standard error."""
    end, output, errors = wait_for_end(start_on_hosts(*arguments, count=count, code=code))
    assert (end, errors) == (0, ""), (errors, output)
    return output


def find_hosts(command: CommandProcess) -> list[psutil.Process]:
    """Return the processes that compute."""
    hosts = []
    for process in psutil.Process(command.pid).children(recursive=True):
        try:
            if "fcorun.interface.cli.host" in process.cmdline():
                hosts.append(process)
        except psutil.NoSuchProcess:
            continue
    return hosts


def wait_for_computing_hosts(folder: str, command: CommandProcess, count: int) -> list[psutil.Process]:
    """Wait until so many hosts have written two checkpoints of a run; return their processes."""
    checkpoint = Path(folder, ".checkpoint.npz")
    hosts, seen = set(), set()
    while len(seen) < 3:
        assert command.poll() is None, command.communicate()
        found = set(find_hosts(command))
        if found != hosts:  # some are lost or start: only what is written from now on is theirs
            hosts = found
            seen.clear()
        if len(hosts) == count and checkpoint.exists():
            seen.add(checkpoint.stat().st_mtime_ns)
        time.sleep(0.01)
    return sorted(hosts, key=lambda host: host.pid)


def assert_same_record(actual: Record, expected: Record) -> None:
    """Assert that two records are equal except for times and rounding."""
    pd.testing.assert_frame_equal(rows_of(actual), rows_of(expected), rtol=1e-12, atol=1e-13)
    for name, values in expected.solution.items():
        np.testing.assert_allclose(actual.solution[name], values, rtol=1e-12, atol=1e-13)
