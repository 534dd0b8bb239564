"""A run in progress, the watchers that show it, and the one way to follow runs that an engine computes.

Following makes rows of metrics, with their costs, and notes targets, divergence and the end.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from fcorun.base.metrics import COUNTERS
from fcorun.base.records.formats import describe_formulas, yaml_text
from fcorun.base.records.record import FINISHED_STATUSES, Record, RunFolder
from fcorun.base.system.files import check_interrupted
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.tables.label_file import label_column
from fcorun.engine.engine import Engine, Snapshot, build_traffic, counted_broadcast_bytes, counted_upload_bytes
from fcorun.engine.federation import Numbers
from fcorun.engine.segments.client_states import ClientStateFile
from fcorun.engine.traffic import Traffic
from fcorun.experiment.build import build_problem, build_schedule, connect_clients
from fcorun.experiment.experiment import PreparedExperiment, minimized_metric
from fcorun.methods.algorithms.algorithm import Algorithm, PyTree
from fcorun.runs.run_history import RunHistory
from fcorun.runs.several_hosts import run_rounds

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

    def warn(self, sentences: Iterable[str]) -> None:
        """Show warnings about runs, each once."""

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
        force: whether the job begins anew, whatever its folder holds.
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
        choose_strength: chooses the run's strength, if the run is to have ``study.strength``.
    """

    run_folder: RunFolder
    with_pictures: bool = False
    force: bool = False
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
    choose_strength: Callable[[PreparedExperiment], tuple[PreparedExperiment, dict[str, Any]]] | None = None

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

    def list_warnings(self, data: FederatedData) -> list[str]:
        """Return sentences for before the run: on its plug-ins, on noise that drowns its messages, and on its data."""
        experiment, noise = self.experiment, ""
        if experiment.privacy.acts:
            noise = _warn_of_noise(experiment, data)
        return [sentence for sentence in (experiment.warning, noise, *data.warnings) if sentence]

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

    def write_files(self, files: Mapping[str, bytes | str]) -> None:
        """Write files of the record by name, unless the run has been interrupted. Raises KeyboardInterrupt.

        The reason tells of cells that a spreadsheet reads as formulas.
        """
        for name, content in files.items():
            check_interrupted()
            self.run_folder.write_file(name, content)
        self.add_reason(describe_formulas(files))

    def fail(self, error: BaseException) -> None:
        """Record that the run failed or was interrupted. If the record cannot be written, only set the status."""
        if self.run_folder.is_lost:
            self.end_status = "locked"
            return
        self.error = error
        self.end_status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        with contextlib.suppress(OSError):
            if self.end_status == "failed":
                self.run_folder.write_file("config.yaml", yaml_text(self.experiment.config))  # for its name in tables
                self.run_folder.mark_failed(error, self.label)
                return
            last_round = self.rows[-1]["round"] if self.rows else 0
            reason = f"stopped after round {last_round}"
            self.run_folder.log(f"interrupted: {reason}")
            self.run_folder.write_status("interrupted", self.label, reason)


def _warn_of_noise(experiment: PreparedExperiment, data: FederatedData) -> str:
    """Return ``Privacy.warn_of_noise`` of all noise of a run: of clients, of a server, or of each edge."""
    privacy, schedule = experiment.resolved_privacy, build_schedule(experiment, data)
    weights = schedule.averaging_weights
    shares = weights / (schedule.expected_share * weights.sum())
    if privacy.hides_rows:
        shares = shares / schedule.batch_sizes
    if privacy.at_clients:
        noises = math.sqrt(schedule.expected_share) * shares  # of those that take part
    else:
        receivers = experiment.topology.find_receivers(connect_clients(experiment, data), data.n_clients)
        noises = np.zeros(receivers.max() + 1)
        np.maximum.at(noises, receivers, shares)
    n_parameters = sum(math.prod(shape) for shape in build_problem(experiment, data).shapes.values())
    count = max(experiment.settings.rounds, 1) * (experiment.topology.edge_rounds or 1)
    if privacy.noises_steps:
        count *= round(np.average(schedule.steps, weights=weights))
    return privacy.warn_of_noise(noises, n_parameters, count)


class Placeholder(Job):
    """The place of a job that is over in a program: the state of a job that runs is computed there, for nobody."""

    def fail(self, error: BaseException) -> None:
        """Do nothing: the record is another job's."""


