"""One run on its way, and who is told of it."""

import contextlib
from dataclasses import dataclass, field
from typing import Any

from fcorun.datasets.base import FederatedData
from fcorun.engine.engine import Snapshot
from fcorun.experiment.ending import grown, judged, met
from fcorun.experiment.experiment import Experiment
from fcorun.metrics import COUNTERS, PERSONAL
from fcorun.records.folder import RunFolder
from fcorun.records.record import FINISHED, Record


class Watcher:
    """What is told of runs as they go; does nothing. Methods are called from the threads that run."""

    def starts(self, job: "Job", data: FederatedData, resumed: int) -> None:
        """A run begins, or goes on after ``resumed`` rounds."""

    def row(self, job: "Job", row: dict[str, float]) -> None:
        """A run was evaluated."""

    def ends(self, job: "Job") -> None:
        """A run is over: its ``end`` is done, diverged, failed, interrupted, reused or locked."""


class SweepWatcher(Watcher):
    """What is told of a sweep, too; does nothing."""

    out: Any = None  # a rich.console.Console for what is shown, or None

    def say(self, line: str) -> None:
        """A line that is shown whatever was asked for."""

    def tell(self, line: str) -> None:
        """A line for who wants to know."""

    def expect(self, runs: int, rounds: int) -> None:
        """So many runs are to come, with so many rounds in all."""

    def waits(self, runs: int) -> None:
        """Another process is computing the rest."""

    def over(self, run: Any) -> None:
        """A run is over (its ``end`` says how), here or in another process."""

    def stop(self) -> None:
        """No more runs."""


@dataclass
class Evaluated:
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
    up: int = field(default=0, kw_only=True)
    down: int = field(default=0, kw_only=True)
    diverged: int = field(default=0, kw_only=True)
    grown: str = field(default="", kw_only=True)
    reason: str = field(default="", kw_only=True)
    stopped: bool = field(default=False, kw_only=True)

    def note(self, now: Snapshot, place: int, sent: dict[str, int], seconds: float) -> dict[str, float]:
        """Add the evaluation of the run at a ``place`` in its batch, which has ``sent`` so many bytes; the new row."""
        evals = dict(zip(("grad_evals", "prox_evals"), now.work[place].tolist(), strict=True))
        counters = {"round": now.round, "seconds": seconds, **sent, **evals}
        return self.add(counters, {name: float(value[place]) for name, value in now.metrics.items()})

    def add(self, counters: dict[str, float], metrics: dict[str, float]) -> dict[str, float]:
        """Add an evaluation, with the gap to the optimum where that is known; the new row.

        Nothing is kept of a model for all clients that the run does not have.
        """
        if not self.experiment.has_shared_model:
            metrics = {name: value for name, value in metrics.items() if name.startswith(PERSONAL)}
        elif self.optimum is not None:
            metrics["suboptimality"] = metrics["objective"] - self.optimum["objective"]
        self.rows.append(counters | self.experiment.metrics.in_order(metrics))
        return self.rows[-1]

    def meets(self) -> bool:
        """Whether the last evaluation has met a target, which is remarked. Raises UserError as ``met`` does."""
        targets = self.experiment.settings.stop
        if targets and (reason := met(targets, self.rows, self.experiment.metrics)):
            self.stopped = True
            self.remark(reason)
        return self.stopped

    def judge_growth(self) -> None:
        """Note that a run which is over has diverged, if its objective rose without bounds."""
        if not (self.diverged or self.stopped) and (why := grown(self.rows)):
            self.grown, self.diverged = why, int(self.rows[-1]["round"])

    def remark(self, words: str) -> None:
        """Add a remark, if it is not empty."""
        self.reason = "; ".join(filter(None, (self.reason, words)))


@dataclass
class Job(Evaluated):
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
        unfinished: what says that its objective was still falling at the end, of fcorun.experiment.ending.unfinished.
        moved: by which share of the largest coefficient steps of proximal gradient on all rows move one from where the
            run has ended, of fcorun.experiment.stationarity; None: not looked at.
        bounds: of the curvature, with the numbers that follow from them, where the algorithm asks for them.
    """

    folder: RunFolder
    picture: bool = False
    end: str = ""
    error: BaseException | None = None
    setup: float = 0.0
    certificate: dict | None = None
    drawn: bool = False
    devices: int = 1
    hosts: int = 1
    where: str = ""
    unfinished: dict | None = None
    moved: float | None = None
    bounds: dict | None = None

    @property
    def label(self) -> str:
        """A line that says which run this is."""
        return self.experiment.label

    def headline(self) -> str:
        """The objective of the last evaluation, or of own models alone their loss, and the metric that matters most."""
        row = self.rows[-1]
        metric = self.experiment.metrics.headline([name for name in row if name not in COUNTERS])
        first = "objective" if "objective" in row else judged(row)
        text = f"{first} {row[first]:.6g}"
        return text if metric == first else f"{text}  {metric} {row[metric]:.4g}"

    def resolution(self) -> float:
        """The least gap to the optimum that the precision of this run can tell from none; 0 where none is measured."""
        eps = {"float32": 1e-6, "float64": 1e-14}[self.experiment.settings.precision]
        return eps * abs(self.optimum["objective"]) if self.optimum else 0.0

    def finished(self) -> bool:
        """Whether the record is complete although nobody has noted it: the process was stopped just then."""
        status = Record(self.folder.folder).status
        if status.get("identity") == self.folder.identity and status.get("status") in FINISHED:
            self.end = status["status"]
        return bool(self.end)

    def fail(self, error: BaseException) -> None:
        """Record that the run failed, or was interrupted; where not even that can be written, only note it."""
        self.error = error
        if isinstance(error, KeyboardInterrupt):
            self.end, reason = "interrupted", f"stopped after round {self.rows[-1]['round'] if self.rows else 0}"
            with contextlib.suppress(OSError):
                self.folder.log(f"interrupted: {reason}")
                self.folder.set_status("interrupted", self.label, reason)
        else:
            self.end = "failed"
            with contextlib.suppress(OSError):
                self.folder.fail(error, self.label)
