"""Groups as jobs of a Slurm cluster, which go on by themselves when their time is over or they are preempted."""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from fcorun.base.errors import UserError, describe_error, first_line
from fcorun.base.records.formats import yaml_text
from fcorun.base.records.record import FINISHED_STATUSES, LOCK_FILE, Record, RunFolder
from fcorun.base.system import locks
from fcorun.base.system.files import (
    check_interrupted,
    defer_interruption,
    find_paths,
    interruptible,
    set_interrupted,
    write_atomically,
)
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.runs.executors.executor import (
    Executor,
    LauncherOptions,
    PackedWork,
    PointResult,
    compute_group,
    has_failed,
    take_results,
    without_current_folder,
)
from fcorun.runs.executors.inline import InlineExecutor
from fcorun.runs.job import SweepWatcher
from fcorun.runs.sweep_point import PointGroups, SweepPoint

if TYPE_CHECKING:
    from submitit import AutoExecutor, Job
    from submitit.helpers import DelayedSubmission

_OPTION = "hydra.launcher.submitit"
_LOG_FOLDER = ".submitit"
_RUNS_ENDING = "_runs.txt"  # of a file that names the runs of a job
_BY_ALGORITHM = "algo"  # the key of what some algorithms need
_RESTARTS = 100  # that a job may have at its wall time
_ARRAY_LIMIT = 1001  # jobs of an array, where Slurm does not tell: its own default
_SECONDS_BETWEEN_QUESTIONS = 30  # to Slurm's queue
_SECONDS_TO_BE_ENDED = 60.0  # after SIGTERM, which Slurm sends before it kills a job, or preempts it


class SubmititExecutor(Executor):
    """A Slurm cluster, or submitit's local one, on which each group is a job.

    The command waits for the jobs unless ``wait`` is off. With ``fail_fast``, the first failure cancels the jobs after
    it; so does an interruption.
    """

    def start(self, experiments: Sequence[PreparedExperiment], show: Callable[[str], None]) -> None:
        try:
            import submitit  # noqa: F401
        except ImportError as error:
            raise UserError(
                "`hydra.launcher.executor=submitit` needs submitit: `pip install 'fcorun[submitit]'`"
            ) from error
        names = sorted({experiment.names["algo"] for experiment in experiments})
        for name, values in self._needs_by_algorithm.items():
            if name not in names:
                raise UserError(f"`{_OPTION}.{_BY_ALGORITHM}.{name}`: no run has this algorithm (they have: "
                                f"{', '.join(names)})")  # fmt: skip
            if not isinstance(values, dict):
                raise UserError(f"`{_OPTION}.{_BY_ALGORITHM}.{name}={values}`: give parameters of submitit, "
                                f"`{_OPTION}={{{_BY_ALGORITHM}: {{{name}: {{timeout_min: 60}}}}}}`")  # fmt: skip
        for parameters in (self.options.submitit or {}, *self._needs_by_algorithm.values()):
            if parameters.get("nodes", 1) != 1 or parameters.get("tasks_per_node", 1) != 1:
                raise UserError(f"`{_OPTION}`: a job is one task; hosts that compute together are workers of Dask: "
                                "`hosts.count=2 'hydra.launcher.dask={cluster: slurm, jobs: 2}'`")  # fmt: skip

    @property
    def _needs_by_algorithm(self) -> dict[str, Any]:
        return (self.options.submitit or {}).get(_BY_ALGORITHM, {})

    def check_removal(self, points: Sequence[SweepPoint]) -> None:
        queued = self._list_queued_runs(points[0].folder.parent)
        for point in points:
            if point.folder in queued:
                raise UserError(f"`force=true hydra.launcher.wait=false`: a job in the queue is to compute "
                                f"{point.folder}, whose record would be removed: `scancel` it, or leave `force=true` "
                                "out")  # fmt: skip

    def _list_queued_runs(self, folder: Path) -> set[Path]:
        """Return the runs in a folder that jobs in the queue are to compute; none if the command waits for its own."""
        if self.options.wait:
            return set()
        return {run for job in list_pending_jobs(folder) for run in job.queued_runs}

    def run(self, groups: PointGroups, watch: SweepWatcher) -> None:
        folder = groups[0][0].folder.parent
        groups_by_needs: dict[str, list[list[SweepPoint]]] = {}
        queued = self._list_queued_runs(folder)
        for group in groups:
            group = [point for point in group if point.folder not in queued]
            if not group:
                continue
            assert group[0].experiment is not None
            name = group[0].experiment.names["algo"]
            groups_by_needs.setdefault(name if name in self._needs_by_algorithm else "", []).append(group)
        parameters = {name: self._parameters_of(name) for name in groups_by_needs}
        executors = {name: _make_executor(folder, parameters[name]) for name in groups_by_needs}  # all are checked
        submitted: list[tuple[Job, list[SweepPoint]]] = []
        try:
            for name, alike in groups_by_needs.items():
                _submit(executors[name], alike, parameters[name].get("cpus_per_task"), submitted)
            if not self.options.wait:
                before = f" (and {len(queued)} runs are of jobs in the queue)" if queued else ""
                watch.show_if_verbose(f"jobs submitted: {len(submitted)}{before}; to follow them: fcorun results "
                                      f"{folder} --follow, or fcorun watch {folder}")  # fmt: skip
                return
            for number, (job, group) in enumerate(submitted, start=1):
                take_results(group, _wait(job, group), watch)
                if self.fail_fast and has_failed([group]):
                    _cancel(submitted[number:])
                    return
        except (KeyboardInterrupt, UserError):
            _cancel(submitted)
            raise

    def _parameters_of(self, algorithm: str) -> dict[str, Any]:
        """Return submitit's parameters of the jobs of an algorithm; "": of those without needs of their own."""
        needs = self._needs_by_algorithm.get(algorithm, {})
        parameters = {"name": "fcorun", **(self.options.submitit or {}), **needs}
        parameters.pop(_BY_ALGORITHM, None)
        return parameters


