"""A run in progress, the watchers that follow it, the progress that its folder shows, and its work on several hosts."""

import base64
import contextlib
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from fcorun.base.errors import HostLost, UserError, describe_error
from fcorun.base.metrics import COUNTERS, PERSONAL_PREFIX
from fcorun.base.records.formats import arrays_from_bytes, npz_bytes
from fcorun.base.records.record import FINISHED_STATUSES, Record, RunFolder
from fcorun.base.system.machine import current_hosts
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.tables.labels import label_column
from fcorun.engine.engine import Engine, Snapshot
from fcorun.engine.federation import Numbers
from fcorun.experiment.build import load_data
from fcorun.experiment.experiment import (
    PreparedExperiment,
    describe_met_target,
    describe_unresolved_gap,
    explain_growth,
    minimized_metric,
)
from fcorun.experiment.identification import identification_metrics
from fcorun.experiment.prepare import plugin_to_config
from fcorun.methods.algorithms.algorithm import Algorithm, Baseline
from fcorun.methods.communication.contracts import MessageBytes
from fcorun.methods.objectives.objective import Objective
from fcorun.results.models.score_functions import Arrays, compute_predictions

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
class RunHistory:
    """The evaluations of a run, as its record has them.

    Attributes:
        rows: the evaluations, with their counters and metrics.
        optimum: the result of ``fcorun.experiment.optimum.compute_optimum``; None without ``reference``.
        divergence_round: the round in which the state stopped being finite, or after which the objective had grown
            without bounds; 0 if the run has not diverged.
        divergence_reason: a sentence on an objective that grew without bounds, or empty.
        reason: the sentences on a run that go into status.json.
        stopped: whether the run has met a target of ``stop``, which is then the reason.
    """

    experiment: PreparedExperiment
    rows: list[dict[str, float]] = field(default_factory=list, kw_only=True)
    optimum: dict | None = field(default=None, kw_only=True)
    divergence_round: int = field(default=0, kw_only=True)
    divergence_reason: str = field(default="", kw_only=True)
    reason: str = field(default="", kw_only=True)
    stopped: bool = field(default=False, kw_only=True)

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


@dataclass
class Job(RunHistory):
    """A run in progress: its experiment, its folder, and its history so far.

    Attributes:
        with_pictures: whether the record gets pictures.
        message_bytes: the bytes of the messages of a round.
        end_status: the status in which the run ended, empty until then: as in status.json, "reused" for a finished
            record that was found, or "locked" for a folder that another process is computing.
        error: the error that made the run fail.
        setup_seconds: the seconds before its first compilation.
        certificate: the certificate of a baseline, or the optimality gap of a run.
        depends_on_seed: whether the seed changes any number of the run.
        n_devices: the number of devices that compute the run, of all hosts together.
        n_hosts: the number of hosts that compute the run.
        divergence_origin: the client at which a run diverged first, and the line of code, if known (``debug``).
        remaining_descent: the result of ``measure_remaining_descent`` at the end of the run.
        movement: the result of ``measure_movement`` at the end of the run; None: not measured.
        resolved_values: the numbers of fields that were "auto", and the curvature bounds behind them.
    """

    run_folder: RunFolder
    with_pictures: bool = False
    message_bytes: MessageBytes | None = None
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
            progress, time_left = _describe(job, seconds_left)
            job.run_folder.log(f"{progress}: {job.headline()}{time_left}")
            if not last:  # the final status is about to be written
                job.run_folder.mark_running(job.label, f"{progress}{time_left}", round=job.rows[-1]["round"])
        ended = time.monotonic()
        self.due = ended + max(_PAUSE, (ended - started) / _SHARE)


def _describe(job: Job, seconds_left: float | None) -> tuple[str, str]:
    """Return the rounds that a run has done, and the time left as text; a baseline's is unknown."""
    rounds_done, rounds = job.rows[-1]["round"], job.experiment.settings.rounds
    if not isinstance(job.experiment.algo, Algorithm):
        return f"iteration {rounds_done}", ""
    percent = f" ({100 * rounds_done / rounds:.0f} %)" if rounds else ""
    time_left = "" if seconds_left is None else f", about {format_duration(seconds_left)} left"
    return f"round {rounds_done} of {rounds}{percent}", time_left


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


# The leader: of several hosts, the first one runs the experiments and sends commands to the followers.
#
# The leader runs experiments as it would alone. It sends the experiment, so that each follower loads the data; the
# engine's settings, with resolved numbers for fields that are "auto"; and each batch. All hosts compute the rounds: the
# state goes from the leader to the followers before them, and is the same on all hosts after them. The leader evaluates
# the runs, gathers the predictions of rows that are sharded over hosts, and decides whether the runs continue.

_RESOLVED_SECTIONS = ("algo", "reg")  # the sections in which fields are resolved to numbers
_FAILURE_TIMEOUT = 5.0  # seconds in which the loss or the failure of a host becomes known
_HOST_ERRORS = (MemoryError, jax.errors.JaxRuntimeError)  # after these errors of one host, others may wait for it