def take_places(group: Sequence[Job], running: Sequence[Job]) -> list[Job]:
    """Return the jobs of a group in their order, with a placeholder for each that is not among ``running``.

    A baseline and a run with ``imputations`` are computed alone, and need no places.
    """
    first = running[0]
    if not isinstance(first.experiment.algo, Algorithm) or first.experiment.settings.imputations:
        return list(running)
    places: list[Job] = []
    for job in group:
        placeholder = Placeholder(job.experiment, first.run_folder, end_status="reused", stopped=True)
        places.append(job if any(job is other for other in running) else placeholder)
    return places


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


# Following runs that an engine computes.


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
        together: whether runs that have converged go on until all have, so that all end at one evaluation.
        traffic: the bytes sent in the runs of each seed; built on demand.
        on_row: called with a history and each row that joins it.
        stop: set to end the runs by KeyboardInterrupt.
        snapshot: the last evaluation of all runs; None before the first.
    """

    engine: Engine
    runs: Sequence[RunHistory]
    points: Sequence[Numbers]
    width: int | None = None
    together: bool = False
    traffic: Mapping[int, Traffic] = field(default_factory=dict)
    on_row: Callable[[Any, dict[str, float]], None] = lambda run, row: None
    stop: threading.Event = field(default_factory=threading.Event)
    snapshot: Snapshot | None = None

    def follow(
        self, start: Start = Start(), client_states: Sequence[ClientStateFile] | None = None
    ) -> Generator[Snapshot, None, None]:
        """Yield each evaluation after each run that continues has a row of it; end when no run continues.

        A run continues until it diverges, meets a target of ``stop``, or converges. The caller closes the generator.

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
                    if not (run.ended or run.divergence_round):
                        self._note_evaluation(run, i, snapshot)
                going_on = [run for run in self.runs if not (run.ended or run.divergence_round)]
                converged = [run for run in going_on if run.has_converged]
                if not self.together or len(converged) == len(going_on):
                    for run in converged:
                        run.end_converged()
                yield snapshot
                if self.runs and all(run.ended or run.divergence_round for run in self.runs):
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
            run.divergence_origin += _describe_infinite_start(snapshot.state, index)
            return
        if not run.rows or run.rows[-1]["round"] < snapshot.round:
            costs: dict[str, float] = {}
            if run.message_bytes is not None:
                traffic = self.traffic[run.experiment.settings.seed]
                traffic.check_gradients(snapshot.round, int(snapshot.work[index][0]))
                counted = counted_broadcast_bytes(federation, snapshot.state, index)
                faults = replace(federation.schedule.faults, **self.points[index].get("faults", {}))
                costs |= traffic.bytes_after(snapshot.round, run.message_bytes, counted, faults.dropout_threshold)
                costs["bytes_up"] += counted_upload_bytes(federation, snapshot.state, index)
                costs |= traffic.times_after(snapshot.round, run.message_bytes)
            row = run.add_snapshot(snapshot, index, costs, snapshot.seconds / len(self.runs))
            self.on_row(run, row)
        run.check_targets()  # also on a row of a checkpoint: the interruption may have come before the record's end


def _describe_infinite_start(state: PyTree, index: int) -> str:
    """Name an entry of a run's kept state that is not finite, and so has been since ``init``; "" for none.

    A state that is not finite is not kept, so that no later round can have left it.
    """
    for owner, key in (("the server's state", "server"), ("the state of a client", "clients")):
        for path, leaf in jax.tree.leaves_with_path(state.get(key)):
            if not getattr(leaf, "is_fully_addressable", True):  # the other parts are on other hosts
                continue
            values = np.asarray(leaf[index])
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                entry = jax.tree_util.keystr(path[1:] if key == "clients" else path)
                value = values[~np.isfinite(values)].flat[0]
                return (
                    f": init() begins {owner}{entry} with {value}, which the round kept, and a state that is not "
                    "finite ends a run: begin with a large number, such as jnp.finfo(dtype).max"
                )
    return ""


def repeat_last(values: Sequence, length: int) -> list:
    """Repeat the last value so that the list has ``length`` values."""
    return [*values, *[values[-1]] * (length - len(values))]