@contextmanager
def _refused_in_a_sentence() -> Iterator[None]:
    """Raise UserError for what submitit raises, and KeyboardInterrupt if a signal was noted, which may be the cause."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError, NameError, AssertionError, OSError) as error:
        check_interrupted()
        raise UserError(f"`{_OPTION}`: no job could be submitted: {first_line(error)}") from error


def _make_executor(folder: Path, parameters: dict[str, Any]) -> "AutoExecutor":
    """Return submitit's executor of jobs with these parameters. Raises UserError for those that are not valid."""
    import submitit

    restarts = {"slurm_max_num_timeout": _RESTARTS, "local_max_num_timeout": _RESTARTS}
    with _refused_in_a_sentence():
        cluster = parameters.get("cluster")
        executor = submitit.AutoExecutor(folder=folder / _LOG_FOLDER, cluster=cluster, **restarts)
        executor.update_parameters(**{name: value for name, value in parameters.items() if name != "cluster"})
    return executor


def _submit(
    executor: "AutoExecutor",
    groups: PointGroups,
    n_cores: int | None,
    submitted: "list[tuple[Job, list[SweepPoint]]]",
) -> None:
    """Submit groups with the same needs as job arrays of the length that the cluster allows.

    Appends the jobs of each array to ``submitted`` at once. Raises UserError, and KeyboardInterrupt between two arrays.
    """
    limit = _array_limit() if executor.cluster == "slurm" else len(groups)
    for start in range(0, len(groups), limit):
        array = groups[start : start + limit]
        with _refused_in_a_sentence():
            with defer_interruption():
                with without_current_folder(), executor.batch():
                    jobs = [_submit_group(executor, group, n_cores) for group in array]
                submitted += zip(jobs, array, strict=True)
            check_interrupted()
            for job, group in zip(jobs, array, strict=True):
                _mark_submitted(job, group)


