"""The part of a worker of Dask, in its one thread: groups of points, and parts of studies.

This module is imported where Dask is installed.
"""

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from distributed import Worker, WorkerPlugin, get_worker

from fcorun.base.errors import UserError
from fcorun.base.system.files import set_interrupted
from fcorun.base.system.machine import limit_blas_threads
from fcorun.runs.executors.executor import LauncherOptions, PackedWork, PointResult, compute_group
from fcorun.runs.executors.inline import InlineExecutor

_running_probes: list[Path] = []  # none, or that of the task that this worker runs


class LocalWorker(WorkerPlugin):
    """A worker on the machine of the command, whose terminal sends Ctrl-C to both: the command alone acts on it."""

    def setup(self, worker: Worker) -> None:
        """Ignore Ctrl-C."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class _PlacedExecutor(InlineExecutor):
    """The executor of one group, in which each point keeps its place."""

    keeps_places = True


def run_group(task: PackedWork, probe: Path) -> list[PointResult]:
    """Run the group of points of a task; return the result of each. Raises UserError as ``serving``."""
    _read_work.cache_clear()  # its classes are those of an earlier task
    with serving(probe):
        return compute_group(task, _PlacedExecutor(LauncherOptions()))
    return []  # interrupted: checkpoints are saved


def compute_part(item: Any, probe: Path) -> Any:
    """Return the result for one item of the work in the file ``probe``. Raises UserError as ``serving``."""
    with serving(probe):
        return _read_work(probe)(item)


@lru_cache(maxsize=1)  # the next item is one of the same work
def _read_work(probe: Path) -> Callable[[Any], Any]:
    return pickle.loads(probe.read_bytes()).start()


@contextmanager
def serving(probe: Path) -> Iterator[None]:
    """Compute on one core within the context, until the command interrupts.

    Args:
        probe: a file that exists while the command waits for this worker.

    Raises UserError if this worker has several threads, or does not see the probe.
    """
    worker = get_worker()
    if worker.state.nthreads > 1:
        raise UserError(f"the Dask worker {worker.address} has {worker.state.nthreads} threads, which would share one "
                        "folder and one JAX: start `dask worker` with `--nthreads 1 --nworkers N`")  # fmt: skip
    if not probe.exists():
        raise UserError(f"the Dask worker {worker.address} does not see the files of {probe.parent}: give `out=DIR` in "
                        "a folder that all workers share")  # fmt: skip
    # XLA gets one thread as well: those of several workers on the same cores would wait for each other. It reads this
    # when its first computation starts; a value of whoever started the worker holds.
    os.environ.setdefault("PJRT_NPROC", "1")
    set_interrupted(False)
    _running_probes.append(probe)
    try:
        with suppress(KeyboardInterrupt), limit_blas_threads(1):  # of ``interrupt_task``
            yield
    finally:
        _running_probes.clear()


def interrupt_task(probe: Path) -> None:
    """Have the task with this probe, if this worker runs it, save checkpoints and end."""
    if probe in _running_probes:
        set_interrupted(True)
