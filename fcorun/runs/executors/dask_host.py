"""One of several hosts: a task of a Dask worker, and the process that it starts, which computes.

JAX ends a process by abort() when another host is lost. Therefore a host computes in a process of its own, which its
worker watches, and ends when the command says so. This module is imported where Dask is installed.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from distributed import Client, Queue, get_client, get_worker
from distributed.comm.addressing import get_address_host

from fcorun.base.errors import UserError
from fcorun.base.system.hosts import Hosts
from fcorun.base.system.machine import (
    STARTING_ENVIRONMENT,
    HostOptions,
    check_versions,
    free_host_memory,
    set_hosts,
    set_up_jax,
)

_PROGRAM = "fcorun.interface.cli.host"
_POLL_SECONDS = 0.1
_SECONDS_TO_CLOSE = 5.0  # for the output of a process that has ended
_HEARTBEAT_TIMEOUT = 100  # seconds after which JAX aborts all for a silent host: later than Dask names it
_SHUTDOWN_TIMEOUT = 30  # seconds in which all hosts leave at the end


@dataclass(frozen=True)
class HostTask:
    """The task of a worker that is one of several hosts.

    Attributes:
        token: a part of the names of the queues of one attempt at the command.
        rank: the number of this host.
        names: the address of each host's worker, by rank.
        arguments: the command line, of which ``options`` are the keys ``hosts``.
        folder: the current folder of the command.
        probe: a file that the leader must see.
        n_cores: the number of cores that the host uses; None: all of its machine.
        versions: those of the command, by package.
        identities: those of the command's runs.
    """

    token: str
    rank: int
    names: tuple[str, ...]
    arguments: tuple[str, ...]
    options: HostOptions
    folder: str
    probe: Path
    n_cores: int | None
    versions: Mapping[str, str]
    identities: tuple[str, ...]

    def mailbox(self, rank: int, client: Any) -> Any:
        """Return the queue of the messages to a host."""
        return Queue(f"{self.token}-{rank}", client)

    def orders(self, client: Any) -> Any:
        """Return the queue of the command's orders to the worker: the number of a signal for the host's process."""
        return Queue(f"{self.token}-orders-{self.rank}", client)

    def starts(self, client: Any) -> Any:
        """Return the queue in which the worker says that it has started the host."""
        return Queue(f"{self.token}-starts-{self.rank}", client)

    def output(self, client: Any) -> Any:
        """Return the queue of the leader's lines, each with the name of its stream."""
        return Queue(f"{self.token}-output", client)


