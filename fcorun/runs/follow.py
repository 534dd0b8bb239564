"""The one way to follow runs that an engine computes: rows of metrics, costs, targets, divergence, and the end."""

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fcorun.base.metrics import PERSONAL_PREFIX
from fcorun.base.system.files import check_interrupted
from fcorun.engine.engine import Engine, Snapshot, build_traffic, counted_broadcast_bytes
from fcorun.engine.federation import Numbers
from fcorun.engine.round import Traffic
from fcorun.engine.segments.client_states import ClientStateFile
from fcorun.experiment.experiment import (
    PreparedExperiment,
    describe_met_target,
    describe_unresolved_gap,
    explain_growth,
)
from fcorun.experiment.optimum import identification_metrics
from fcorun.methods.algorithms.algorithm import Baseline, PyTree
from fcorun.methods.communication.contracts import MessageBytes
from fcorun.runs.several_hosts import run_rounds


@dataclass
class RunHistory:
    """The evaluations of a run, as its record has them.

    Attributes:
        rows: the evaluations, with their counters and metrics.
        optimum: the result of ``fcorun.experiment.optimum.compute_optimum``; None without ``reference``.
        divergence_round: the round in which the state stopped being finite, or after which the objective had grown
            without bounds; 0 if the run has not diverged.
        divergence_reason: a sentence on an objective that grew without bounds, or empty.
        divergence_origin: the client at which a run diverged first, and the line of code, if known (``debug``).
        reason: the sentences on a run that go into status.json.
        stopped: whether the run has met a target of ``stop``, which is then the reason.
        message_bytes: the bytes of the messages of a round; None: the rows have no costs.
    """

    experiment: PreparedExperiment
    rows: list[dict[str, float]] = field(default_factory=list, kw_only=True)
    optimum: dict | None = field(default=None, kw_only=True)
    divergence_round: int = field(default=0, kw_only=True)
    divergence_reason: str = field(default="", kw_only=True)
    divergence_origin: str = field(default="", kw_only=True)
    reason: str = field(default="", kw_only=True)
    stopped: bool = field(default=False, kw_only=True)
    message_bytes: MessageBytes | None = field(default=None, kw_only=True)

    def add_snapshot(
        self, snapshot: Snapshot, index: int, traffic: Mapping[str, float], seconds: float
    ) -> dict[str, float]:
        """Add the evaluation of the run at ``index`` in its batch, and return the new row.

        Args:
            traffic: the bytes that the run has sent so far, and its simulated time, by counter.
        """
        evaluations = dict(zip(("grad_evals", "prox_evals"), snapshot.work[index].tolist(), strict=True))
        counters = {"round": snapshot.round, "seconds": seconds, **traffic, **evaluations}
        metrics = {name: float(values[index]) for name, values in snapshot.metrics.items()}
        pattern = (self.optimum or {}).get("pattern")
        if pattern is not None and self.experiment.has_shared_model:
            solution = {name: np.asarray(snapshot.solution[name][index]) for name in pattern}
            metrics |= identification_metrics(pattern, solution, self.rows, snapshot.round)
        return self.add_row(counters, metrics)

    def add_row(self, counters: dict[str, float], metrics: dict[str, float]) -> dict[str, float]:
        """Add an evaluation, with the gap to the reference optimum if that is known, and return the new row.

        Metrics of a shared model are left out if the run has no such model.
        """
        if not self.experiment.has_shared_model:
            algorithm_metrics = self.experiment.algorithm_metrics
            metrics = {
                k: value for k, value in metrics.items() if k.startswith(PERSONAL_PREFIX) or k in algorithm_metrics
            }
        elif self.optimum is not None:
            metrics["suboptimality"] = metrics["objective"] - self.optimum["objective"]
        self.rows.append(counters | self.experiment.metrics.sort(metrics))
        return self.rows[-1]

    def resolution(self, objective: float) -> float:
        """Return the smallest gap to the optimum that the run's precision resolves at this objective."""
        precision = "float64" if isinstance(self.experiment.algo, Baseline) else self.experiment.settings.precision
        return {"float32": 1e-6, "float64": 1e-14}[precision] * abs(objective)

    def check_targets(self) -> bool:
        """Return whether the run has met a target of ``stop``; the last evaluation may have just met one.

        Raises UserError for a target on a metric that was not measured.
        """
        targets = self.experiment.settings.stop
        if targets:
            resolution = self.resolution(self.rows[-1].get("objective", 0.0))
            sentence = describe_unresolved_gap(targets, self.rows[-1], resolution)
            sentence = sentence or describe_met_target(targets, self.rows, self.experiment.metrics)
            if sentence:
                self.stopped = True
                self.add_reason(sentence)
        return self.stopped

    def check_growth(self) -> None:
        """Mark a run that is over as diverged if its objective grew without bounds."""
        if self.divergence_round or self.stopped:
            return
        sentence = explain_growth(self.rows)
        if sentence:
            self.divergence_reason = sentence
            self.divergence_round = int(self.rows[-1]["round"])

    def add_reason(self, sentence: str) -> None:
        """Add a sentence to the reason, unless it is empty."""
        self.reason = "; ".join(filter(None, (self.reason, sentence)))


