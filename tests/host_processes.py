"""Several hosts, which are processes of this machine."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from helpers import rows_of

from fcorun import Record


def start_hosts(*arguments: str, count: int = 2, each=()) -> list[subprocess.Popen]:
    """So many hosts, each in a folder of its own and with one device; the first one's is ``0``."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    hosts = []
    for rank in range(count):
        Path(str(rank)).mkdir(exist_ok=True)
        own = [f"hosts.address=127.0.0.1:{port}", f"hosts.count={count}", f"hosts.rank={rank}", "hosts.timeout=60"]
        command = [sys.executable, "-m", "fcorun", *arguments, *own, *(each[rank] if each else ())]
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        hosts.append(subprocess.Popen(command, cwd=str(rank), env=os.environ | {"FCORUN_CORES": "1"}, **piped))
    return hosts


def wait_for_hosts(hosts: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    """The exit code, output and errors of each. None of them is left, in time or not."""
    try:
        told = [host.communicate(timeout=120) for host in hosts]
    finally:
        for host in hosts:
            if host.poll() is None:
                host.kill()
                host.communicate()
    return [(host.returncode, *each) for host, each in zip(hosts, told, strict=True)]


def assert_same_record(found: Record, expected: Record) -> None:
    """Two records but for their times and rounding."""
    pd.testing.assert_frame_equal(rows_of(found), rows_of(expected), rtol=1e-12, atol=1e-13)
    for name, values in expected.solution.items():
        np.testing.assert_allclose(found.solution[name], values, rtol=1e-12, atol=1e-13)
