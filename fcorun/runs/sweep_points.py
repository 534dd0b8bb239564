"""The points of a sweep, the records that exist of them, and the folder that they share."""

import contextlib
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fcorun.base.config import IDENTITY_SECTIONS, Count, CurveAxis, FigureStyle
from fcorun.base.errors import UserError
from fcorun.base.metrics import CATALOGUE, aggregate
from fcorun.base.records.record import Record, RunFolder
from fcorun.base.records.sweep_settings import REPORT_KEYS, SETTINGS_FILE, SweepSettings, load_settings, save_settings
from fcorun.reports.build_table import build_table
from fcorun.reports.run_table import changes_function

if TYPE_CHECKING:
    from fcorun.experiment.experiment import PreparedExperiment


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
        combinations: the indices of the sweep's combinations of values that the point stands for.
        warnings: the warnings about these combinations.
    """

    overrides: str
    folder: Path
    experiment: "PreparedExperiment | None" = None
    folder_state: str = "new"
    end_status: str = ""
    error: BaseException | None = None
    combinations: list[int] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def from_error(cls, overrides: str, sweep_dir: str, error: BaseException) -> "SweepPoint":
        """Return a point whose configuration is not valid. Its record is a failed one."""
        return cls(overrides, _failed_folder(Path(sweep_dir), overrides), error=error)


@dataclass(frozen=True)
class SweepOptions:
    """The options of a sweep: root keys, and keys of hydra.launcher."""

    force: bool = False
    dry_run: bool = False
    fail_fast: bool = False
    metric: str | None = None
    tail_rounds: Count = 100
    x: CurveAxis | str = "rounds"
    style: FigureStyle = "paper"
    verbose: bool = True
    executor: Literal["inline", "joblib", "submitit"] = "inline"
    batch: Count | None = None
    n_jobs: Count = 2
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
    compared = [name for name in measured if not any(changes_function(key, name, runs.metrics) for key in keys)]
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
    objectives = []
    for value, status in zip(runs.tail_values(metric), runs.frame["status"], strict=True):
        is_measured = status == "done" and value == value  # not NaN
        objectives.append(float(runs.metrics.sign(metric) * value) if is_measured else inf)
    return objectives


def find_existing(points: Sequence[SweepPoint], folder: Path, options: SweepOptions) -> None:
    """Set the ``folder_state`` of each point, or its ``error`` if the folder holds something else.

    Removes records of earlier failures of these points.
    """
    from fcorun.runs.finish import has_other_threshold  # imports JAX, before which a sweep begins to load its data

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
            with contextlib.suppress(UserError):  # another sweep is using the folder
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
                                f"them another name, by {section}.name=NAME or in its file")  # fmt: skip


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
        settings = SweepSettings(**report_settings, algos=tuple(dict.fromkeys(algos)), runs=tuple(dict.fromkeys(runs)))
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