def load_on_all_hosts(experiment: PreparedExperiment) -> FederatedData:
    """Load the data, on all hosts if there are several, and return those of this host.

    Raises UserError if a host has other data or other code, or if several hosts cannot compute the experiment.
    """
    hosts = current_hosts()
    if hosts is None:
        options = experiment.settings.hosts or {}
        if options.get("address") and options.get("count") != 1:
            raise UserError("hosts.*: several hosts are for the command fcorun: leave them out")
        return load_data(experiment)
    if experiment.settings.debug:
        raise UserError("debug=true computes one client after the other, on one host: leave hosts.* out")
    hosts.broadcast("prepare", config=experiment.config)
    try:
        data = load_data(experiment)
    finally:
        answers = {rank: hosts.receive(rank) for rank in hosts.connections}
    leader = hosts.describe_host(0)
    for rank, answer in answers.items():
        follower = hosts.describe_host(rank)
        if "refused" in answer:
            raise UserError(f"{follower}: {answer['refused']}")
        if answer["fingerprint"] != experiment.fingerprint:
            fingerprints = f"{answer['fingerprint'][:8]} and {experiment.fingerprint[:8]}"
            raise UserError(f"{follower} has other data={experiment.names['data']} than {leader}, {fingerprints}: "
                            "give all the same files")  # fmt: skip
        if answer["identity"] != experiment.identity:
            raise UserError(f"{follower} has other code of this run than {leader}: give all the same files")
        if answer["place"] != data.train.place:
            raise UserError(f"the rows of {follower} are {answer['place']}, and those of {leader} are "
                            f"{data.train.place}: give data.resident")  # fmt: skip
    return data


def build_on_all_hosts(engine: Engine, experiment: PreparedExperiment) -> None:
    """Have the followers build the engine of an experiment whose numbers are resolved."""
    hosts = current_hosts()
    if not hosts:
        return
    configs = {}
    for section in _RESOLVED_SECTIONS:
        configs[section] = plugin_to_config(getattr(experiment, section), experiment.names[section])
    hosts.broadcast("build", **configs, devices=engine.devices, budget=engine.row_bytes_budget)


def run_rounds(
    engine: Engine, points: Sequence[Numbers], seeds: Sequence[int], state: Any, done: int, **options: Any
) -> Generator[Snapshot, None, None]:
    """Yield the snapshots of ``engine.run``, computed by all hosts. The caller closes the generator.

    Raises the errors of ``engine.run`` that all hosts have alike, HostLost if a host is lost or fails alone, and
    KeyboardInterrupt if a host is interrupted.
    """
    hosts = current_hosts()
    if hosts is None:
        yield from engine.run(points, seeds, state, done, **options)
        return
    hosts.broadcast("run", points=points, seeds=seeds, done=done)
    try:
        for snapshot in engine.run(points, seeds, state, done, **options):
            yield snapshot
            hosts.check_failures()
            if snapshot.round < engine.rounds and not snapshot.diverged.all():
                hosts.broadcast("advance", diverged=snapshot.diverged.tolist())
    except HostLost:
        raise
    except Exception as error:
        if isinstance(error, _HOST_ERRORS):
            hosts.check_failures(_FAILURE_TIMEOUT)
        elif hosts.all_failed(_FAILURE_TIMEOUT):
            raise
        reason = describe_error(error)  # the other hosts may wait for this one within a round
        raise hosts.make_lost_error(0, reason) from error
    finally:
        if not hosts.failure:
            hosts.broadcast("stop")


def gather_predictions(objective: Objective, data: FederatedData, solution: Arrays) -> Arrays:
    """Gather on the leader the predictions of all rows of each split, (n, ...), without offsets.

    Returns no arrays if the rows are not sharded over hosts.
    """
    if data.train.shard_features is None:
        return {}
    hosts = current_hosts()
    assert hosts is not None
    hosts.broadcast("predict", solution=encode_arrays(solution))
    shards = [predict_local(objective, data, solution)]
    for rank in hosts.connections:
        shards.append(decode_arrays(hosts.receive(rank)["predicted"]))
    return {split: np.concatenate([shard[split] for shard in shards]) for split in shards[0]}


def predict_local(objective: Objective, data: FederatedData, solution: Arrays) -> Arrays:
    """Predict the rows stored on this host, by split."""
    predictions = {}
    for split, rows in data.splits.items():
        x = rows.shard_features
        if x is not None:
            predictions[split] = compute_predictions(objective, solution, x, data.features.scale)
    return predictions


def encode_arrays(arrays: Arrays) -> str:
    """Encode arrays as text."""
    return base64.b64encode(npz_bytes(arrays)).decode()


def decode_arrays(text: str) -> Arrays:
    """Decode the text of ``encode_arrays``."""
    return arrays_from_bytes(base64.b64decode(text))
