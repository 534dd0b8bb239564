"""Where the groups of a sweep run: in this process, in local ones by joblib, on a cluster by submitit."""

import os
import pickle
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcorun.config import import_classes
from fcorun.errors import HostLost, RemoteError, UserError, describe_error
from fcorun.records.folder import RunFolder
from fcorun.runs.hosts.follower import run_follower
from fcorun.runs.job import Job, SweepWatcher
from fcorun.runs.run import run_jobs
from fcorun.runs.sweep_points import SweepOptions, SweepPoint, record_failure
from fcorun.system.cluster import SECRET_VARIABLE, HostOptions, resolve_hosts
from fcorun.system.hosts import shutdown
from fcorun.system.interruption import interruptible
from fcorun.system.machine import available_cores, set_up_jax
from fcorun.system.rendezvous import join_hosts

PointGroups = Sequence[list[SweepPoint]]  # points of a group differ in numbers and seed only
_SAFE = "PYTHONSAFEPATH"


def run_inline(groups: PointGroups, options: SweepOptions, watch: SweepWatcher) -> None:
    """The groups one after the other; what another process is computing is waited for at the end."""
    waiting = list(groups)
    while waiting:
        later = []
        for group in waiting:
            run_group(group, watch)
            if options.fail_fast and any(p.error is not None for p in group):
                return
            later.append([p for p in group if p.end_status == "locked"])
        waiting = [group for group in later if group]
        if waiting:
            watch.on_wait(sum(map(len, waiting)))
            time.sleep(1)


def run_group(group: list[SweepPoint], watch: SweepWatcher) -> None:
    """Run points that differ in numbers only; how each ended is noted in it and recorded in its folder."""
    unique = {p.folder: p for p in group}
    jobs = {}
    for folder, point in unique.items():
        assert point.experiment is not None
        jobs[folder] = Job(point.experiment, RunFolder(folder, point.experiment.identity))
    problem: BaseException | None = None
    try:
        run_jobs(list(jobs.values()), watch)
    except Exception as error:  # nothing was begun: the data, or the folders
        problem = error
    for point in group:
        job = jobs[point.folder]
        point.end_status, point.error = job.end_status, job.error or (problem if not job.end_status else None)
        if problem is not None and not job.end_status and point.experiment is not None:
            point.end_status = "failed"
            record_failure(point)
    if any(isinstance(p.error, KeyboardInterrupt) for p in group):
        raise KeyboardInterrupt
    for lost in (p.error for p in group if isinstance(p.error, HostLost)):  # the next group would need that host, too
        raise lost


def run_with_joblib(groups: PointGroups, options: SweepOptions, watch: SweepWatcher) -> None:
    """``n_jobs`` groups at a time, each in a process of its own."""
    try:
        from joblib import Parallel, delayed
    except ImportError as error:
        raise UserError("hydra.launcher.executor=joblib needs joblib: pip install 'fcorun[joblib]'") from error
    each = max(1, available_cores() // options.n_jobs)
    tasks = (delayed(_work)(_sent(group), each) for group in groups)
    with _without_current_folder():
        _note(groups, Parallel(n_jobs=options.n_jobs, return_as="generator")(tasks), options, watch)


@contextmanager
def _without_current_folder() -> Iterator[None]:
    """Have Python's -m, by which other processes are started, leave the current folder out of their ``sys.path``."""
    before = os.environ.get(_SAFE)
    os.environ[_SAFE] = "1"
    try:
        yield
    finally:
        del os.environ[_SAFE]
        if before is not None:
            os.environ[_SAFE] = before


def run_with_submitit(groups: PointGroups, options: SweepOptions, watch: SweepWatcher) -> None:
    """Each group as a job of a Slurm cluster, or of submitit's local one; waits for all of them. The tasks of a job, if
    there are several, compute together."""
    try:
        import submitit
    except ImportError as error:
        raise UserError("hydra.launcher.executor=submitit needs submitit: pip install 'fcorun[submitit]'") from error
    parameters = dict(options.submitit or {})
    log = Path(groups[0][0].folder).parent / ".submitit"
    executor = submitit.AutoExecutor(folder=log, cluster=parameters.pop("cluster", None))
    executor.update_parameters(**{"name": "fcorun", **parameters})
    each = int(parameters.get("cpus_per_task", 0)) or (os.cpu_count() or 1)
    tasks = int(parameters.get("nodes", 1)) * int(parameters.get("tasks_per_node", 1))
    work = _work_together if tasks > 1 else _work
    if tasks > 1:
        os.environ.setdefault(SECRET_VARIABLE, secrets.token_hex(32))  # which jobs take over with the environment
    with _without_current_folder(), executor.batch():
        jobs = [executor.submit(work, _sent(group), each) for group in groups]
    _note(groups, (job.task(0).result() for job in jobs), options, watch)


EXECUTORS = {"inline": run_inline, "joblib": run_with_joblib, "submitit": run_with_submitit}


@dataclass(frozen=True)
class _Sent:
    """A group on its way to another process, which imports the classes of its plug-ins before it reads the points."""

    folder: str
    config: dict[str, Any]  # of its first point
    points: bytes

    def received(self) -> list[SweepPoint]:
        """Return the points, in the folder that they were sent from."""
        os.chdir(self.folder)
        import_classes(self.config)
        return pickle.loads(self.points)


def _sent(group: list[SweepPoint]) -> _Sent:
    experiment = group[0].experiment
    assert experiment is not None
    tracker = {"tracker": {"class": f"{type(experiment.tracker).__module__}.{type(experiment.tracker).__qualname__}"}}
    return _Sent(os.getcwd(), experiment.config | tracker, pickle.dumps(group))


def _work(sent: _Sent, each: int) -> list[tuple[str, str]]:
    """Run a group in a process of its own, with ``each`` cores; how each point ended, and the error's text."""
    os.environ["FCORUN_CORES"] = str(each)
    group = sent.received()
    set_up_jax()
    with interruptible():
        run_inline([group], SweepOptions(), SweepWatcher())
    return [(p.end_status, describe_error(p.error) if p.error else "") for p in group]


def _work_together(sent: _Sent, each: int) -> list[tuple[str, str]]:
    """``_work`` in each of several tasks of a job of submitit: the first one leads, and the others follow it."""
    from submitit.helpers import TorchDistributedEnvironment

    place = TorchDistributedEnvironment()
    os.environ["FCORUN_CORES"] = str(each)
    set_up_jax()
    group = sent.received()
    told = HostOptions(f"{place.master_addr}:{place.master_port}", place.world_size, place.rank)
    try:
        if join_hosts(resolve_hosts({}) or told).rank:
            with interruptible():
                run_follower()
            return []
        return _work(sent, each)
    except (UserError, HostLost) as error:
        return [(point.end_status or "failed", describe_error(point.error or error)) for point in group]
    finally:
        shutdown(0)


def _note(groups: PointGroups, results: Iterable, options: SweepOptions, watch: SweepWatcher) -> None:
    """Take over how the points of each group ended, as the groups end."""
    for group, ends in zip(groups, results, strict=False):
        for point, (end, text) in zip(group, ends, strict=True):
            point.end_status, point.error = end, RemoteError(text) if text else None
            watch.on_point_end(point)
        if options.fail_fast and any(p.error for p in group):
            return
