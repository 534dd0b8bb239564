"""The points of a sweep: what they are, what there is of them, and the folder that they share."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Literal

from fcorun.config import Count, CurveAxis, FigureStyle
from fcorun.errors import UserError
from fcorun.experiment.experiment import Experiment
from fcorun.metrics import CATALOGUE, aggregate
from fcorun.records.folder import RunFolder
from fcorun.records.record import Record
from fcorun.records.sweep_settings import REPORT_KEYS, SETTINGS_FILE, SweepSettings, load_settings, save_settings
from fcorun.reports.build_table import build_table
from fcorun.sections import IDENTITY_SECTIONS


@dataclass
class SweepPoint:
    """A run of a sweep.

    Attributes:
        overrides: how the command line would ask for it.
        folder: where its record goes.
        experiment: what it is, or None when that could not be made out.
        found: what was in the folder before: "finished", "resume" or "new".
        end: how it ended, as for fcorun.runs.job.Job.
        error: what went wrong.
        places: which of the sweep's combinations of values it stands for.
        remarks: what a user should know of these.
    """

    overrides: str
    folder: Path
    experiment: Experiment | None = None
    folder_state: str = "new"
    end_status: str = ""
    error: BaseException | None = None
    combinations: list[int] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def from_error(cls, overrides: str, sweep_dir: str, error: BaseException) -> "SweepPoint":
        """A point whose configuration is no good; its record says so."""
        return cls(overrides, _failed_folder(Path(sweep_dir), overrides), error=error)


@dataclass(frozen=True)
class SweepOptions:
    """What a sweep is asked for beside its points: root keys, and those of hydra.launcher."""

    force: bool = False
    dry_run: bool = False
    fail_fast: bool = False
    metric: str | None = None
    tail_rounds: Count = 100
    x: CurveAxis = "rounds"
    style: FigureStyle = "paper"
    verbose: bool = True
    executor: Literal["inline", "joblib", "submitit"] = "inline"
    batch: Count | None = None
    n_jobs: Count = 2
    submitit: dict | None = None


def merge_duplicates(points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """The points without those that are the same run in the same folder as an earlier one, which says so."""
    same: dict[tuple, list[SweepPoint]] = {}
    for place, point in enumerate(points):
        same.setdefault((point.folder, point.experiment.identity) if point.experiment else (place,), []).append(point)
    for first, *others in (group for group in same.values() if len(group) > 1):
        first.combinations = [place for point in (first, *others) for place in point.combinations]
        given = [{text for text in point.overrides.split() if "=" in text} for point in (first, *others)]
        keys = sorted({text.partition("=")[0] for text in set.union(*given) - set.intersection(*given)})
        assert first.experiment is not None
        algo = first.experiment.names["algo"]
        first.warnings.append(f"algo={algo} is the same for all of {', '.join(keys)}: run once")
    return [group[0] for group in same.values()]


def tail_value(point: SweepPoint, options: SweepOptions) -> float | None:
    """The tail average of the sweep's metric for a point, for sweepers that optimise; None where there is none."""
    record = Record(point.folder)
    if record.status.get("status") != "done":
        return None
    metrics = point.experiment.metrics if point.experiment else CATALOGUE
    stopped = bool(record.summary.get("stopped"))
    tail = aggregate(record.rows, options.tail_rounds, metrics, stopped=stopped)["tail"]
    return tail.get(options.metric or metrics.default_metric(tail))


def choose_search_metric(points: Sequence[SweepPoint], is_excluded: Callable[[str], bool]) -> str | None:
    """The metric that a search goes by where none is given: the headline of what its first points have measured, but
    for those that set them ``apart``. None while there is nothing to choose from."""
    runs = build_table([Record(point.folder) for point in points])
    names = [name for name in runs.tail_metrics if runs.metrics[name].higher is not None and not is_excluded(name)]
    return runs.metrics.default_metric(names) if names else None


