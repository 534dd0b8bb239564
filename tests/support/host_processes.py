"""Several hosts as processes of this machine."""

import os
import socket
from pathlib import Path

import numpy as np
import pandas as pd
from helpers import rows_of
from warm_processes import CommandProcess, start_command

from fcorun import Record


def start_hosts(*arguments: str, count: int = 2, per_host=()) -> list[CommandProcess]:
    """Start hosts, each with one device and in a folder named by its rank; ``per_host`` holds further overrides."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    hosts = []
    for rank in range(count):
        Path(str(rank)).mkdir(exist_ok=True)
        host_options = [
            f"hosts.address=127.0.0.1:{port}",
            f"hosts.count={count}",
            f"hosts.rank={rank}",
            "hosts.timeout=60",
            *(per_host[rank] if per_host else ()),
        ]
        environment = os.environ | {"FCORUN_CORES": "1"}
        hosts.append(start_command([*arguments, *host_options], cwd=str(rank), env=environment))
    return hosts


def wait_for_hosts(hosts: list[CommandProcess]) -> list[tuple[int, str, str]]:
    """Return the exit code, output and errors of each host. Hosts that do not end in time are killed."""
    try:
        outputs = [host.communicate(timeout=120) for host in hosts]
    finally:
        for host in hosts:
            if host.poll() is None:
                host.kill()
                host.communicate()
    return [(host.returncode, *output) for host, output in zip(hosts, outputs, strict=True)]


def assert_same_record(actual: Record, expected: Record) -> None:
    """Assert that two records are equal except for times and rounding."""
    pd.testing.assert_frame_equal(rows_of(actual), rows_of(expected), rtol=1e-12, atol=1e-13)
    for name, values in expected.solution.items():
        np.testing.assert_allclose(actual.solution[name], values, rtol=1e-12, atol=1e-13)
