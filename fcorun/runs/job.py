"""One run on its way, and who is told of it."""

import contextlib
from dataclasses import dataclass, field
from typing import Any

from fcorun.datasets.base import FederatedData
from fcorun.engine.engine import Snapshot
from fcorun.experiment.convergence import describe_met_target, explain_growth, minimised_metric
from fcorun.experiment.experiment import Experiment
from fcorun.metrics import COUNTERS, PERSONAL_PREFIX
from fcorun.records.folder import RunFolder
from fcorun.records.record import FINISHED_STATUSES, Record


class Watcher:
    """What is told of runs as they go; does nothing. Methods are called from the threads that run."""

    def on_start(self, job: "Job", data: FederatedData, resumed: int) -> None:
        """A run begins, or goes on after ``resumed`` rounds."""

    def on_evaluation(self, job: "Job", row: dict[str, float]) -> None:
        """A run was evaluated."""

    def on_end(self, job: "Job") -> None:
        """A run is over: its ``end`` is done, diverged, failed, interrupted, reused or locked."""


class SweepWatcher(Watcher):
    """What is told of a sweep, too; does nothing."""

    console: Any = None  # a rich.console.Console for what is shown, or None

    def show(self, line: str) -> None:
        """A line that is shown whatever was asked for."""

    def show_if_verbose(self, line: str) -> None:
        """A line for who wants to know."""

    def on_sweep_start(self, runs: int, rounds: int) -> None:
        """So many runs are to come, with so many rounds in all."""

    def on_wait(self, runs: int) -> None:
        """Another process is computing the rest."""

    def on_point_end(self, run: Any) -> None:
        """A run is over (its ``end`` says how), here or in another process."""

    def on_sweep_end(self) -> None:
        """No more runs."""


@dataclass
class RunHistory:
    """The evaluations of a run, as its record has them.

    Attributes:
        rows: one each.
        optimum: of fcorun.experiment.reference.optimum.
        up, down: bytes of an upload, and of what a client receives.
        diverged: the round in which its state stopped being finite, or after which it had ``grown``; else 0.
        grown: that its objective rose without bounds, as a sentence, or nothing.
        reason: remarks on a run that is done.
        stopped: whether it has met a target of ``stop``, which is then its reason.
    """

    experiment: Experiment
    rows: list[dict[str, float]] = field(default_factory=list, kw_only=True)
    optimum: dict | None = field(default=None, kw_only=True)
    upload_bytes: int = field(default=0, kw_only=True)
    download_bytes: int = field(default=0, kw_only=True)
    divergence_round: int = field(default=0, kw_only=True)
    divergence_reason: str = field(default="", kw_only=True)
    reason: str = field(default="", kw_only=True)
    stopped: bool = field(default=False, kw_only=True)

    def add_snapshot(self, now: Snapshot, place: int, sent: dict[str, int], seconds: float) -> dict[str, float]:
        """Add the evaluation of the run at a ``place`` in its batch, which has ``sent`` so many bytes; the new row."""
        evals = dict(zip(("grad_evals", "prox_evals"), now.work[place].tolist(), strict=True))
        counters = {"round": now.round, "seconds": seconds, **sent, **evals}
        return self.add_row(counters, {name: float(value[place]) for name, value in now.metrics.items()})

    def add_row(self, counters: dict[str, float], metrics: dict[str, float]) -> dict[str, float]:
        """Add an evaluation, with the gap to the optimum where that is known; the new row.

        Nothing is kept of a model for all clients that the run does not have.
        """
        if not self.experiment.has_shared_model:
            metrics = {name: value for name, value in metrics.items() if name.startswith(PERSONAL_PREFIX)}
        elif self.optimum is not None:
            metrics["suboptimality"] = metrics["objective"] - self.optimum["objective"]
        self.rows.append(counters | self.experiment.metrics.sort(metrics))
        return self.rows[-1]

    def check_targets(self) -> bool:
        """Whether the last evaluation has met a target, which is remarked. Raises UserError as ``met`` does."""
        targets = self.experiment.settings.stop
        if targets and (reason := describe_met_target(targets, self.rows, self.experiment.metrics)):
            self.stopped = True
            self.add_reason(reason)
        return self.stopped

    def check_growth(self) -> None:
        """Note that a run which is over has diverged, if its objective rose without bounds."""
        if not (self.divergence_round or self.stopped) and (why := explain_growth(self.rows)):
            self.divergence_reason, self.divergence_round = why, int(self.rows[-1]["round"])

    def add_reason(self, words: str) -> None:
        """Add a remark, if it is not empty."""
        self.reason = "; ".join(filter(None, (self.reason, words)))


@dataclass
class Job(RunHistory):
    """What a run is, where it goes, and how far it has come.

    Attributes:
        picture: whether the record gets a curves.png.
        end: how it ended, empty until then. A finished record that was found ends it as "reused", a folder that another
            process is computing as "locked".
        error: why it failed.
        setup: seconds before its first compilation.
        certificate: of a baseline.
        drawn: whether its seed changes anything.
        devices: on how many it is computed, of all hosts together.
        hosts: on how many it is computed.
        where: at which client it diverged, and in which line, if that is known (``debug``).
        unfinished: what says that its objective was still falling at the end, of
            fcorun.experiment.convergence.unfinished.
        moved: by which share of the largest coefficient steps of proximal gradient on all rows move one from where the
            run has ended, of fcorun.experiment.stationarity; None: not looked at.
        bounds: of the curvature, with the numbers that follow from them, where the algorithm asks for them.
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
    divergence_origin: str = ""
    remaining_descent: dict | None = None
    movement: float | None = None
    resolved_values: dict | None = None

    @property
    def label(self) -> str:
        """A line that says which run this is."""
        return self.experiment.label

    def headline(self) -> str:
        """The objective of the last evaluation, or of own models alone their loss, and the metric that matters most."""
        row = self.rows[-1]
        metric = self.experiment.metrics.default_metric([name for name in row if name not in COUNTERS])
        first = "objective" if "objective" in row else minimised_metric(row)
        text = f"{first} {row[first]:.6g}"
        return text if metric == first else f"{text}  {metric} {row[metric]:.4g}"

    def objective_resolution(self) -> float:
        """The least gap to the optimum that the precision of this run can tell from none; 0 where none is measured."""
        eps = {"float32": 1e-6, "float64": 1e-14}[self.experiment.settings.precision]
        return eps * abs(self.optimum["objective"]) if self.optimum else 0.0

    def is_complete(self) -> bool:
        """Whether the record is complete although nobody has noted it: the process was stopped just then."""
        status = Record(self.run_folder.path).status
        if status.get("identity") == self.run_folder.identity and status.get("status") in FINISHED_STATUSES:
            self.end_status = status["status"]
        return bool(self.end_status)

    def fail(self, error: BaseException) -> None:
        """Record that the run failed, or was interrupted; where not even that can be written, only note it."""
        self.error = error
        if isinstance(error, KeyboardInterrupt):
            self.end_status, reason = "interrupted", f"stopped after round {self.rows[-1]['round'] if self.rows else 0}"
            with contextlib.suppress(OSError):
                self.run_folder.log(f"interrupted: {reason}")
                self.run_folder.write_status("interrupted", self.label, reason)
        else:
            self.end_status = "failed"
            with contextlib.suppress(OSError):
                self.run_folder.mark_failed(error, self.label)