def run_host(task: HostTask) -> tuple[int, str]:
    """Compute as one of several hosts, in a process of its own.

    Returns the exit code of the process, -N if signal N ended it, and what a follower wrote to standard error. Raises
    UserError if the leader does not see the folder of the records.
    """
    worker = get_worker()
    client = get_client()
    if task.rank == 0 and not task.probe.exists():
        raise UserError(f"the Dask worker {worker.address} does not see the files of {task.probe.parent}: give "
                        "`out=DIR` in a folder that all workers share")  # fmt: skip
    starts = task.starts(client)
    if starts.qsize():  # of a worker that was lost, and came back under its address
        return -signal.SIGKILL, ""
    starts.put(True)
    environment = STARTING_ENVIRONMENT | {"PYTHONSAFEPATH": "1"}
    if task.n_cores is not None:
        environment["FCORUN_CORES"] = str(task.n_cores)
    content = pickle.dumps((task, worker.scheduler.address, worker.security, get_address_host(worker.address)))
    process = subprocess.Popen(
        [sys.executable, "-m", _PROGRAM, str(len(content))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=task.folder if Path(task.folder).is_dir() else None,  # followers need not share it
        start_new_session=True,  # a terminal's Ctrl-C is for the command
    )
    try:
        assert process.stdin is not None
        process.stdin.write(content)
        process.stdin.flush()  # and stays open: its end tells the process that this worker has ended
        errors: list[str] = []
        output = task.output(client)
        readers = []
        for stream, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            arguments = (pipe, stream, errors if task.rank else output)
            readers.append(threading.Thread(target=_read_lines, args=arguments, daemon=True))
            readers[-1].start()
        _obey(process, task.orders(client), worker)
        for reader in readers:
            reader.join(_SECONDS_TO_CLOSE)
        return process.wait(), "".join(errors)
    finally:
        process.kill()


def _read_lines(pipe: IO[bytes], stream: str, target: Any) -> None:
    """Read what a process writes: into the command's queue, or keep the errors."""
    for line in pipe:
        text = line.decode(errors="replace")
        if isinstance(target, Queue):
            target.put([stream, text])
        elif stream == "stderr":
            target.append(text)


def _obey(process: subprocess.Popen, orders: Any, worker: Any) -> None:
    """Send a process the signals that the command orders, until it has ended; kill it if the command has ended."""
    key = worker.get_current_task()
    while process.poll() is None:
        with suppress(TimeoutError):
            process.send_signal(orders.get(timeout=_POLL_SECONDS))
        if worker.state.tasks[key].state == "cancelled":
            process.kill()
            process.wait()


# The process of a host.


def read_task(n_bytes: int) -> tuple[HostTask, str, Any, str]:
    """Read what ``run_host`` writes to standard input, and end this process when the worker ends.

    Returns the task, the address and the security of Dask's scheduler, and the address of this machine.
    """
    content = b""
    while len(content) < n_bytes:
        content += os.read(0, n_bytes - len(content))

    def exit_with_worker() -> None:
        os.read(0, 1)  # returns when the worker has ended
        os._exit(1)

    threading.Thread(target=exit_with_worker, daemon=True).start()
    return pickle.loads(content)


def join_hosts(task: HostTask, scheduler: str, security: Any, machine: str) -> Client:
    """Have JAX compute over all hosts. To be called before JAX's backend starts.

    Returns the connection to Dask's scheduler, for the caller to close. Raises UserError for other versions than the
    command's, and if JAX's processes do not find each other; HostLost if one is lost.
    """
    check_versions(task.versions, f"host {task.rank} ({task.names[task.rank]})")
    client = Client(scheduler, security=security)
    mailboxes = {rank: task.mailbox(rank, client) for rank in range(len(task.names))}
    hosts = Hosts(task.rank, list(task.names), mailboxes, task.options.rows, task.identities)
    set_hosts(hosts)
    if task.rank:
        hosts.send(free_memory=free_host_memory())
        meeting = hosts.receive()
        address, hosts.free_memory = meeting["address"], meeting["free_memory"]
    else:
        free_memory = [hosts.receive(rank)["free_memory"] for rank in hosts.others]
        hosts.free_memory = min(free_host_memory(), *free_memory)
        with socket.create_server(("", 0)) as server:
            free_port = server.getsockname()[1]
        address = f"[{machine}]:{free_port}" if ":" in machine else f"{machine}:{free_port}"
        hosts.broadcast("meet", address=address, free_memory=hosts.free_memory)
    set_up_jax()
    _start_jax(task, address)
    return client


def _start_jax(task: HostTask, address: str) -> None:
    """Start JAX's distributed runtime. Raises UserError if its processes do not find each other."""
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM for itself
    try:
        jax.distributed.initialize(
            address,
            len(task.names),
            task.rank,
            cluster_detection_method="deactivate",
            heartbeat_timeout_seconds=_HEARTBEAT_TIMEOUT,
            shutdown_timeout_seconds=_SHUTDOWN_TIMEOUT,
            initialization_timeout=max(int(task.options.timeout), 1),
        )
        jax.devices()  # now, while all processes wait for each other's devices
    except RuntimeError as error:
        raise UserError(f"JAX's processes do not find each other at {address}: {str(error).splitlines()[0]}") from error