def _submit_group(executor: "AutoExecutor", group: list[SweepPoint], n_cores: int | None) -> "Job":
    """Return the job of a group."""
    folders = [point.folder.absolute() for point in group]
    return executor.submit(GroupJob(folders), PackedWork.of_group(group, n_cores))


def _array_limit() -> int:
    """Return how many jobs an array of this Slurm cluster may have."""
    command = ["scontrol", "show", "config"]
    try:
        settings = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return _ARRAY_LIMIT
    limit = re.search(r"^MaxArraySize\s*=\s*(\d+)", settings, re.MULTILINE)
    return max(int(limit[1]), 1) if limit else _ARRAY_LIMIT


def _mark_submitted(job: "Job", group: Sequence[SweepPoint]) -> None:
    """Write which runs a job is for, and a record of each new one, which tables have while the job waits."""
    runs = "\n".join(point.folder.name for point in group)
    write_atomically(group[0].folder.parent / _LOG_FOLDER / f"{job.job_id}{_RUNS_ENDING}", runs)
    for point in group:
        experiment = point.experiment
        assert experiment is not None
        folder = RunFolder(point.folder, experiment.identity)
        if folder.inspect() == "new" and folder.claim() == "new":
            folder.write_file("config.yaml", yaml_text(experiment.config))
            folder.write_status("interrupted", experiment.label, "not begun: its job was submitted")
        folder.release()


@dataclass(frozen=True)
class PendingJob:
    """A job that has left no result, and some of whose runs have not ended.

    Attributes:
        runs: the folders of its runs.
        is_queued: whether it is in Slurm's queue; None if that cannot be asked.
    """

    runs: tuple[Path, ...]
    is_queued: bool | None

    @property
    def is_open(self) -> bool:
        """Return whether the job may still compute its runs."""
        return self.is_queued is not False

    @property
    def queued_runs(self) -> tuple[Path, ...]:
        """The runs of a job in the queue, which need no other job."""
        return self.runs if self.is_queued else ()

    @property
    def lost_runs(self) -> list[Path]:
        """The runs of a job that has left the queue, which no process computes; records may say that they run."""
        return [] if self.is_open else [run for run in self.runs if not locks.is_locked(run / LOCK_FILE)]


def list_pending_jobs(folder: Path) -> list[PendingJob]:
    """Return the pending jobs that were submitted from sweeps in and under a folder.

    A local job whose process has ended, or is on another machine, is none.
    """
    jobs = []
    for logs in find_paths(folder, _LOG_FOLDER):
        runs_of_jobs = {path: _read_pending_runs(path) for path in logs.glob(f"*{_RUNS_ENDING}")}
        pending = {path: runs for path, runs in runs_of_jobs.items() if runs}
        queue = _list_queue({path.stat().st_uid for path in pending}) if pending else None
        for path, runs in pending.items():
            job = path.name.removesuffix(_RUNS_ENDING)
            is_of_slurm = (logs / f"{job.split('_')[0]}_submission.sh").exists()
            if is_of_slurm or _is_running_here(job):
                jobs.append(PendingJob(runs, job in queue if is_of_slurm and queue is not None else None))
    return jobs


def _is_running_here(job: str) -> bool:
    """Return whether a job of submitit's local executor, which is called after its process, is running."""
    try:
        return any("submitit" in word for word in psutil.Process(int(job)).cmdline())  # and no later process
    except psutil.Error:
        return False


def _read_pending_runs(path: Path) -> tuple[Path, ...]:
    """Return the runs of a job from their file; none if the job has left a result, or all of them have ended."""
    logs = path.parent
    if (logs / f"{path.name.removesuffix(_RUNS_ENDING)}_0_result.pkl").exists():
        return ()
    runs = tuple(logs.parent / name for name in path.read_text(encoding="utf-8").splitlines())
    statuses = [Record(run).status.get("status") for run in runs]
    return () if {*statuses} <= {*FINISHED_STATUSES, "failed"} else runs