@dataclass(frozen=True)
class Start:
    """The point from which a batch of runs continues: its beginning, or the snapshot of a checkpoint.

    Attributes:
        state: all that the runs need to go on, with a leading axis for the runs; None: their beginning.
        round: the number of rounds done.
        seconds: the running time so far, of all runs together.
        work: the numbers of gradients and proxes evaluated so far, (G, 2); None: none.
    """

    state: PyTree = None
    round: int = 0
    seconds: float = 0.0
    work: np.ndarray | None = None


@dataclass
class RunFollower:
    """A batch of runs that one program computes, whose evaluations become the histories of the runs.

    Attributes:
        runs: the history of each run. None at all: nothing is noted, and the batch goes to its last round.
        points: the numbers of each run.
        width: the number of runs of the program, which copies of the last run fill; None: as many as ``points``.
        traffic: the bytes sent in the runs of each seed; built on demand.
        on_row: called with a history and each row that joins it.
        stop: set to end the runs by KeyboardInterrupt.
        snapshot: the last evaluation of all runs; None before the first.
    """

    engine: Engine
    runs: Sequence[RunHistory]
    points: Sequence[Numbers]
    width: int | None = None
    traffic: Mapping[int, Traffic] = field(default_factory=dict)
    on_row: Callable[[Any, dict[str, float]], None] = lambda run, row: None
    stop: threading.Event = field(default_factory=threading.Event)
    snapshot: Snapshot | None = None

    def follow(
        self, start: Start = Start(), client_states: Sequence[ClientStateFile] | None = None
    ) -> Generator[Snapshot, None, None]:
        """Yield each evaluation after each run that continues has a row of it; end when no run continues.

        A run continues until it diverges, or meets a target of ``stop``. The caller closes the generator.

        Args:
            client_states: the states of generated clients for each run, as for ``Engine.run``.

        Raises:
            KeyboardInterrupt: a signal was noted, or ``stop`` is set.
        """
        engine = self.engine
        width = self.width or len(self.points)
        seeds = [run.experiment.settings.seed for run in self.runs] or [engine.federation.schedule.seed]
        if not self.traffic:
            self.traffic = {seed: build_traffic(engine.federation, engine.rounds, seed) for seed in set(seeds)}
        engine.federation.nonfinite_clients.clear()
        snapshots = run_rounds(
            engine,
            repeat_last(self.points, width),
            repeat_last(seeds, width),
            start.state,
            start.round,
            elapsed_seconds=start.seconds,
            work=start.work,
            client_states=client_states,
        )
        try:
            for snapshot in snapshots:
                self.snapshot = snapshot
                for i, run in enumerate(self.runs):
                    if not run.stopped:
                        self._note_evaluation(run, i, snapshot)
                yield snapshot
                if self.runs and all(run.stopped or run.divergence_round for run in self.runs):
                    return
                check_interrupted()
                if self.stop.is_set():
                    raise KeyboardInterrupt
        finally:
            snapshots.close()

    def _note_evaluation(self, run: RunHistory, index: int, snapshot: Snapshot) -> None:
        """Note the divergence of the run at ``index``, or else its new row, and whether it has met a target."""
        federation = self.engine.federation
        run.divergence_round = int(snapshot.diverged[index])
        if run.divergence_round in federation.nonfinite_clients:
            run.divergence_origin = f", first in client {federation.nonfinite_clients[run.divergence_round]}"
        if run.divergence_round:
            return
        if not run.rows or run.rows[-1]["round"] < snapshot.round:
            costs: dict[str, float] = {}
            if run.message_bytes is not None:
                traffic = self.traffic[run.experiment.settings.seed]
                traffic.check_gradients(snapshot.round, int(snapshot.work[index][0]))
                counted = counted_broadcast_bytes(federation, snapshot.state, index)
                costs |= traffic.bytes_after(snapshot.round, run.message_bytes, counted)
                costs |= traffic.times_after(snapshot.round, run.message_bytes)
            row = run.add_snapshot(snapshot, index, costs, snapshot.seconds / len(self.runs))
            self.on_row(run, row)
        run.check_targets()  # also on a row of a checkpoint: the interruption may have come before the record's end


def repeat_last(values: Sequence, length: int) -> list:
    """Repeat the last value so that the list has ``length`` values."""
    return [*values, *[values[-1]] * (length - len(values))]
