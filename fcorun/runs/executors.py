"""The executors of a sweep: in this process, in local processes by joblib, on a cluster by submitit."""

import os
import pickle
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcorun.base.config import import_classes
from fcorun.base.errors import HostLost, RemoteError, UserError, describe_error, first_line
from fcorun.base.records.record import RunFolder
from fcorun.base.system.files import interruptible
from fcorun.base.system.machine import (
    SECRET_VARIABLE,
    HostOptions,
    available_cores,
    close_hosts,
    resolve_hosts,
    set_up_jax,
)
from fcorun.base.system.rendezvous import join_hosts
from fcorun.base.trust import class_path
from fcorun.runs.job import Job, SweepWatcher
from fcorun.runs.run_experiments import run_jobs
from fcorun.runs.several_hosts import run_follower
from fcorun.runs.sweep_points import SweepOptions, SweepPoint, record_failure

PointGroups = Sequence[list[SweepPoint]]  # points of a group differ in numbers and seed only


def run_inline(groups: PointGroups, options: SweepOptions, watch: SweepWatcher) -> None:
    """Run the groups one after the other. Points that another process is computing are waited for at the end."""
    groups_to_run = list(groups)
    while groups_to_run:
        locked_groups = []
        for group in groups_to_run:
            run_group(group, watch)
            if options.fail_fast and any(point.error is not None for point in group):
                return
            locked = [point for point in group if point.end_status == "locked"]
            if locked:
                locked_groups.append(locked)
        groups_to_run = locked_groups
        if groups_to_run:
            watch.on_wait(sum(len(group) for group in groups_to_run))
            time.sleep(1)


def run_group(group: list[SweepPoint], watch: SweepWatcher) -> None:
    """Run points that differ in numbers and seed only. Sets the ``end_status`` and ``error`` of each."""
    jobs = {}
    for point in group:
        assert point.experiment is not None
        jobs[point.folder] = Job(point.experiment, RunFolder(point.folder, point.experiment.identity))
    group_error: BaseException | None = None
    try:
        run_jobs(list(jobs.values()), watch)
    except Exception as error:  # no job was started, because of the data or the folders
        group_error = error
    for point in group:
        job = jobs[point.folder]
        point.end_status, point.error = job.end_status, job.error
        if group_error is not None and not job.end_status:
            point.end_status, point.error = "failed", job.error or group_error
            record_failure(point)
    for point in group:
        if isinstance(point.error, KeyboardInterrupt):
            raise KeyboardInterrupt
    for point in group:
        if isinstance(point.error, HostLost):  # the next group needs all hosts as well
            raise point.error


