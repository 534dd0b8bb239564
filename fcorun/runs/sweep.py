"""Many runs: what is done is reused, what differs in numbers only runs together, what fails does not stop the rest."""

import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fcorun.cli.console import SweepConsole
from fcorun.config import Axis, Count, Metric
from fcorun.errors import UserError, describe
from fcorun.experiment.experiment import Experiment
from fcorun.metrics import CATALOGUE, aggregate
from fcorun.records.folder import RunFolder
from fcorun.records.formats import read_rows
from fcorun.records.record import Record
from fcorun.reports.results import report
from fcorun.runs.execute import Submit
from fcorun.runs.processes import MANY, RECORDS, Helpers
from fcorun.runs.runner import Job, run_jobs
from fcorun.system.machine import cores

_MARK = ".sweep"  # the file that says that results.csv and the pictures beside it are a sweep's


@dataclass
class Point:
    """A run of a sweep.

    Attributes:
        overrides: how the command line would ask for it.
        folder: where its record goes.
        experiment: what it is, or None when that could not be made out.
        found: what was in the folder before: "finished", "resume" or "new".
        end: how it ended, as for fcorun.runs.runner.Job.
        error: what went wrong.
    """

    overrides: str
    folder: Path
    experiment: Experiment | None = None
    found: str = "new"
    end: str = ""
    error: BaseException | None = None

    @classmethod
    def broken(cls, overrides: str, sweep_dir: str, error: BaseException) -> "Point":
        """A point whose configuration is no good; its record says so."""
        return cls(overrides, _failed_folder(Path(sweep_dir), overrides), error=error)


@dataclass(frozen=True)
class Options:
    """What a sweep is asked for beside its points: root keys, and those of hydra.launcher."""

    force: bool = False
    dry_run: bool = False
    fail_fast: bool = False
    metric: Metric | None = None
    tail_rounds: Count = 100
    x: Axis = "rounds"
    verbose: bool = True
    executor: Literal["inline", "joblib", "submitit"] = "inline"
    batch: Count | None = None
    n_jobs: Count = 2
    submitit: dict | None = None


def run_sweep(points: Sequence[Point], folder: Path, options: Options) -> int:
    """Run the points of a sweep and report on them into ``folder``; the exit code, 0 when nothing failed."""
    with SweepConsole(options.verbose) as console:
        _look(points, folder, options)
        found = Counter(p.found for p in points if p.error is None)
        failed = sum(p.error is not None for p in points)
        line = f"{found['finished']} done, {found['new'] + found['resume']} to run"
        line += f" ({found['resume']} of them go on)" if found["resume"] else ""
        console.out.print(line + (f", {failed} cannot run" if failed else "") + f"; records in {folder}/")
        for remark in dict.fromkeys(p.experiment.remark for p in points if p.experiment and p.experiment.remark):
            console.out.print(remark)
        if options.dry_run:
            _list(points, console)
            return 1 if failed else 0
        _take(folder)
        ready = [p for p in points if p.error is None and p.found != "finished"]
        with _helpers(len(points) if options.executor == "inline" else 0) as submit:
            if not (failed and options.fail_fast):
                _dispatch(ready, options, console, submit)
            for point in points:
                if point.error is not None and point.experiment is None:
                    _record_failure(point)
            console.stop()
            code = _report(points, folder, options, console)
        failures = [p for p in points if p.error is not None]
        for point in failures:
            assert point.error is not None
            console.say(f"failed: {point.overrides}: {describe(point.error)} ({point.folder}/run.log)")
        return max(code, 1 if failures else 0)


def _report(points: Sequence[Point], folder: Path, options: Options, console: SweepConsole) -> int:
    """The table and the pictures of the points; 2 if they were not measured by the metric that was asked for."""
    records = [Record(place) for place in dict.fromkeys(p.folder for p in points) if Record(place).status]
    try:
        report(
            folder,
            records,
            metric=options.metric,
            tail_rounds=options.tail_rounds,
            console=console.out,
            x=options.x,
        )
    except UserError as error:
        console.say(f"fcorun: {error}")
        return 2
    return 0


def value_of(point: Point, options: Options) -> float | None:
    """The tail average of the sweep's metric for a point, for sweepers that optimise; None where there is none."""
    record = Record(point.folder)
    if record.status.get("status") != "done":
        return None
    tail = aggregate(read_rows(record.folder), options.tail_rounds)["tail"]
    return tail.get(options.metric or CATALOGUE.headline(tail))


