"""A command on several hosts: workers of a Dask cluster, each of which computes as one host.

The worker of rank 0 runs the command line, as its leader, and the others follow it. The command itself is none of the
hosts: it prints what the leader prints, names a host that is lost, ends the others, and starts again, from checkpoints.
"""

import json
import os
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fcorun.base.errors import HostLost, UserError, first_line
from fcorun.base.system.files import check_interrupted, defer_interruption, is_interrupted, write_atomically
from fcorun.base.system.hosts import RERUN_HINT
from fcorun.base.system.machine import HostOptions, available_cores, read_versions
from fcorun.experiment.configuration.compose import override_key
from fcorun.runs.executors.dask import open_cluster, require_dask
from fcorun.runs.executors.executor import LauncherOptions

if TYPE_CHECKING:
    from fcorun.runs.executors.dask_host import HostTask

_LOST_HOSTS = 10  # after which the command ends
_POLL_SECONDS = 0.2
_SECONDS_TO_SAVE = 30.0  # that the leader has to end by itself, once another host is lost
_SECONDS_TO_CLOSE = 30.0  # that followers have to end, once the leader has
_SECONDS_TO_NOTICE = 30.0  # in which the end of the host that made another one end becomes known


def run_on_hosts(
    options: HostOptions, launcher: LauncherOptions, arguments: Sequence[str], folder: Path, identities: tuple[str, ...]
) -> int:
    """Run a command line on several hosts; return its exit code.

    Args:
        launcher: the Dask cluster.
        folder: one in which the leader writes, to test whether it can.
        identities: those of the runs, which the leader compares with its own.

    Raises UserError for a cluster that cannot be had, and HostLost if hosts are lost again and again.
    """
    require_dask("`hosts.count`")
    cluster = open_cluster(launcher, options.count)
    share_cores = not launcher.address and (launcher.dask or {}).get("cluster", "local") == "local"
    n_cores = max(1, available_cores() // options.count) if share_cores else None
    with defer_interruption(), cluster as client, _write_probe(folder) as probe:
        for _ in range(_LOST_HOSTS):
            check_interrupted()
            addresses = _wait_for_workers(client, options)
            tasks = _make_tasks(addresses, options, arguments, probe=probe, n_cores=n_cores, identities=identities)
            attempt = _Attempt(client, tasks)
            try:
                code = attempt.run()
            except OSError as error:
                if client.status == "running":
                    raise
                raise HostLost(f"the Dask scheduler was lost ({first_line(error)}); {RERUN_HINT}") from error
            if attempt.lost is None or code == 0:
                return code
            if attempt.all_started:  # and force, which is for once, has done its work
                arguments = [text for text in arguments if override_key(text) != "force"]
            print(f"fcorun: {attempt.describe_loss()}: all start again, from the last checkpoint", file=sys.stderr)
    raise HostLost(f"{_LOST_HOSTS} hosts were lost one after the other; {RERUN_HINT}")


@contextmanager
def _write_probe(folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder.absolute() / f".dask-{secrets.token_hex(8)}"
    write_atomically(probe, b"", private=True)
    try:
        yield probe
    finally:
        probe.unlink(missing_ok=True)


def _wait_for_workers(client: Any, options: HostOptions) -> tuple[str, ...]:
    """Return the addresses of as many idle workers as hosts, on different machines if there are so many.

    Raises UserError if they do not come in time.
    """
    from distributed.comm.addressing import get_address_host

    deadline = time.monotonic() + options.timeout
    while len(addresses := _find_idle(client)) < options.count:
        check_interrupted()
        if time.monotonic() > deadline:
            n_busy = len(client.nthreads()) - len(addresses)
            busy = f", and {n_busy} compute for other commands" if n_busy else ""
            raise UserError(f"{len(addresses)} of {options.count} idle workers of Dask came within "
                            f"hosts.timeout={options.timeout:g} seconds{busy}: start `dask worker` on each host, or "
                            "lower hosts.count")  # fmt: skip
        time.sleep(_POLL_SECONDS)
    used: Counter[str] = Counter()
    places = []
    for address in addresses:
        machine = get_address_host(address)
        places.append((used[machine], address))
        used[machine] += 1
    return tuple(address for _, address in sorted(places)[: options.count])


def _find_idle(client: Any) -> list[str]:
    """Return the addresses of the workers without a task."""
    return sorted(address for address, tasks in client.processing().items() if not tasks)


def _make_tasks(
    addresses: tuple[str, ...],
    options: HostOptions,
    arguments: Sequence[str],
    probe: Path,
    n_cores: int | None,
    identities: tuple[str, ...],
) -> "list[HostTask]":
    """Return the task of each host, by rank."""
    from fcorun.runs.executors.dask_host import HostTask

    leader = HostTask(
        token=secrets.token_hex(8),
        rank=0,
        names=addresses,
        arguments=tuple(arguments),
        options=options,
        folder=os.getcwd(),
        probe=probe,
        n_cores=n_cores,
        versions=read_versions(),
        identities=identities,
    )
    return [replace(leader, rank=rank) for rank in range(options.count)]


@dataclass
class _Attempt:
    """One start of all hosts.

    Attributes:
        lost: the rank of the host that was lost.
        all_started: whether each worker has started its host.
        futures: what each host's worker returns, by rank.
        ends: the exit code and errors of each host that has ended, by rank.
    """

    client: Any
    tasks: "list[HostTask]"
    lost: int | None = None
    all_started: bool = False
    futures: list[Any] = field(default_factory=list)
    ends: dict[int, tuple[int, str]] = field(default_factory=dict)

    def run(self) -> int:
        """Run the command to its end, or until a host is lost; return the exit code.

        Raises UserError of a worker that cannot start its host, or does not in time, OSError if the scheduler is lost,
        and KeyboardInterrupt before all hosts have started, when there is nothing to save.
        """
        from fcorun.runs.executors.dask_host import run_host

        for task in self.tasks:
            self.futures.append(self.client.submit(run_host, task, workers=[task.names[task.rank]], pure=False))
        try:
            self._wait_for_starts()
            self._watch()
        finally:
            self._end_all()
            self._print_output()
        if 0 in self.ends:
            return self.ends[0][0]
        code, errors = max(self.ends.values(), default=(1, ""))  # of a follower that failed while the leader waits
        sys.stderr.write(errors)
        return code

    def describe_loss(self) -> str:
        """Say which host was lost."""
        rank = self.lost or 0
        name = f"host {rank} ({self.tasks[rank].names[rank]})"
        if rank == 0 and self.ends.get(0, (0, ""))[0] == -signal.SIGABRT:
            return f"a host has stopped answering, for which JAX has ended {name}"
        return f"{name} was lost"

    def _wait_for_starts(self) -> None:
        """Return when all hosts have started, or when one has ended or is lost. Raises as ``run``."""
        timeout = self.tasks[0].options.timeout
        deadline = time.monotonic() + timeout
        while waiting := [task for task in self.tasks if not task.starts(self.client).qsize()]:
            check_interrupted()
            if self._read_ends() or self._find_lost() is not None:
                return
            if time.monotonic() > deadline:
                rank = waiting[0].rank
                raise UserError(f"host {rank} has not started within hosts.timeout={timeout:g} seconds: its worker "
                                f"{waiting[0].names[rank]} may compute for another command: wait for that, or start "
                                "one more `dask worker`")  # fmt: skip
            time.sleep(_POLL_SECONDS)
        self.all_started = True

    def _watch(self) -> None:
        """Return when the leader has ended, or will not end by itself."""
        is_interrupted_there = False
        deadline = float("inf")
        while 0 not in self._read_ends():
            self._print_output()
            if is_interrupted() and not is_interrupted_there:
                self.tasks[0].orders(self.client).put(signal.SIGTERM)
                is_interrupted_there = True
            if self.lost is None and (lost := self._find_lost()) is not None:
                self.lost = lost
                self.tasks[0].mailbox(0, self.client).put(json.dumps({"lost": lost}))
                deadline = time.monotonic() + _SECONDS_TO_SAVE
            if deadline == float("inf") and any(code for code, _ in self.ends.values()):
                deadline = time.monotonic() + _SECONDS_TO_NOTICE
            if self.lost == 0 or time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        # a leader that was lost, or an abort of followers: JAX ends them when the leader is lost
        if self.lost is None and any(code < 0 for code, _ in self.ends.values()):
            self.lost = 0

    def _read_ends(self) -> dict[int, tuple[int, str]]:
        """Return the ends of the hosts so far. Raises UserError of a worker that cannot start its host."""
        from distributed import KilledWorker

        for rank, future in enumerate(self.futures):
            if rank in self.ends or not future.done():
                continue
            error = future.exception()
            if isinstance(error, KilledWorker):
                self.ends[rank] = (-signal.SIGKILL, "")
            elif isinstance(error, UserError):
                raise error
            elif error is not None:
                raise UserError(f"the Dask worker {self.tasks[rank].names[rank]} cannot run host {rank} "
                                f"({first_line(error)}): install the same on all")  # fmt: skip
            else:
                self.ends[rank] = future.result()
        return self.ends

    def _find_lost(self) -> int | None:
        """Return the first host whose worker is gone, or whose process a signal has ended, but for JAX's abort()."""
        workers = self.client.nthreads()
        for task in self.tasks:
            if task.rank in self.ends:
                code, _ = self.ends[task.rank]
                is_lost = code < 0 and code != -signal.SIGABRT
            else:
                is_lost = task.names[task.rank] not in workers
            if is_lost:
                return task.rank
        return None

    def _end_all(self) -> None:
        """End the hosts that are left: at once, unless the leader has ended by itself, and they do."""
        from distributed import wait

        ended_well = self.lost is None and 0 in self.ends
        if ended_well:
            with suppress(TimeoutError):
                wait(self.futures, timeout=_SECONDS_TO_NOTICE)
        workers = self.client.nthreads()
        left = []
        for task, future in zip(self.tasks, self.futures, strict=True):
            if not future.done() and task.names[task.rank] in workers and task.starts(self.client).qsize():
                task.orders(self.client).put(signal.SIGKILL)
                left.append(future)
        with suppress(TimeoutError):
            wait(left, timeout=_SECONDS_TO_CLOSE)
        self.client.cancel(self.futures)

    def _print_output(self) -> None:
        """Print what the leader has printed, but for errors after a host was lost."""
        for stream, text in self.tasks[0].output(self.client).get(batch=True):
            if stream == "stdout":
                sys.stdout.write(text)
                sys.stdout.flush()
            elif self.lost is None:
                sys.stderr.write(text)