def run_with_joblib(groups: PointGroups, options: SweepOptions, watch: SweepWatcher) -> None:
    """Run ``n_jobs`` groups at a time, each in a process of its own."""
    try:
        from joblib import Parallel, delayed
    except ImportError as error:
        raise UserError("hydra.launcher.executor=joblib needs joblib: pip install 'fcorun[joblib]'") from error
    n_cores = max(1, available_cores() // options.n_jobs)
    tasks = (delayed(_run_in_process)(_Task.of_group(group, n_cores)) for group in groups)
    with _without_current_folder():
        results = Parallel(n_jobs=options.n_jobs, return_as="generator")(tasks)
        _collect_results(groups, _fail_after_a_kill(results, groups), options, watch)


def _fail_after_a_kill(results: Iterable, groups: PointGroups) -> Iterator[list[tuple[str, str]]]:
    """Yield the results of joblib's processes; if one of them was killed, which ends all, the other points fail."""
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    n_collected = 0
    try:
        for group_results in results:
            yield group_results
            n_collected += 1
    except TerminatedWorkerError:
        killed = ("a process of the sweep was killed, as the system does if memory is used up, and joblib then ended "
                  "the others: the same command resumes")  # fmt: skip
        for group in groups[n_collected:]:
            yield [("failed", killed)] * len(group)


@contextmanager
def _without_current_folder() -> Iterator[None]:
    """Keep the current folder out of the ``sys.path`` of processes that are started by Python's -m."""
    before = dict(os.environ)
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        os.environ.pop("PYTHONSAFEPATH")
        os.environ.update(before)


def run_with_submitit(groups: PointGroups, options: SweepOptions, watch: SweepWatcher) -> None:
    """Run each group as a job of a Slurm cluster, or of submitit's local one, and wait for all of them.

    The tasks of a job, if there are several, compute together as hosts. With ``fail_fast``, the first failure cancels
    the jobs after it.
    """
    try:
        import submitit
    except ImportError as error:
        raise UserError("hydra.launcher.executor=submitit needs submitit: pip install 'fcorun[submitit]'") from error
    parameters = dict(options.submitit or {})
    log_folder = Path(groups[0][0].folder).parent / ".submitit"
    executor = submitit.AutoExecutor(folder=log_folder, cluster=parameters.pop("cluster", None))
    executor.update_parameters(**{"name": "fcorun", **parameters})
    n_cores = int(parameters["cpus_per_task"]) if "cpus_per_task" in parameters else None
    n_tasks = int(parameters.get("nodes", 1)) * int(parameters.get("tasks_per_node", 1))
    run_job = _run_in_process
    if n_tasks > 1:
        run_job = _run_in_submitit_task
        os.environ.setdefault(SECRET_VARIABLE, secrets.token_hex(32))  # jobs inherit the environment
    with _without_current_folder(), executor.batch():
        jobs = [executor.submit(run_job, _Task.of_group(group, n_cores)) for group in groups]
    waited = (_wait(job, group) for job, group in zip(jobs, groups, strict=True))
    n_collected = _collect_results(groups, waited, options, watch)
    for job in jobs[n_collected:]:
        job.cancel(check=False)


def _wait(job: Any, group: Sequence[SweepPoint]) -> list[tuple[str, str]]:
    """Return the end status and the error of each point of a job; those of a job that was killed have failed."""
    try:
        return job.task(0).result()
    except Exception as error:  # of submitit: out of memory or of time, for example
        return [("failed", f"its job ended without a result: {first_line(error)}")] * len(group)


EXECUTORS = {"inline": run_inline, "joblib": run_with_joblib, "submitit": run_with_submitit}


@dataclass(frozen=True)
class _Task:
    """A group of points for another process, which imports the plug-ins' classes before it unpickles the points.

    Attributes:
        folder: the current folder of the process that made the task.
        config: the configuration of the first point.
        points: the pickled points.
        n_cores: the number of cores that the process may use; None: all.
    """

    folder: str
    config: dict[str, Any]
    points: bytes
    n_cores: int | None

    @classmethod
    def of_group(cls, group: list[SweepPoint], n_cores: int | None) -> "_Task":
        """Return the task of a group."""
        experiment = group[0].experiment
        assert experiment is not None
        config = experiment.config | {"tracker": {"class": class_path(type(experiment.tracker))}}
        return cls(os.getcwd(), config, pickle.dumps(group), n_cores)

    def start(self) -> list[SweepPoint]:
        """Prepare this process for the points, and return them."""
        if self.n_cores is not None:
            os.environ["FCORUN_CORES"] = str(self.n_cores)
        set_up_jax()
        os.chdir(self.folder)
        import_classes(self.config)
        return pickle.loads(self.points)


def _run_in_process(task: _Task) -> list[tuple[str, str]]:
    """Run a group in this process; return the status and the error's text of each point."""
    return _run_started(task.start())


def _run_started(group: list[SweepPoint]) -> list[tuple[str, str]]:
    """Run the points of a task that has started; return the status and the error's text of each."""
    with interruptible():
        run_inline([group], SweepOptions(), SweepWatcher())
    return _results(group)


def _results(group: list[SweepPoint], failure: BaseException | None = None) -> list[tuple[str, str]]:
    """Return the status and the error's text of each point; those that have not ended have failed by ``failure``."""
    results = []
    for point in group:
        error = point.error if point.end_status else failure
        results.append((point.end_status or "failed", describe_error(error) if error else ""))
    return results


def _run_in_submitit_task(task: _Task) -> list[tuple[str, str]]:
    """Run a group in one of several tasks of a submitit job: the first task leads, and the others follow it.

    Returns the results of ``_run_in_process`` from the first task.
    """
    from submitit.helpers import TorchDistributedEnvironment

    job = TorchDistributedEnvironment()
    group = task.start()
    try:
        options = resolve_hosts({}) or HostOptions(f"{job.master_addr}:{job.master_port}", job.world_size, job.rank)
        if join_hosts(options).rank:
            with interruptible():
                run_follower()
            return []
        return _run_started(group)
    except (UserError, HostLost) as error:
        return _results(group, error)
    finally:
        close_hosts(0)


def _collect_results(groups: PointGroups, results: Iterable, options: SweepOptions, watch: SweepWatcher) -> int:
    """Set the ``end_status`` and ``error`` of each point as the groups end in other processes.

    Returns the number of groups that were collected: all of them, unless ``fail_fast`` ends the sweep at a failure.
    """
    for i, (group, group_results) in enumerate(zip(groups, results, strict=False), start=1):
        for point, (end_status, error_text) in zip(group, group_results, strict=True):
            point.end_status = end_status
            point.error = RemoteError(error_text) if error_text else None
            watch.on_point_end(point)
        if options.fail_fast and any(point.error for point in group):
            return i
    return len(groups)
