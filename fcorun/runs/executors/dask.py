"""Groups as tasks of a Dask cluster: of one on this machine, of one that runs already, or of one that is started.

A worker is a process with one thread. A task whose worker dies begins again on another worker, finds what is finished,
and resumes the rest from the checkpoints. Tasks are code for a worker: see docs/guide/trust.md.
"""

import importlib
import logging
import pickle
import secrets
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fcorun.base.config import Count, check_value
from fcorun.base.errors import UserError, first_line
from fcorun.base.system.files import POLL_SECONDS, check_interrupted, write_atomically
from fcorun.base.system.machine import available_cores
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.runs.batch import RUNS_WORTH_A_THREAD
from fcorun.runs.executors.executor import (
    Executor,
    LauncherOptions,
    PackedWork,
    PointResult,
    has_failed,
    take_results,
    without_current_folder,
)
from fcorun.runs.job import SweepWatcher
from fcorun.runs.sweep_point import PointGroups

if TYPE_CHECKING:
    from distributed import Client, Future

_OPTION = "hydra.launcher.dask"
_JOB_QUEUES = {"slurm": "SLURMCluster", "pbs": "PBSCluster", "sge": "SGECluster", "lsf": "LSFCluster"}
PROBE = ".dask-"  # the beginning of the name of a file, which holds the rows of a study
_LOOPBACK = "127.0.0.1:0"  # any free port
_LOST_WORKERS = 10  # that a group may have before it fails: it may be what uses up their memory
_SECONDS_TO_CONNECT = 10
_SECONDS_TO_SAVE = 30  # that interrupted tasks have for their checkpoints


