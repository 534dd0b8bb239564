"""Processes that run the command, forked from a process that has imported fcorun and composed a configuration.

Importing and composing take most of the time of a small run. The processes share the compiled programs of the process
of the tests. Run as a script, this file is the process that forks.
"""

import ctypes
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import jax

COMMAND = [sys.executable, "-m", "fcorun"]
CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of Linux: orphans become children of this process


def start_command(arguments: Sequence[str], cwd: str = ".", env: Mapping[str, str] | None = None) -> "CommandProcess":
    """Start ``fcorun ARGUMENTS`` in a process."""
    env = dict(os.environ if env is None else env)
    if sys.platform != "linux":
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([*COMMAND, *arguments], cwd=cwd, env=env, **pipes)
    return ForkedCommand(arguments, cwd, env)


class ForkedCommand:
    """A process of the command, with the methods of ``subprocess.Popen`` that the tests use."""

    def __init__(self, arguments: Sequence[str], cwd: str, env: dict[str, str]):
        self.returncode: int | Any = None  # as of subprocess.Popen
        self.outputs = [os.memfd_create("output"), os.memfd_create("errors")]
        programs = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
        request = {"arguments": list(arguments), "cwd": os.path.abspath(cwd), "env": env, "programs": programs}
        connection, _ = _connect_to_forker()
        message = json.dumps(request).encode()
        socket.send_fds(connection, [len(message).to_bytes(8, "big")], self.outputs)
        connection.sendall(message)
        self.pid = int.from_bytes(_receive(connection, 8), "big")

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def communicate(self, timeout: float = 600) -> tuple[str, str]:
        """Wait for the end, and return the output and the errors."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired([*COMMAND], timeout)
            time.sleep(0.01)
        out, err = (os.pread(file, os.fstat(file).st_size, 0).decode() for file in self.outputs)
        for file in self.outputs:
            os.close(file)
        return out, err

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)


CommandProcess = ForkedCommand | subprocess.Popen[str]


@cache
def _connect_to_forker() -> tuple[socket.socket, subprocess.Popen]:
    """Start the process that forks, and return the socket to it and the process, which ends with the socket."""
    ctypes.CDLL(None).prctl(CHILD_SUBREAPER, 1, 0, 0, 0)
    ours, theirs = socket.socketpair()
    command = [sys.executable, str(Path(__file__)), str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    theirs.close()
    return ours, process


def _receive(connection: socket.socket, length: int) -> bytes:
    """Return so many bytes."""
    parts = []
    while length:
        part = connection.recv(min(length, 2**16))
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


# ---------------------------------------------------------------- the process that forks


def _import_fcorun() -> None:
    """Import all that a run imports, and read the files of a configuration.

    JAX starts no thread before its first use.
    """
    from fast_composition import speed_up_composition

    import fcorun
    from fcorun.experiment.configuration.compose import compose_config

    for module in pkgutil.walk_packages(fcorun.__path__, "fcorun."):
        if module.name != "fcorun.__main__":
            import_module(module.name)
    for name in ("hydra_plugins.fcorun", "matplotlib.backends.backend_agg", "matplotlib.figure", "pandas"):
        import_module(name)
    speed_up_composition()
    compose_config(["data=lasso"])


def _share_programs(folder: str) -> None:
    """Read programs from a folder that others read, too, and save them there, each whole or not at all."""
    from fast_compilation import speed_up_compilation

    from fcorun.base.system import machine

    speed_up_compilation()
    cache_dir = machine.cache_dir
    machine.cache_dir = lambda name: Path(folder) if name == "programs" else cache_dir(name)
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")  # their folder would be part of each key


def _serve(connection: socket.socket) -> dict[str, Any]:
    """Fork a process for each request, and return the request in that process."""
    while True:
        length, files, _, _ = socket.recv_fds(connection, 8, 2)
        if not length:
            os._exit(0)
        request = json.loads(_receive(connection, int.from_bytes(length, "big")))
        reader, writer = os.pipe()
        if child := _fork():
            os.waitpid(child, 0)
            connection.sendall(os.read(reader, 8))
            for descriptor in (*files, reader, writer):
                os.close(descriptor)
            continue
        if grandchild := _fork():  # an orphan, whose parent will be the process of the tests
            os.write(writer, grandchild.to_bytes(8, "big"))
            os._exit(0)
        for number, descriptor in enumerate(files, 1):
            os.dup2(descriptor, number)
        for descriptor in (*files, reader, writer, connection.detach()):
            os.close(descriptor)
        return request


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of threads, of which there are none
        return os.fork()


def _main() -> None:
    """Become a process of the command for each request."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    _import_fcorun()
    request = _serve(connection)
    _share_programs(request["programs"])
    if "TESTS_WITHOUT_FLOCK" in request["env"]:
        import_module("without_flock").refuse_locks(setattr, stale_seconds=5.0)  # a process that computes counts late
    del sys.path[0]  # the folder of the tests
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = ["fcorun", *request["arguments"]]
    runpy.run_module("fcorun", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
