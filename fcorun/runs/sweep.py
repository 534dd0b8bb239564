"""Sweeps: finished runs are reused, runs that differ in numbers only run together, failures do not stop the rest.

Executors compute the groups of runs: in this process, in others of this machine, or on a cluster.
"""

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from fcorun.base.config import IDENTITY_SECTIONS, Count, CurveAxis
from fcorun.base.errors import UserError, describe_error
from fcorun.base.metrics import CATALOGUE, Metric, aggregate
from fcorun.base.picture_style import FigureStyle, PictureWidth
from fcorun.base.records.record import LOCK_FILE, Record, RunFolder, load_records
from fcorun.base.records.sweep_settings import (
    REPORT_KEYS,
    SETTINGS_FILE,
    SweepSettings,
    load_settings,
    read_own_settings,
    save_settings,
)
from fcorun.base.system import locks
from fcorun.experiment.build import check_metric_measured
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.reports.build_table import build_table
from fcorun.reports.sweep_report import write_sweep_report
from fcorun.runs.executors.dask import DaskExecutor
from fcorun.runs.executors.executor import Executor, LauncherOptions
from fcorun.runs.executors.inline import InlineExecutor
from fcorun.runs.executors.submitit import SubmititExecutor
from fcorun.runs.finish import has_other_threshold
from fcorun.runs.job import SweepWatcher
from fcorun.runs.sweep_point import (
    PointGroups,
    StrengthChoice,
    SweepPoint,
    failed_folder,
    record_failure,
    remove_record,
)

EXECUTORS: dict[str, type[Executor]] = {
    "inline": InlineExecutor,
    "dask": DaskExecutor,
    "submitit": SubmititExecutor,
}


@dataclass(frozen=True)
class SweepOptions(LauncherOptions):
    """The options of a sweep: root keys, keys of hydra.launcher, and the conditions of hydra.sweeper."""

    force: bool = False
    dry_run: bool = False
    fail_fast: bool = False
    metric: str | None = None
    tail_rounds: Count = 100
    x: CurveAxis | str = "rounds"
    style: FigureStyle = "paper"
    width: PictureWidth | None = None
    conditions: list[str] | None = None
    verbose: bool = True


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
            if options.force:
                Record(point.folder).check_replaceable()
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
        if not options.dry_run:
            remove_record(failed_folder(folder, point.overrides))


def check_alone(points: Sequence[SweepPoint]) -> None:
    """Refuse to compute runs anew while another process computes one of them. Raises UserError."""
    for point in points:
        if locks.is_locked(point.folder / LOCK_FILE):
            raise UserError(f"`force=true` would delete what another process computes in this sweep ({point.folder}): "
                            "leave force out, which joins that process, or wait for its end")  # fmt: skip


def check_unique_names(points: Sequence[SweepPoint]) -> None:
    """Refuse plug-ins of different classes with one name, which tables could not tell apart, and metrics of one name
    with different directions, by which no run would be the best. Raises UserError.
    """
    experiments = [point.experiment for point in points if point.experiment is not None]
    first_declared: dict[str, tuple[Metric, PreparedExperiment]] = {}
    for experiment in experiments:
        for metric in experiment.declared_metrics:
            first, other = first_declared.setdefault(metric.name, (metric, experiment))
            if first.higher != metric.higher:
                raise UserError(f"the plug-ins of '{other.label}' and '{experiment.label}' declare the metric "
                                f"'{metric.name}' with higher={first.higher} and higher={metric.higher}: give one of "
                                "the two another name")  # fmt: skip
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


def run_sweep(
    points: Sequence[SweepPoint],
    folder: Path,
    options: SweepOptions,
    watch: SweepWatcher,
    *,
    without_report: bool = False,
    choose_strength: StrengthChoice | None = None,
) -> int:
    """Run the points of a sweep, report on them into ``folder``, and return the exit code: 0 without failures.

    Args:
        without_report: run the points only, as for a batch of a search.
        choose_strength: chooses the strength of a point that has ``study.strength``, where the point is computed; a
            study, of which this room knows nothing.
    """
    check_unique_names(points)
    if options.force and not options.dry_run:
        check_alone(points)
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
    executor = EXECUTORS[options.executor](options, options.fail_fast)
    unfinished = [point for point in valid if point.folder_state != "finished"]
    studied = [point for point in valid if point.experiment and point.experiment.chooses_strength]
    if unfinished:
        experiments = [point.experiment for point in valid if point.experiment]
        check_metric_measured(experiments, options.metric)
        executor.start(experiments, watch.show_if_verbose)
        if options.force:
            executor.check_removal(unfinished)
    try:
        claim(folder, points, options)
        if not (n_invalid and options.fail_fast):
            for point in studied:
                point.choose_strength = choose_strength
            if options.force:  # once: what computes a point again later resumes it
                for point in unfinished:
                    remove_record(point.folder)
            _run_points(valid, executor, watch)
    finally:
        executor.close()
    for point in points:
        if point.error is not None and point.experiment is None:
            record_failure(point)
    watch.on_sweep_end()
    _show_warnings_of_choices([point for point in studied if point.folder_state != "finished"], watch)
    if without_report:
        return 0
    code = _report(points, folder, options, watch) if options.wait else 0
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
    watch.warn(warnings)


def _show_warnings_of_choices(points: Sequence[SweepPoint], watch: SweepWatcher) -> None:
    """Show the first of the warnings about the strengths that these points have chosen."""
    choices = [Record(point.folder).summary_or_empty.get("selection") or {} for point in points]
    warnings = [choice["warnings"][0] for choice in choices if choice.get("warnings")]
    if warnings:
        watch.show_if_verbose(f"{len(warnings)} of {len(points)} choices have warnings, which summary.json of "
                              f"each run lists: {warnings[0]}")  # fmt: skip


def _run_points(points: list[SweepPoint], executor: Executor, watch: SweepWatcher) -> None:
    """Run the points that are not finished, in groups that differ in numbers and seed only."""
    unfinished = [point for point in points if point.folder_state != "finished"]
    n_rounds = sum(point.experiment.settings.rounds for point in unfinished if point.experiment)
    watch.on_sweep_start(len(unfinished), n_rounds)
    groups: dict[str, list[SweepPoint]] = {}
    for point in points if executor.keeps_places else unfinished:
        assert point.experiment is not None
        groups.setdefault(point.experiment.batch_key, []).append(point)
    groups_to_run = []
    for group in _order_by_data(groups.values()):
        size = executor.largest_group(len(group))
        for start in range(0, len(group), size):
            piece = group[start : start + size]
            if any(point.folder_state != "finished" for point in piece):
                groups_to_run.append(piece)
    if groups_to_run:
        executor.run(groups_to_run, watch)


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