def _list_queue(users: set[int]) -> list[str] | None:
    """Return the jobs of some users in Slurm's queue; None if it cannot be asked."""
    command = ["squeue", "--noheader", "--array", "--format=%i", f"--user={','.join(map(str, users))}"]
    try:
        return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None


def _wait(job: "Job", group: Sequence[SweepPoint]) -> list[PointResult]:
    """Return the results of a job; the points of a job that was killed have failed. Raises KeyboardInterrupt."""
    try:
        _wait_for_end(job)
        return job.task(0).result()
    except Exception as error:  # of submitit: out of memory, or a folder that its node does not see
        sentence = (f"its job ended without a result: {first_line(error)} (all nodes must share the folder, and "
                    f"{_LOG_FOLDER} in it has what the job printed)")  # fmt: skip
        return [("failed", sentence)] * len(group)


def _wait_for_end(job: "Job") -> None:
    """Return when a job has ended. Raises RuntimeError if it has left Slurm's queue without a result.

    submitit itself would ask sacct, which needs a database that not all clusters have, and only every ten minutes.
    """
    from submitit import SlurmJob

    if not isinstance(job, SlurmJob):
        while not job.done():
            check_interrupted()
            time.sleep(1)
        return
    result = job.paths.result_pickle
    is_open = True
    while is_open:
        queue = _list_queue({os.getuid()})
        is_open = queue is None or job.job_id in queue
        for _ in range(_SECONDS_BETWEEN_QUESTIONS):  # after the end, too: another node's files may appear late
            if result.name in os.listdir(result.parent):  # which looks anew where the folder is of a network
                return
            check_interrupted()
            time.sleep(1)
    raise RuntimeError("it is no longer in Slurm's queue, as when its memory is used up or it is cancelled")


def _cancel(submitted: "Sequence[tuple[Job, list[SweepPoint]]]") -> None:
    """Cancel jobs. Slurm sends SIGTERM to those that run, which then save checkpoints."""
    for job, _ in submitted:
        job.cancel(check=False)


class GroupJob:
    """The function of a job, which computes a group of points.

    The main thread waits for the signals by which Slurm says that the job will be killed, and another one computes.
    """

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        self._folders = folders  # of the records of its points, from the root
        self._running: list[Future[list[PointResult]]] = []  # one, from the call on

    def __call__(self, task: PackedWork) -> list[PointResult]:
        """Return the result of each point of the group."""
        with ThreadPoolExecutor(1) as pool, interruptible():
            self._running.append(pool.submit(self._compute, task))
            try:
                return self._running[0].result()
            except KeyboardInterrupt:
                time.sleep(_SECONDS_TO_BE_ENDED)  # in which submitit's signal has Slurm start the job again
                raise

    def checkpoint(self, task: PackedWork) -> "DelayedSubmission":
        """Save checkpoints, and return the job that goes on from them. Called in the handler of submitit's signal."""
        from submitit.helpers import DelayedSubmission

        set_interrupted(True)
        wait(self._running)
        return DelayedSubmission(GroupJob(self._folders), task)

    def _compute(self, task: PackedWork) -> list[PointResult]:
        """Compute the group in this process.

        A task that is refused, also when its job begins again, fails its unfinished points. Raises KeyboardInterrupt.
        """
        try:
            return compute_group(task, InlineExecutor(LauncherOptions()))
        except UserError as error:
            return [_record_refusal(folder, error) for folder in self._folders]


def _record_refusal(folder: Path, error: UserError) -> PointResult:
    """Write the error into a record that is not finished: the command may not wait for its jobs."""
    status = Record(folder).status
    if status.get("status") in FINISHED_STATUSES:
        return status["status"], ""
    run_folder = RunFolder(folder, status.get("identity", ""))
    if status and run_folder.claim() == "resume":
        run_folder.mark_failed(error, status.get("label", ""))
    run_folder.release()
    return "failed", describe_error(error)
