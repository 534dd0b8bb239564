"""Many runs: what is done is reused, what differs in numbers only runs together, what fails does not stop the rest."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fcorun.errors import UserError, describe
from fcorun.experiment.build import check_measured
from fcorun.records.record import Record, load_records
from fcorun.records.sweeps import SHOWN_BY, kept
from fcorun.reports.results import report
from fcorun.runs.executors import EXECUTORS
from fcorun.runs.job import SweepWatcher
from fcorun.runs.memory import check_devices
from fcorun.runs.points import Options, Point, look, record_failure, refuse_shared_names, take
from fcorun.system.ahead import PICTURES, TABLES, import_ahead


def run_sweep(points: Sequence[Point], folder: Path, options: Options, watch: SweepWatcher, part: bool = False) -> int:
    """Run the points of a sweep and report on them into ``folder``; the exit code, 0 when nothing failed. A ``part`` of
    a search is only run."""
    refuse_shared_names(points)
    look(points, folder, options)
    found = Counter(p.found for p in points if p.error is None)
    failed = sum(p.error is not None for p in points)
    line = f"{found['finished']} done, {found['new'] + found['resume']} to run"
    line += f" ({found['resume']} of them go on)" if found["resume"] else ""
    watch.tell(line + (f", {failed} cannot run" if failed else "") + f"; records in {folder}/")
    of_all = [p.experiment.remark for p in points if p.experiment and p.experiment.remark]
    for remark in dict.fromkeys([*of_all, *(remark for point in points for remark in point.remarks)]):
        watch.tell(remark)
    if options.dry_run:
        _list(points, watch)
        return 1 if failed else 0
    if any(p.found != "finished" for p in points if p.error is None):
        begun = [p.experiment for p in points if p.experiment and p.error is None]
        check_measured(begun, options.metric)
        if options.executor == "inline":  # else it is up to the machine that runs them
            check_devices(begun)
    take(folder, points, options)
    if not (failed and options.fail_fast):
        _dispatch([p for p in points if p.error is None and p.found != "finished"], options, watch)
    for point in points:
        if point.error is not None and point.experiment is None:
            record_failure(point)
    watch.stop()
    if part:
        return 0
    code = _report(points, folder, options, watch)
    alike: dict[str, list[Point]] = {}
    for point in points:
        if point.error is not None:
            alike.setdefault(describe(point.error), []).append(point)
    for told, (first, *others) in alike.items():
        more = f", and {len(others)} more" if others else ""
        watch.say(f"failed: {first.overrides}{more}: {told} ({first.folder}/run.log)")
    return max(code, 1 if alike else 0)


def _dispatch(points: list[Point], options: Options, watch: SweepWatcher) -> None:
    """Run points in groups that differ in numbers and seed only, by the executor that was asked for."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        assert point.experiment is not None
        groups.setdefault(point.experiment.batch_key, []).append(point)
    watch.expect(len(points), sum(p.experiment.settings.rounds for p in points if p.experiment))
    size = options.batch or (-(-len(points) // options.n_jobs) if options.executor == "joblib" else len(points))
    import_ahead(*TABLES, *PICTURES)
    cut = [group[i : i + size] for group in groups.values() for i in range(0, len(group), size)]
    EXECUTORS[options.executor](cut, options, watch)


def _report(points: Sequence[Point], folder: Path, options: Options, watch: SweepWatcher) -> int:
    """The table and the pictures of all that is in the folder, and of points elsewhere; 2 if these were not measured by
    the metric that was asked for."""
    there = {record.folder for record in load_records(folder)}
    elsewhere = [place for place in dict.fromkeys(p.folder for p in points) if place not in there]
    records = [Record(place) for place in (*sorted(there), *elsewhere) if Record(place).status]
    try:
        asked = {name: getattr(options, name) for name in SHOWN_BY}
        report(folder, records, console=watch.out, algos=kept(folder).algos, **asked)
    except UserError as error:
        watch.say(f"fcorun: {error}")
        return 2
    return 0


def _list(points: Sequence[Point], watch: SweepWatcher) -> None:
    """The jobs of a sweep and what there is of them."""
    names = {"finished": "done", "resume": "goes on", "new": "to run"}
    for point in points:
        state = f"cannot run, {describe(point.error)}" if point.error else names[point.found]
        watch.tell(f"{point.overrides}: {state} ({point.folder})")
