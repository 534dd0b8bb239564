"""The points of a sweep: a run each, which those that differ in numbers only are computed with as one group."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fcorun.base.errors import HostLost, UserError
from fcorun.base.records.formats import yaml_text
from fcorun.base.records.record import Record, RunFolder
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.runs.job import Job, SweepWatcher
from fcorun.runs.run_experiments import run_jobs
from fcorun.runs.shared_cores import SharedCores

# returns an experiment with the strength that its own rows choose, and what the choice was, as summary.json has it
StrengthChoice = Callable[[PreparedExperiment], tuple[PreparedExperiment, dict[str, Any]]]


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
        choose_strength: chooses its strength, if it has ``study.strength``.
        combinations: the indices of the sweep's combinations of values that the point stands for.
        warnings: the warnings about these combinations.
    """

    overrides: str
    folder: Path
    experiment: PreparedExperiment | None = None
    folder_state: str = "new"
    end_status: str = ""
    error: BaseException | None = None
    choose_strength: StrengthChoice | None = None
    combinations: list[int] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def from_error(cls, overrides: str, sweep_dir: str, error: BaseException) -> "SweepPoint":
        """Return a point whose configuration is not valid. Its record is a failed one."""
        return cls(overrides, failed_folder(Path(sweep_dir), overrides), error=error)

    @property
    def is_over(self) -> bool:
        """Return whether the run has ended; a ``locked`` one, which another process computes, has not."""
        return self.end_status not in ("", "locked")


PointGroups = Sequence[list[SweepPoint]]  # points of a group differ in numbers and seed only


def failed_folder(sweep_dir: Path, overrides: str) -> Path:
    """Return the folder of the failed record of a point whose configuration is not valid."""
    return sweep_dir / f"failed-{_digest(overrides)[:8]}"


def remove_record(folder: Path) -> None:
    """Delete the record in a folder, if there is one, unless another process computes it or the folder is another's."""
    if Record(folder).status:
        with suppress(UserError):
            RunFolder(folder, "").remove()


def record_failure(point: SweepPoint) -> None:
    """Write a failed record of a point that could not start, unless its folder holds something else."""
    assert point.error is not None
    identity = point.experiment.identity if point.experiment else _digest(point.overrides)
    run_folder = RunFolder(point.folder, identity)
    try:
        if run_folder.claim(label=point.overrides) in ("new", "resume"):
            if point.experiment:
                run_folder.write_file("config.yaml", yaml_text(point.experiment.config))
            run_folder.mark_failed(point.error, point.overrides)
    except UserError:
        pass
    finally:
        run_folder.release()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def run_group(
    group: list[SweepPoint], watch: SweepWatcher, cores: SharedCores | None = None, keeps_places: bool = False
) -> None:
    """Run the points of a group that are not over. Sets the ``end_status`` and ``error`` of each.

    Args:
        cores: those that the group shares with others, which run in other threads; None: all of the machine.
        keeps_places: as for ``run_jobs``.
    """
    jobs = {}
    for point in group:
        assert point.experiment is not None
        run_folder = RunFolder(point.folder, point.experiment.identity)
        job = Job(point.experiment, run_folder, choose_strength=point.choose_strength)
        if point.is_over:
            job.end_status, job.error = point.end_status, point.error
        jobs[point.folder] = job
    group_error: BaseException | None = None
    try:
        run_jobs(list(jobs.values()), watch, cores, keeps_places)
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