class DaskExecutor(Executor):
    """A Dask cluster, on which each group is a task.

    Groups have the size that they have where a machine has a core for each, so that they do not depend on the workers.
    """

    keeps_places = True

    def start(self, experiments: Sequence[PreparedExperiment], show: Callable[[str], None]) -> None:
        require_dask("`hydra.launcher.executor=dask`")
        self._client = self.opened.enter_context(open_cluster(self.options))
        if not self.options.address:  # else whoever started the scheduler knows whether it has a dashboard
            show(f"Dask shows its workers on {self._client.dashboard_link}")

    def largest_group(self, n_points: int) -> int:
        if self.options.batch:
            return self.options.batch
        n_groups = max(1, n_points // RUNS_WORTH_A_THREAD)
        return -(-n_points // n_groups)

    def run(self, groups: PointGroups, watch: SweepWatcher) -> None:
        from distributed import as_completed

        from fcorun.runs.executors.dask_worker import run_group

        tasks = [PackedWork.of_group(group, n_cores=1) for group in groups]
        with self._submit(run_group, tasks, groups[0][0].folder.parent) as futures:
            group_of = dict(zip(futures, groups, strict=True))
            for future in as_completed(futures):
                group = group_of[future]
                take_results(group, _read_results(future, len(group)), watch)
                if self.fail_fast and has_failed([group]):
                    return

    def compute_parts(
        self, work: Callable[[Any], Any], items: Sequence[Any], experiment: PreparedExperiment, folder: Path
    ) -> Generator[Any, None, None]:
        """Yield ``work(item)`` for each item, in their order; workers read ``work`` from a file of ``folder``.

        Args:
            experiment: names the classes of the work's objects.
            folder: one that this process alone uses.

        Raises the error of a worker, UserError if workers were lost, and KeyboardInterrupt if a signal was noted.
        """
        from distributed import wait

        from fcorun.runs.executors.dask_worker import compute_part

        task = PackedWork.of_content(work, experiment, n_cores=1)
        with self._submit(compute_part, items, folder, pickle.dumps(task)) as futures:
            while futures:
                while not futures[0].done():
                    check_interrupted()
                    with suppress(TimeoutError):
                        wait(futures[0], timeout=POLL_SECONDS)
                yield _read_part(futures.pop(0))

    @contextmanager
    def _submit(
        self, function: Callable, items: Sequence[Any], folder: Path, content: bytes = b""
    ) -> "Iterator[list[Future]]":
        """Have workers compute ``function(item, probe)`` for each item; the futures are those of the context.

        The probe is a file with ``content`` in the folder, which exists as long as the context. At its end tasks that
        run save checkpoints, and others find no probe.
        """
        from distributed import wait

        from fcorun.runs.executors.dask_worker import interrupt_task

        folder.mkdir(parents=True, exist_ok=True)
        probe = folder.absolute() / f"{PROBE}{secrets.token_hex(8)}"
        write_atomically(probe, content, private=True)
        futures: list[Future] = []
        try:
            for item in items:
                futures.append(self._client.submit(function, item, probe, pure=False))
            yield futures
        finally:
            probe.unlink(missing_ok=True)
            running = [future for future in futures if not future.done()]
            if running:
                self._client.run(interrupt_task, probe, on_error="ignore")
                with suppress(TimeoutError):
                    wait(running, timeout=_SECONDS_TO_SAVE)


def _read_part(future: "Future") -> Any:
    """Return the result of a part of a study. Raises the error of its worker, and UserError if none survives it."""
    from distributed import KilledWorker

    try:
        return future.result()
    except KilledWorker as error:
        raise UserError(f"each Dask worker that computed a part of the study was lost, as if memory is used up: give "
                        f"fewer workers, `{_OPTION}={{jobs: 1}}`, or leave `hydra.launcher.executor` out: what is "
                        "finished is kept") from error  # fmt: skip


def _read_results(future: "Future", n_points: int) -> list[PointResult]:
    """Return the results of a task, whose points have failed if it has. Raises UserError of a worker."""
    from distributed import KilledWorker

    error: Any = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, UserError):
        raise error
    if isinstance(error, KilledWorker):
        sentence = ("each worker that computed it was lost, as if memory is used up: give `hydra.launcher.batch=1`, or "
                    "fewer workers")  # fmt: skip
    else:
        sentence = f"its worker could not run it: {first_line(error)}"
    return [("failed", sentence)] * n_points


def require_dask(option: str) -> None:
    """Raise UserError if Dask, which an option needs, is not installed."""
    if find_spec("distributed") is None:
        raise UserError(f"{option} needs Dask: `pip install 'fcorun[dask]'`")


def open_cluster(options: LauncherOptions, n_hosts: int | None = None) -> Any:
    """Return the context of a client of the cluster that the options name, or that is started for so many hosts.

    Raises UserError.
    """
    if options.address and options.dask:
        raise UserError("`hydra.launcher.address` is of a cluster that runs, and `hydra.launcher.dask` starts one: "
                        "give one of them")  # fmt: skip
    if options.address:
        return connect(options.address)
    n_jobs = (options.dask or {}).get("jobs")
    if n_hosts and isinstance(n_jobs, int) and 0 < n_jobs < n_hosts:
        raise UserError(f"`{_OPTION}.jobs={n_jobs}` is less than `hosts.count={n_hosts}`, and each host is a job: give "
                        f"jobs: {n_hosts}, or leave jobs out")  # fmt: skip
    defaults = {"jobs": n_hosts} if n_hosts else {}
    return start_cluster(defaults | (options.dask or {}), one_worker_a_job=n_hosts is not None)


def connect(address: str) -> "Client":
    """Connect to a scheduler that runs, by the TLS of Dask's settings. Raises UserError if nobody answers."""
    from distributed import Client

    try:
        return Client(address, timeout=_SECONDS_TO_CONNECT)
    except (OSError, ValueError) as error:
        raise UserError(f"`hydra.launcher.address={address}`: no Dask scheduler answers there ({first_line(error)}): "
                        "start `dask scheduler` and workers, or leave the address out for workers on this "
                        "machine") from error  # fmt: skip


# the workers that compute the fits of a study; None: this process
study_workers: ContextVar[DaskExecutor | None] = ContextVar("study_workers", default=None)


@contextmanager
def start_cluster(options: Mapping[str, Any], one_worker_a_job: bool = False) -> "Iterator[Client]":
    """Start a cluster by the options ``hydra.launcher.dask``; stop it at the end of the context.

    Each job of a cluster has a worker for each of its cores, or only one. The dashboard is on the loopback.
    Raises UserError.
    """
    from dask import config
    from distributed import Client

    from fcorun.runs.executors.dask_worker import LocalWorker

    options = dict(options)
    kind = options.pop("cluster", "local")
    settings: dict[str, Any] = {
        "distributed.scheduler.allowed-failures": _LOST_WORKERS,
        "distributed.deploy.lost-worker-timeout": "2s",
        "distributed.dashboard.link": "{scheme}://127.0.0.1:{port}/status",
        "distributed.worker.profile.enabled": False,  # which looks at the running task a hundred times a second
        "distributed.admin.tick.interval": "1s",  # of health checks, else fifty times a second
        "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,  # by which each array is mapped anew
    }
    if one_worker_a_job:  # a worker only watches a process of its own, and always answers
        settings |= {"distributed.scheduler.worker-ttl": "30s", "distributed.deploy.lost-worker-timeout": "30s"}
    with without_current_folder(), config.set(settings), ExitStack() as opened:
        if kind == "local":
            cluster = opened.enter_context(_start_local(options))
        elif kind == "kubernetes":
            cluster = opened.enter_context(_start_on_kubernetes(options, one_worker_a_job))
        elif kind in _JOB_QUEUES:
            cluster = opened.enter_context(_start_in_queue(kind, options, one_worker_a_job))
        else:
            raise UserError(f"`{_OPTION}.cluster={kind}` is not a choice: (valid: local, "
                            f"{', '.join(_JOB_QUEUES)}, kubernetes)")  # fmt: skip
        client = opened.enter_context(Client(cluster))
        if kind == "local":
            client.register_plugin(LocalWorker())
        yield client


def _start_local(options: dict[str, Any]) -> Any:
    """Start workers on this machine, whose connections nobody else's processes can open (TLS by keys in memory)."""
    from distributed import LocalCluster

    n_workers = _take_count(options, "jobs", available_cores())
    if options:
        raise UserError(f"`{_OPTION}.{min(options)}` is of a cluster: name one, `{_OPTION}.cluster=slurm`, or give "
                        f"`{_OPTION}={{jobs: {n_workers}}}` for workers on this machine")  # fmt: skip
    cluster = LocalCluster(
        n_workers=n_workers,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        security=True,
        dashboard_address=_LOOPBACK,
        memory_limit=0,  # the key ``memory`` limits what runs take
        silence_logs=logging.CRITICAL,
    )
    cluster.adapt(minimum=n_workers, maximum=n_workers)  # a worker that is lost while it starts is replaced, too
    return cluster


def _start_in_queue(kind: str, options: dict[str, Any], one_worker_a_job: bool) -> Any:
    """Start workers as jobs of a batch system; other options, such as ``queue``, are those of dask-jobqueue."""
    jobqueue = _import_package("dask_jobqueue", "dask-jobqueue", kind)
    n_jobs = _take_count(options, "jobs", 1)
    n_cores = _take_count(options, "cores", 1)
    prologue = [*options.pop("job_script_prologue", []), "export PYTHONSAFEPATH=1"]
    try:
        cluster = getattr(jobqueue, _JOB_QUEUES[kind])(
            cores=n_cores,
            processes=1 if one_worker_a_job else n_cores,
            job_script_prologue=prologue,
            scheduler_options={"dashboard_address": _LOOPBACK},
            silence_logs=logging.CRITICAL,
            **options,
        )
    except (TypeError, ValueError) as error:
        raise UserError(f"`{_OPTION}` of cluster={kind}: {first_line(error)}") from error
    cluster.adapt(minimum_jobs=n_jobs, maximum_jobs=n_jobs)  # a job at its wall time is followed by another
    return cluster


def _start_on_kubernetes(options: dict[str, Any], one_worker_a_job: bool) -> Any:
    """Start workers as pods by Dask's operator; other options, such as ``image``, are those of dask-kubernetes."""
    kubernetes = _import_package("dask_kubernetes.operator", "dask-kubernetes", "kubernetes")
    n_jobs = _take_count(options, "jobs", 1)
    n_cores = _take_count(options, "cores", 1)
    n_workers = "1" if one_worker_a_job else str(n_cores)
    amounts = {"cpu": str(n_cores)}
    if "memory" in options:
        amounts["memory"] = str(options.pop("memory")).removesuffix("B")  # Kubernetes writes 16G, or 16Gi
    try:
        return kubernetes.KubeCluster(
            name=f"fcorun-{secrets.token_hex(4)}",
            n_workers=n_jobs,
            resources={"requests": amounts, "limits": amounts},
            worker_command=["dask", "worker", "--nthreads", "1", "--nworkers", n_workers],
            **options,
        )
    except Exception as error:  # of Dask's operator, of HTTP, or of a key
        raise UserError(f"`{_OPTION}` of cluster=kubernetes: {first_line(error)}") from error


def _take_count(options: dict[str, Any], name: str, default: int) -> int:
    """Take a positive number out of the options. Raises UserError for another value."""
    return check_value(options.pop(name, default), Count, f"{_OPTION}.{name}")


def _import_package(module: str, package: str, kind: str) -> Any:
    """Import the package that starts a kind of cluster. Raises UserError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"`{_OPTION}.cluster={kind}` needs {package}: `pip install {package}`") from error