def objective_values(points: Sequence[SweepPoint], metric: str | None, tail_rounds: int) -> list[float]:
    """What a search makes small, for each point: the tail average of the metric, negative where more of it is better;
    inf for a point that is not done. Raises UserError for a metric that was not measured."""
    runs = build_table([Record(point.folder) for point in points], tail_rounds)
    metric = runs.resolve_metric(metric)
    values = runs.metrics.sign(metric) * runs.tail_values(metric)
    done = [status == "done" for status in runs.frame["status"]]
    return [float(v) if ok and v == v else inf for v, ok in zip(values, done, strict=True)]


def find_existing(points: Sequence[SweepPoint], folder: Path, options: SweepOptions) -> None:
    """Find out which points are done; refuse folders that hold something else."""
    seen: dict[Path, SweepPoint] = {}
    for point in points:
        if point.experiment is None:
            continue
        if point.end_status:  # a batch of a search before this one has run it
            point.folder_state = "finished"
            continue
        try:
            there = RunFolder(point.folder, point.experiment.identity)
            point.folder_state = there.inspect(options.force)
            if point.folder_state == "finished" and not options.dry_run:
                there.touch()
            other = seen.setdefault(point.folder, point)
            if other.experiment is not None and other.experiment.identity != point.experiment.identity:
                raise UserError(f"hydra.sweep.subdir gives {point.folder} to different runs; put ${{run_id:}} into it")
        except UserError as error:
            point.error = error
        stale = _failed_folder(folder, point.overrides)
        if not options.dry_run and Record(stale).status:
            with contextlib.suppress(UserError):  # another sweep is at it
                RunFolder(stale, "").remove()


def check_unique_names(points: Sequence[SweepPoint]) -> None:
    """Raises UserError where plug-ins of different code have one name, by which tables would take them for one."""
    experiments = [point.experiment for point in points if point.experiment is not None]
    for section in IDENTITY_SECTIONS:
        classes: dict[str, str] = {}
        for experiment in experiments:
            name, now = experiment.names[section], experiment.config[section]["class"]
            first = classes.setdefault(name, now)
            if first != now:
                raise UserError(f"{section}.name={name} stands for two classes, {first} and {now}: give one of them "
                                f"another name, by {section}.name=NAME or in its file")  # fmt: skip


def claim(folder: Path, points: Sequence[SweepPoint], options: SweepOptions) -> None:
    """Mark a folder as a sweep's, and keep what it was asked for. Raises UserError when it holds files that are no
    sweep's, and that a sweep would replace."""
    clash = [path.name for path in (folder / "results.csv", *folder.glob("*.png")) if path.exists()]
    if clash and not (folder / SETTINGS_FILE).exists():
        raise UserError(f"hydra.sweep.dir={folder} has a file {clash[0]} that is of no sweep; choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        algos = dict.fromkeys(
            (*load_settings(folder).algos, *(p.experiment.names["algo"] for p in points if p.experiment))
        )
        runs = dict.fromkeys(os.path.relpath(p.folder, folder) for p in points)
        told = {name: getattr(options, name) for name in REPORT_KEYS}
        save_settings(folder, SweepSettings(**told, algos=tuple(algos), runs=tuple(runs)))
    except OSError as error:
        raise UserError(f"hydra.sweep.dir={folder} cannot be written ({error.strerror}); choose another") from error


def record_failure(point: SweepPoint) -> None:
    """Leave a record of a point that could not begin, unless its folder holds something else."""
    assert point.error is not None
    identity = point.experiment.identity if point.experiment else hashlib.sha256(point.overrides.encode()).hexdigest()
    folder = RunFolder(point.folder, identity)
    try:
        if folder.claim(label=point.overrides) in ("new", "resume"):
            folder.mark_failed(point.error, point.overrides)
    except UserError:
        pass
    finally:
        folder.release()


def _failed_folder(sweep_dir: Path, overrides: str) -> Path:
    return sweep_dir / f"failed-{hashlib.sha256(overrides.encode()).hexdigest()[:8]}"