def _take(folder: Path) -> None:
    """Mark a folder as a sweep's. Raises UserError when it holds files that are not, and that a sweep would replace."""
    clash = [path.name for path in (folder / "results.csv", *folder.glob("*.png")) if path.exists()]
    if clash and not (folder / _MARK).exists():
        raise UserError(f"hydra.sweep.dir={folder} has a file {clash[0]} that is of no sweep; choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MARK).touch()
    except OSError as error:
        raise UserError(f"hydra.sweep.dir={folder} cannot be written ({error.strerror}); choose another") from error


def _look(points: Sequence[Point], folder: Path, options: Options) -> None:
    """Find out which points are done; refuse folders that hold something else."""
    seen: dict[Path, Point] = {}
    for point in points:
        if point.experiment is None:
            continue
        try:
            point.found = RunFolder(point.folder, point.experiment.identity).look(options.force)
            other = seen.setdefault(point.folder, point)
            if other.experiment is not None and other.experiment.identity != point.experiment.identity:
                raise UserError(f"hydra.sweep.subdir gives {point.folder} to different runs; put ${{run_id:}} into it")
        except UserError as error:
            point.error = error
        stale = _failed_folder(folder, point.overrides)
        if not options.dry_run and Record(stale).status:
            RunFolder(stale, "").remove()


def _dispatch(points: list[Point], options: Options, console: SweepConsole, submit: Submit | None) -> None:
    """Run points in groups that differ in numbers and seed only, by the executor that was asked for."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        assert point.experiment is not None
        groups.setdefault(point.experiment.batch_key, []).append(point)
    console.expect(len(points), sum(p.experiment.settings.rounds for p in points if p.experiment))
    size = options.batch or (-(-len(points) // options.n_jobs) if options.executor == "joblib" else len(points))
    cut = [group[i : i + size] for group in groups.values() for i in range(0, len(group), size)]
    if options.executor == "inline":
        in_turn(cut, console, submit, options.fail_fast)
    else:
        from fcorun.runs.executors import EXECUTORS

        EXECUTORS[options.executor](cut, options, console)


@contextmanager
def _helpers(runs: int) -> Iterator[Submit | None]:
    """Processes that complete records and draw pictures beside this one, where there is enough to do."""
    if runs < MANY:
        yield None
        return
    with Helpers(cores(), RECORDS) as helpers:
        yield helpers.submit


def in_turn(
    groups: list[list[Point]], console: SweepConsole, submit: Submit | None = None, fail_fast: bool = False
) -> None:
    """Run the groups one after the other; what another process is computing is waited for at the end."""
    waiting = groups
    while waiting:
        later = []
        for group in waiting:
            run_group(group, console, submit)
            if fail_fast and any(p.error is not None for p in group):
                return
            later.append([p for p in group if p.end == "locked"])
        waiting = [group for group in later if group]
        if waiting:
            console.waits(sum(map(len, waiting)))
            time.sleep(1)


def run_group(group: list[Point], watch: Any, submit: Submit | None = None) -> None:
    """Run points that differ in numbers only; how each ended is noted in it and recorded in its folder."""
    unique = {p.folder: p for p in group}
    jobs = {}
    for folder, point in unique.items():
        assert point.experiment is not None
        jobs[folder] = Job(point.experiment, RunFolder(folder, point.experiment.identity))
    problem: BaseException | None = None
    try:
        run_jobs(list(jobs.values()), watch, submit)
    except Exception as error:  # nothing was begun: the data, or the folders
        problem = error
    for point in group:
        job = jobs[point.folder]
        point.end, point.error = job.end, job.error or (problem if not job.end else None)
        if problem is not None and not job.end and point.experiment is not None:
            point.end = "failed"
            _record_failure(point)
    if any(isinstance(p.error, KeyboardInterrupt) for p in group):
        raise KeyboardInterrupt


def _record_failure(point: Point) -> None:
    """Leave a record of a point that could not begin, unless its folder holds something else."""
    assert point.error is not None
    identity = point.experiment.identity if point.experiment else hashlib.sha256(point.overrides.encode()).hexdigest()
    folder = RunFolder(point.folder, identity)
    try:
        if folder.claim() in ("new", "resume"):
            folder.fail(point.error, point.overrides)
    except UserError:
        pass
    finally:
        folder.release()


def _failed_folder(sweep_dir: Path, overrides: str) -> Path:
    return sweep_dir / f"failed-{hashlib.sha256(overrides.encode()).hexdigest()[:8]}"


def _list(points: Sequence[Point], console: SweepConsole) -> None:
    """The jobs of a sweep and what there is of them."""
    names = {"finished": "done", "resume": "goes on", "new": "to run"}
    for point in points:
        state = f"cannot run, {describe(point.error)}" if point.error else names[point.found]
        console.out.print(f"{point.overrides}: {state} ({point.folder})")
