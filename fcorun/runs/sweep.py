"""Sweeps: finished runs are reused, runs that differ in numbers only run together, failures do not stop the rest.

Groups of runs are computed in this process, in local processes by joblib, or on a cluster by submitit.
"""

import hashlib
import itertools
import os
import pickle
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console

from fcorun.base.config import IDENTITY_SECTIONS, Count, CurveAxis, FigureStyle, import_classes
from fcorun.base.errors import HostLost, RemoteError, UserError, describe_error, first_line
from fcorun.base.metrics import CATALOGUE, aggregate
from fcorun.base.records.record import Record, RunFolder, load_records
from fcorun.base.records.sweep_settings import (
    REPORT_KEYS,
    SETTINGS_FILE,
    SweepSettings,
    load_settings,
    read_own_settings,
    save_settings,
)
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
from fcorun.experiment.build import check_metric_measured
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.reports.build_table import build_table
from fcorun.reports.sweep_report import write_sweep_report
from fcorun.runs.batch import check_devices
from fcorun.runs.finish import has_other_threshold
from fcorun.runs.job import Job, SweepWatcher
from fcorun.runs.run_experiments import run_jobs
from fcorun.runs.several_hosts import run_follower
from fcorun.runs.shared_cores import SharedCores


@dataclass
class SweepPoint:
    """A run of a sweep.

    Attributes:
        overrides: the point as overrides of the command line.
        folder: the folder of its record.
        experiment: its experiment; None if the configuration is not valid.
        folder_state: the state of the folder before the sweep: "finished", "resume" or "new".
        end_status: the status in which the run ended, as for ``fcorun.runs.job.Job``.
        error: the error of the configuration or of the run.
        selection: the choice of its strength by ``study.strength``, as summary.json has it.
        combinations: the indices of the sweep's combinations of values that the point stands for.
        warnings: the warnings about these combinations.
    """

    overrides: str
    folder: Path
    experiment: PreparedExperiment | None = None
    folder_state: str = "new"
    end_status: str = ""
    error: BaseException | None = None
    selection: dict[str, Any] | None = None
    combinations: list[int] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def from_error(cls, overrides: str, sweep_dir: str, error: BaseException) -> "SweepPoint":
        """Return a point whose configuration is not valid. Its record is a failed one."""
        return cls(overrides, _failed_folder(Path(sweep_dir), overrides), error=error)


@dataclass(frozen=True)
class SweepOptions:
    """The options of a sweep: root keys, keys of hydra.launcher, and the conditions of hydra.sweeper."""

    force: bool = False
    dry_run: bool = False
    fail_fast: bool = False
    metric: str | None = None
    tail_rounds: Count = 100
    x: CurveAxis | str = "rounds"
    style: FigureStyle = "paper"
    conditions: list[str] | None = None
    verbose: bool = True
    executor: Literal["inline", "joblib", "submitit"] = "inline"
    batch: Count | None = None
    n_jobs: Count = 2
    pictures: bool = True
    submitit: dict | None = None


