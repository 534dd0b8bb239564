"""A run in progress, the watchers that follow it, and the progress that its folder shows."""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fcorun.base.metrics import COUNTERS
from fcorun.base.records.record import FINISHED_STATUSES, Record, RunFolder
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.tables.label_file import label_column
from fcorun.experiment.experiment import minimized_metric
from fcorun.methods.algorithms.algorithm import Algorithm
from fcorun.runs.follow import RunHistory

_PAUSE = 1.0  # seconds between two lines of progress
_SHARE = 0.05  # the largest share of the time that writing progress takes


class Watcher:
    """Callbacks on runs. These do nothing; a subclass overrides some. They are called from the threads that run."""

    def on_start(self, job: "Job", data: FederatedData, resumed: int) -> None:
        """Follow the start of a run, or its resumption after ``resumed`` rounds."""

    def on_evaluation(self, job: "Job", row: dict[str, float]) -> None:
        """Follow an evaluation of a run, whose ``row`` joins metrics.csv."""

    def on_end(self, job: "Job") -> None:
        """Follow the end of a run: ``end_status`` is done, diverged, failed, interrupted, reused or locked."""


class SweepWatcher(Watcher):
    """Callbacks on a sweep and its runs. These do nothing.

    Attributes:
        console: a rich.console.Console on which tables are shown; None: tables are not shown.
    """

    console: Any = None

    def show(self, line: str) -> None:
        """Show a line."""

    def show_if_verbose(self, line: str) -> None:
        """Show a line unless ``verbose`` is off."""

    def on_sweep_start(self, runs: int, rounds: int) -> None:
        """Follow the start of a sweep of so many ``runs``, with so many ``rounds`` in all."""

    def on_wait(self, runs: int) -> None:
        """Follow the waiting for the last ``runs``, which another process is computing."""

    def on_point_end(self, run: Any) -> None:
        """Follow the end of a run, in this or another process: ``run.end_status`` says how it ended."""

    def on_sweep_end(self) -> None:
        """Follow the end of the last run."""


@dataclass
class Job(RunHistory):
    """A run in progress: its experiment, its folder, and its history so far.

    Attributes:
        with_pictures: whether the record gets pictures.
        end_status: the status in which the run ended, empty until then: as in status.json, "reused" for a finished
            record that was found, or "locked" for a folder that another process is computing.
        error: the error that made the run fail.
        setup_seconds: the seconds before its first compilation.
        certificate: the certificate of a baseline, or the optimality gap of a run.
        depends_on_seed: whether the seed changes any number of the run.
        n_devices: the number of devices that compute the run, of all hosts together.
        n_hosts: the number of hosts that compute the run.
        remaining_descent: the result of ``measure_remaining_descent`` at the end of the run.
        movement: the result of ``measure_movement`` at the end of the run; None: not measured.
        resolved_values: the numbers of fields that were "auto", and the curvature bounds behind them.
    """

    run_folder: RunFolder
    with_pictures: bool = False
    end_status: str = ""
    error: BaseException | None = None
    setup_seconds: float = 0.0
    certificate: dict | None = None
    depends_on_seed: bool = False
    n_devices: int = 1
    n_hosts: int = 1
    remaining_descent: dict | None = None
    movement: float | None = None
    resolved_values: dict | None = None

    @property
    def label(self) -> str:
        """The plug-ins and numbers of the run in one line."""
        return self.experiment.label

    @property
    def picture_title(self) -> str:
        """The title of the run's pictures."""
        return self.experiment.settings.title or self.label

    def title_held_out_rows(self, data: FederatedData) -> str:
        """Return the title of pictures of held-out rows: without the key ``title``, the label of a table's target."""
        target = getattr(self.experiment.data, "target", None)
        if self.experiment.settings.title or not target:
            return self.picture_title
        return label_column(str(target), data.features.labels, with_unit=False)

    def headline(self) -> str:
        """Return the minimized metric and the default metric of the last evaluation as text."""
        row = self.rows[-1]
        metric = self.experiment.metrics.default_metric([name for name in row if name not in COUNTERS])
        minimized = "objective" if "objective" in row else minimized_metric(row)
        text = f"{minimized} {row[minimized]:.6g}"
        return text if metric == minimized else f"{text}  {metric} {row[metric]:.4g}"

    def adopt_finished_record(self) -> bool:
        """Return whether the record is complete, and take its status over.

        A record is complete before ``end_status`` is set if the process was stopped between the two.
        """
        status = Record(self.run_folder.path).status
        if status.get("identity") == self.run_folder.identity and status.get("status") in FINISHED_STATUSES:
            self.end_status = status["status"]
        return bool(self.end_status)

    def fail(self, error: BaseException) -> None:
        """Record that the run failed or was interrupted. If the record cannot be written, only set the status."""
        self.error = error
        if isinstance(error, KeyboardInterrupt):
            self.end_status = "interrupted"
            last_round = self.rows[-1]["round"] if self.rows else 0
            reason = f"stopped after round {last_round}"
            with contextlib.suppress(OSError):
                self.run_folder.log(f"interrupted: {reason}")
                self.run_folder.write_status("interrupted", self.label, reason)
        else:
            self.end_status = "failed"
            with contextlib.suppress(OSError):
                self.run_folder.mark_failed(error, self.label)


@dataclass
class Progress:
    """The progress of the runs of a batch, written to their folders: to run.log, and to status.json.

    Attributes:
        due: the earliest time of the next lines, by ``time.monotonic``.
    """

    due: float = 0.0

    def log_progress(self, jobs: Sequence[Job], seconds_left: float | None, last: bool = False) -> None:
        """Log the last evaluation of each job, unless the lines before are recent; a ``last`` evaluation always."""
        started = time.monotonic()
        if started < self.due and not last:
            return
        for job in jobs:
            rounds_done, rounds = job.rows[-1]["round"], job.experiment.settings.rounds
            progress = f"iteration {rounds_done}"  # of a baseline
            if isinstance(job.experiment.algo, Algorithm):
                percent = f" ({100 * rounds_done / rounds:.0f} %)" if rounds else ""
                progress = f"round {rounds_done} of {rounds}{percent}"
            time_left = "" if seconds_left is None else f", about {format_duration(seconds_left)} left"
            job.run_folder.log(f"{progress}: {job.headline()}{time_left}")
            if not last:  # the final status is about to be written
                job.run_folder.mark_running(job.label, f"{progress}{time_left}", round=rounds_done)
        ended = time.monotonic()
        self.due = ended + max(_PAUSE, (ended - started) / _SHARE)


def format_duration(seconds: float) -> str:
    """Format a time in the unit that suits its size.

    >>> format_duration(0.4), format_duration(59), format_duration(59.6), format_duration(200), format_duration(20_000)
    ('0 s', '59 s', '1 min', '3 min', '5.6 h')
    """
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    if round(seconds / 60) < 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
