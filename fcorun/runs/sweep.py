"""Many runs: what is done is reused, what differs in numbers only runs together, what fails does not stop the rest."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fcorun.errors import UserError, describe_error
from fcorun.experiment.build import check_metric_measured
from fcorun.records.record import Record, load_records
from fcorun.records.sweep_settings import REPORT_KEYS, load_settings
from fcorun.reports.sweep_report import write_sweep_report
from fcorun.runs.batching import check_devices
from fcorun.runs.executors import EXECUTORS
from fcorun.runs.job import SweepWatcher
from fcorun.runs.sweep_points import SweepOptions, SweepPoint, check_unique_names, claim, find_existing, record_failure
from fcorun.system.background_import import PLOTTING_MODULES, TABLE_MODULES, import_in_background


def run_sweep(
    points: Sequence[SweepPoint], folder: Path, options: SweepOptions, watch: SweepWatcher, without_report: bool = False
) -> int:
    """Run the points of a sweep and report on them into ``folder``; the exit code, 0 when nothing failed. A ``part`` of
    a search is only run."""
    check_unique_names(points)
    find_existing(points, folder, options)
    found = Counter(p.folder_state for p in points if p.error is None)
    failed = sum(p.error is not None for p in points)
    line = f"{found['finished']} done, {found['new'] + found['resume']} to run"
    line += f" ({found['resume']} of them go on)" if found["resume"] else ""
    watch.show_if_verbose(line + (f", {failed} cannot run" if failed else "") + f"; records in {folder}/")
    of_all = [p.experiment.warning for p in points if p.experiment and p.experiment.warning]
    for remark in dict.fromkeys([*of_all, *(remark for point in points for remark in point.warnings)]):
        watch.show_if_verbose(remark)
    if options.dry_run:
        _list(points, watch)
        return 1 if failed else 0
    if any(p.folder_state != "finished" for p in points if p.error is None):
        begun = [p.experiment for p in points if p.experiment and p.error is None]
        check_metric_measured(begun, options.metric)
        if options.executor == "inline":  # else it is up to the machine that runs them
            check_devices(begun)
    claim(folder, points, options)
    if not (failed and options.fail_fast):
        _dispatch([p for p in points if p.error is None and p.folder_state != "finished"], options, watch)
    for point in points:
        if point.error is not None and point.experiment is None:
            record_failure(point)
    watch.on_sweep_end()
    if without_report:
        return 0
    code = _report(points, folder, options, watch)
    alike: dict[str, list[SweepPoint]] = {}
    for point in points:
        if point.error is not None:
            alike.setdefault(describe_error(point.error), []).append(point)
    for told, (first, *others) in alike.items():
        more = f", and {len(others)} more" if others else ""
        watch.show(f"failed: {first.overrides}{more}: {told} ({first.folder}/run.log)")
    return max(code, 1 if alike else 0)


def _dispatch(points: list[SweepPoint], options: SweepOptions, watch: SweepWatcher) -> None:
    """Run points in groups that differ in numbers and seed only, by the executor that was asked for."""
    groups: dict[str, list[SweepPoint]] = {}
    for point in points:
        assert point.experiment is not None
        groups.setdefault(point.experiment.batch_key, []).append(point)
    watch.on_sweep_start(len(points), sum(p.experiment.settings.rounds for p in points if p.experiment))
    size = options.batch or (-(-len(points) // options.n_jobs) if options.executor == "joblib" else len(points))
    import_in_background(*TABLE_MODULES, *PLOTTING_MODULES)
    cut = [group[i : i + size] for group in groups.values() for i in range(0, len(group), size)]
    EXECUTORS[options.executor](cut, options, watch)


def _report(points: Sequence[SweepPoint], folder: Path, options: SweepOptions, watch: SweepWatcher) -> int:
    """The table and the pictures of all that is in the folder, and of points elsewhere; 2 if these were not measured by
    the metric that was asked for."""
    there = {record.folder for record in load_records(folder)}
    elsewhere = [place for place in dict.fromkeys(p.folder for p in points) if place not in there]
    records = [Record(place) for place in (*sorted(there), *elsewhere) if Record(place).status]
    try:
        asked = {name: getattr(options, name) for name in REPORT_KEYS}
        write_sweep_report(folder, records, console=watch.console, algos=load_settings(folder).algos, **asked)
    except UserError as error:
        watch.show(f"fcorun: {error}")
        return 2
    return 0


def _list(points: Sequence[SweepPoint], watch: SweepWatcher) -> None:
    """The jobs of a sweep and what there is of them."""
    names = {"finished": "done", "resume": "goes on", "new": "to run"}
    for point in points:
        state = f"cannot run, {describe_error(point.error)}" if point.error else names[point.folder_state]
        watch.show_if_verbose(f"{point.overrides}: {state} ({point.folder})")