def merge_duplicates(points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """Return the points without repeats of the same run in the same folder."""
    first_points: dict[tuple, SweepPoint] = {}
    for index, point in enumerate(points):
        key = (point.folder, point.experiment.identity) if point.experiment else (index,)
        first = first_points.setdefault(key, point)
        if first is not point:
            first.combinations = [*first.combinations, *point.combinations]
    return list(first_points.values())


def tail_value(point: SweepPoint, options: SweepOptions) -> float | None:
    """Return the tail average of the sweep's metric for a point; None if the point is not done."""
    record = Record(point.folder)
    if record.status.get("status") != "done":
        return None
    metrics = point.experiment.metrics if point.experiment else CATALOGUE
    stopped = bool(record.summary.get("stopped"))
    tail = aggregate(record.rows, options.tail_rounds, metrics, stopped=stopped)["tail"]
    return tail.get(options.metric or metrics.default_metric(tail))


def choose_search_metric(points: Sequence[SweepPoint], keys: Sequence[str]) -> str | None:
    """Choose the metric of a search without ``metric``: the default metric of those that its first points measured.

    Args:
        points: the first points.
        keys: the keys that are searched.

    Returns None if nothing was measured. Raises UserError if no metric compares the values of the keys.
    """
    runs = build_table([Record(point.folder) for point in points])
    measured = [name for name in runs.tail_metrics if runs.metrics[name].priority is not None]
    compared = [name for name in measured if runs.is_one_function_of(keys, name)]
    if measured and not compared:
        raise UserError(f"no metric by which these runs are ranked compares the values of {', '.join(keys)}, which are "
                        "searched: name another metric, `metric=NAME`, or leave hydra/sweeper=optuna out")  # fmt: skip
    return runs.metrics.default_metric(compared) if compared else None


def objective_values(points: Sequence[SweepPoint], metric: str | None, tail_rounds: int) -> list[float]:
    """Return the values that a search minimizes: the tail averages of a metric, negated if a larger one is better.

    The value of a point that is not done is inf. Raises UserError for a metric that was not measured.
    """
    runs = build_table([Record(point.folder) for point in points], tail_rounds)
    metric = runs.resolve_metric(metric)
    values = runs.metrics.sign(metric) * runs.tail_values(metric)
    is_measured = (runs.frame["status"] == "done") & ~np.isnan(values)
    return np.where(is_measured, values, np.inf).tolist()


def find_existing(points: Sequence[SweepPoint], folder: Path, options: SweepOptions) -> None:
    """Set the ``folder_state`` of each point, or its ``error`` if the folder holds something else.

    Removes records of earlier failures of these points.
    """
    first_point_in: dict[Path, SweepPoint] = {}
    for point in points:
        if point.experiment is None:
            continue
        if point.end_status:  # an earlier batch of a search has run the point
            point.folder_state = "finished"
            continue
        try:
            run_folder = RunFolder(point.folder, point.experiment.identity)
            point.folder_state = run_folder.inspect(options.force)
            if point.folder_state == "finished":
                if has_other_threshold(Record(point.folder), point.experiment.settings.threshold):
                    point.folder_state = "resume"
                elif not options.dry_run:
                    run_folder.touch()
            first = first_point_in.setdefault(point.folder, point)
            if first.experiment is not None and first.experiment.identity != point.experiment.identity:
                raise UserError(f"hydra.sweep.subdir gives {point.folder} to different runs; put ${{run_id:}} into it")
        except UserError as error:
            point.error = error
        stale_folder = _failed_folder(folder, point.overrides)
        if not options.dry_run and Record(stale_folder).status:
            with suppress(UserError):  # another sweep is using the folder
                RunFolder(stale_folder, "").remove()


def check_unique_names(points: Sequence[SweepPoint]) -> None:
    """Refuse plug-ins of different classes with one name, which tables could not tell apart. Raises UserError."""
    experiments = [point.experiment for point in points if point.experiment is not None]
    for section in IDENTITY_SECTIONS:
        class_of_name: dict[str, str] = {}
        for experiment in experiments:
            name, class_path = experiment.names[section], experiment.config[section]["class"]
            first = class_of_name.setdefault(name, class_path)
            if first != class_path:
                raise UserError(f"{section}.name={name} names two classes, {first} and {class_path}: give one of "
                                f"them another name, by `{section}.name=NAME` or in its file, or rename a class of "
                                "your own")  # fmt: skip


def claim(folder: Path, points: Sequence[SweepPoint], options: SweepOptions) -> None:
    """Mark a folder as a sweep's, and save the sweep's settings in it.

    Raises UserError if the folder cannot be written, or holds files that are no sweep's and that a sweep would replace.
    """
    existing = [path.name for path in (folder / "results.csv", *folder.glob("*.png")) if path.exists()]
    if existing and not (folder / SETTINGS_FILE).exists():
        raise UserError(f"`out={folder}` has a file {existing[0]} that is of no sweep; choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        algos = [*load_settings(folder).algos]
        algos += [point.experiment.names["algo"] for point in points if point.experiment]
        runs = [os.path.relpath(point.folder, folder) for point in points]
        report_settings = {name: getattr(options, name) for name in REPORT_KEYS}
        earlier = read_own_settings(folder)
        conditions = earlier.conditions
        if options.conditions is not None:  # [] forgets those of earlier sweeps
            conditions = tuple(dict.fromkeys((*conditions, *options.conditions))) if options.conditions else ()
        joined = {"algos": tuple(dict.fromkeys(algos)), "runs": tuple(dict.fromkeys(runs)), "conditions": conditions}
        settings = SweepSettings(**report_settings, **joined, pictures=earlier.pictures)
        save_settings(folder, settings)
    except OSError as error:
        raise UserError(f"`out={folder}` cannot be written ({error.strerror}); choose another") from error


def record_failure(point: SweepPoint) -> None:
    """Write a failed record of a point that could not start, unless its folder holds something else."""
    assert point.error is not None
    identity = point.experiment.identity if point.experiment else _digest(point.overrides)
    run_folder = RunFolder(point.folder, identity)
    try:
        if run_folder.claim(label=point.overrides) in ("new", "resume"):
            run_folder.mark_failed(point.error, point.overrides)
    except UserError:
        pass
    finally:
        run_folder.release()


def _failed_folder(sweep_dir: Path, overrides: str) -> Path:
    """Return the folder of the failed record of a point whose configuration is not valid."""
    return sweep_dir / f"failed-{_digest(overrides)[:8]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


PointGroups = Sequence[list[SweepPoint]]  # points of a group differ in numbers and seed only


def run_sweep(
    points: Sequence[SweepPoint],
    folder: Path,
    options: SweepOptions,
    watch: SweepWatcher,
    *,
    without_report: bool = False,
    choose_strengths: Callable[[Sequence[SweepPoint], SweepWatcher], None] = lambda points, watch: None,
) -> int:
    """Run the points of a sweep, report on them into ``folder``, and return the exit code: 0 without failures.

    Args:
        without_report: run the points only, as for a batch of a search.
        choose_strengths: chooses the strengths of the points to run that have ``study.strength``; a study, of which
            this room knows nothing.
    """
    check_unique_names(points)
    find_existing(points, folder, options)
    valid = [point for point in points if point.error is None]
    n_invalid = len(points) - len(valid)
    _show_overview(points, folder, watch)
    if options.dry_run:
        descriptions = {"finished": "done", "resume": "resumes", "new": "to run"}
        for point in points:
            state = descriptions[point.folder_state]
            if point.error:
                state = f"cannot run, {describe_error(point.error)}"
            watch.show_if_verbose(f"{point.overrides}: {state} ({point.folder})")
        return 1 if n_invalid else 0
    if any(point.folder_state != "finished" for point in valid):
        experiments = [point.experiment for point in valid if point.experiment]
        check_metric_measured(experiments, options.metric)
        if options.executor == "inline":  # other executors may run on machines with other devices
            check_devices(experiments)
    claim(folder, points, options)
    if not (n_invalid and options.fail_fast):
        unfinished = [point for point in valid if point.folder_state != "finished"]
        choose_strengths(unfinished, watch)
        for point in unfinished:
            if point.error is not None:  # nothing could be chosen
                record_failure(point)
        _run_points([point for point in unfinished if point.error is None], options, watch)
    for point in points:
        if point.error is not None and point.experiment is None:
            record_failure(point)
    watch.on_sweep_end()
    if without_report:
        return 0
    code = _report(points, folder, options, watch)
    points_by_error: dict[str, list[SweepPoint]] = {}
    for point in points:
        if point.error is not None:
            points_by_error.setdefault(describe_error(point.error), []).append(point)
    for error, (first, *others) in points_by_error.items():
        more = f", and {len(others)} more" if others else ""
        watch.show(f"failed: {first.overrides}{more}: {error} ({first.folder}/run.log)")
    return max(code, 1 if points_by_error else 0)


def _show_overview(points: Sequence[SweepPoint], folder: Path, watch: SweepWatcher) -> None:
    """Show how many points are done and how many are to run, and the warnings about them, each once."""
    states = Counter(point.folder_state for point in points if point.error is None)
    n_invalid = sum(point.error is not None for point in points)
    line = f"{states['finished']} done, {states['new'] + states['resume']} to run"
    if states["resume"]:
        line += f" ({states['resume']} of them resume)"
    if n_invalid:
        line += f", {n_invalid} cannot run"
    watch.show_if_verbose(f"{line}; records in {folder}/")
    warnings = [point.experiment.warning for point in points if point.experiment and point.experiment.warning]
    for point in points:
        warnings += point.warnings
    for warning in dict.fromkeys(warnings):
        watch.show_if_verbose(warning)


def _run_points(points: list[SweepPoint], options: SweepOptions, watch: SweepWatcher) -> None:
    """Run points in groups that differ in numbers and seed only, by the executor of the options."""
    groups: dict[str, list[SweepPoint]] = {}
    n_rounds = 0
    for point in points:
        assert point.experiment is not None
        groups.setdefault(point.experiment.batch_key, []).append(point)
        n_rounds += point.experiment.settings.rounds
    watch.on_sweep_start(len(points), n_rounds)
    max_group_size = len(points)
    if options.batch:
        max_group_size = options.batch
    elif options.executor == "joblib":
        max_group_size = -(-len(points) // options.n_jobs)
    small_groups = []
    for group in _order_by_data(groups.values()):
        for start in range(0, len(group), max_group_size):
            small_groups.append(group[start : start + max_group_size])
    if not small_groups:
        return
    EXECUTORS[options.executor](small_groups, options, watch)


def _order_by_data(groups: Iterable[list[SweepPoint]]) -> PointGroups:
    """Return groups in their order, but those on the same data one after the other, so that data are loaded once."""
    groups_of_data: dict[str, list[list[SweepPoint]]] = {}
    for group in groups:
        assert group[0].experiment is not None
        groups_of_data.setdefault(group[0].experiment.fingerprint, []).append(group)
    return list(itertools.chain(*groups_of_data.values()))


def _report(points: Sequence[SweepPoint], folder: Path, options: SweepOptions, watch: SweepWatcher) -> int:
    """Write the table of all records in the folder, and of points elsewhere, and the pictures unless left out.

    Returns 2 if these records do not have the metric of the options, else 0.
    """
    folders = sorted({record.folder for record in load_records(folder)})
    folders += [path for path in dict.fromkeys(point.folder for point in points) if path not in folders]
    records = [Record(path) for path in folders if Record(path).status]
    saved = load_settings(folder)
    settings = {name: getattr(options, name) for name in REPORT_KEYS}
    settings |= {"algos": saved.algos, "conditions": saved.conditions, "pictures": options.pictures}
    try:
        write_sweep_report(folder, records, console=watch.console or Console(quiet=True), **settings)
    except UserError as error:
        watch.show(f"fcorun: {error}")
        return 2
    return 0


# The executors: where the groups of a sweep run.


def run_inline(groups: PointGroups, options: SweepOptions, watch: SweepWatcher) -> None:
    """Run the groups side by side on the cores. Points that another process is computing are waited for at the end."""
    groups_to_run = list(groups)
    is_debugged = any(point.experiment and point.experiment.settings.debug for group in groups for point in group)
    cores = SharedCores()
    while groups_to_run:
        calls = [partial(run_group, group, watch, cores) for group in groups_to_run]
        ends_early = partial(_ends_by_failure, groups_to_run, options)
        cores.run_side_by_side(calls, ends_early, one_by_one=is_debugged)
        if ends_early():
            return
        locked_groups = []
        for group in groups_to_run:
            locked = [point for point in group if point.end_status == "locked"]
            if locked:
                locked_groups.append(locked)
        groups_to_run = locked_groups
        if groups_to_run:
            watch.on_wait(sum(len(group) for group in groups_to_run))
            time.sleep(1)


def _ends_by_failure(groups: PointGroups, options: SweepOptions) -> bool:
    """Return whether a point of these groups ended by an error, and ``fail_fast`` ends the sweep by it."""
    return options.fail_fast and any(point.error is not None for group in groups for point in group)


def run_group(group: list[SweepPoint], watch: SweepWatcher, cores: SharedCores | None = None) -> None:
    """Run points that differ in numbers and seed only. Sets the ``end_status`` and ``error`` of each.

    Args:
        cores: those that the group shares with others, which run in other threads; None: all of the machine.
    """
    jobs = {}
    for point in group:
        assert point.experiment is not None
        run_folder = RunFolder(point.folder, point.experiment.identity)
        jobs[point.folder] = Job(point.experiment, run_folder, selection=point.selection)
    group_error: BaseException | None = None
    try:
        run_jobs(list(jobs.values()), watch, cores)
    except Exception as error:  # no job was started, because of the data or the folders
        group_error = error
    for point in group:
        job = jobs[point.folder]
        point.end_status, point.error = job.end_status, job.error
        if group_error is not None and not job.end_status:
            point.end_status, point.error = "failed", job.error or group_error
            record_failure(point)
    for kind in (KeyboardInterrupt, HostLost):  # after a lost host, the next group lacks it as well
        for point in group:
            if isinstance(point.error, kind):
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
    group = task.start()
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
        leads = join_hosts(options).rank == 0
        with interruptible():
            if not leads:
                run_follower()
                return []
            run_inline([group], SweepOptions(), SweepWatcher())
        return _results(group)
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
