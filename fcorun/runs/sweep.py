"""Sweeps: finished runs are reused, runs that differ in numbers only run together, failures do not stop the rest."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fcorun.base.errors import UserError, describe_error
from fcorun.base.records.record import Record, load_records
from fcorun.base.records.sweep_settings import REPORT_KEYS, load_settings
from fcorun.experiment.build import check_metric_measured
from fcorun.reports.sweep_report import write_sweep_report
from fcorun.runs.batch import check_devices
from fcorun.runs.executors import EXECUTORS
from fcorun.runs.job import SweepWatcher
from fcorun.runs.sweep_points import SweepOptions, SweepPoint, check_unique_names, claim, find_existing, record_failure


def run_sweep(
    points: Sequence[SweepPoint],
    folder: Path,
    options: SweepOptions,
    watch: SweepWatcher,
    *,
    without_report: bool = False,
) -> int:
    """Run the points of a sweep, report on them into ``folder``, and return the exit code: 0 without failures.

    Args:
        without_report: run the points only, as for a batch of a search.
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
        _run_points(unfinished, options, watch)
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


def _run_points(
    points: list[SweepPoint],
    options: SweepOptions,
    watch: SweepWatcher,
) -> None:
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
    for group in groups.values():
        for start in range(0, len(group), max_group_size):
            small_groups.append(group[start : start + max_group_size])
    if not small_groups:
        return
    EXECUTORS[options.executor](small_groups, options, watch)


def _report(points: Sequence[SweepPoint], folder: Path, options: SweepOptions, watch: SweepWatcher) -> int:
    """Write the table and the pictures of all records in the folder, and of points elsewhere.

    Returns 2 if these records do not have the metric of the options, else 0.
    """
    folders = sorted({record.folder for record in load_records(folder)})
    folders += [path for path in dict.fromkeys(point.folder for point in points) if path not in folders]
    records = [Record(path) for path in folders if Record(path).status]
    settings = {name: getattr(options, name) for name in REPORT_KEYS}
    try:
        write_sweep_report(
            folder,
            records,
            console=watch.console or Console(quiet=True),
            algos=load_settings(folder).algos,
            **settings,
        )
    except UserError as error:
        watch.show(f"fcorun: {error}")
        return 2
    return 0
