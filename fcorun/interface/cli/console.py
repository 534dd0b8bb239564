"""The terminal output of runs: a line, a progress bar, a table. Without a terminal, the output is plain lines."""

import sys
import threading
from collections.abc import Iterable
from typing import Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from fcorun.base.cohorts import fixed_cohort_size, read_participation
from fcorun.base.errors import escape_controls
from fcorun.base.metrics import aggregate, is_baseline_row
from fcorun.base.records.record import RECORD_FILES, Record
from fcorun.data.datasets.dataset import FederatedData
from fcorun.interface.cli.terminal import Terminal
from fcorun.methods.algorithms.algorithm import Algorithm
from fcorun.runs.job import Job, SweepWatcher

_PROGRESS_LINES = 10  # of a run or sweep, without a terminal


class _Progress(SweepWatcher):
    """A terminal with a progress bar for as long as the context lasts, and plain lines where there is no terminal."""

    def __init__(self, verbose: bool, *columns: ProgressColumn):
        self.console = Terminal(verbose, markup=True)  # reports print tables with markup on it
        self.live = verbose and self.console.is_terminal
        self.progress = Progress(
            *columns, TimeRemainingColumn(), console=self.console, transient=True, disable=not self.live
        )
        self.task: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error) -> None:
        self.progress.stop()

    def show_if_verbose(self, line: str) -> None:
        self.console.print(line, markup=False)


class Console(_Progress):
    """The output of a single run. A context manager; with ``verbose`` off nothing is printed."""

    def __init__(self, verbose: bool = True):
        columns = (TextColumn("round"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"))
        super().__init__(verbose, *columns)
        self.next_printed_round = 0.0
        self.data: FederatedData | None = None

    def on_start(self, job: Job, data: FederatedData, resumed: int) -> None:
        self.data = data
        settings = job.experiment.settings
        size = f"{data.train.n_rows} examples of {data.n_clients} clients, {data.train.x.shape[1]} features"
        if isinstance(job.experiment.algo, Algorithm):
            cohort = str(fixed_cohort_size(settings.clients_per_round, data.n_clients) or data.n_clients)
            participation = read_participation(settings.clients_per_round)
            if participation is not None:
                cohort = f"about {participation * data.n_clients:.3g}"
            waits = job.experiment.topology.waits_for_cohort
            of_round = f"rounds, {cohort} clients a round" if waits else "rounds of one upload each"
            size = f"{settings.rounds} {of_round}, {size}"
        resumption = f"; resumes after round {resumed}" if resumed else ""
        self.show_if_verbose(f"{job.label}: {size}{resumption}")
        for sentence in filter(None, (data.description, *job.list_warnings(data))):
            self.show_if_verbose(sentence)
        self.progress.start()
        self.task = self.progress.add_task("", total=settings.rounds)

    def on_evaluation(self, job: Job, row: dict[str, float]) -> None:
        text = job.headline()
        has_rounds = isinstance(job.experiment.algo, Algorithm)  # the number of a baseline's iterations is not known
        rounds = job.experiment.settings.rounds
        if self.live:
            total = rounds if has_rounds else None
            self.progress.update(self.task, completed=row["round"], total=total, description=text)
        elif row["round"] >= self.next_printed_round:
            if has_rounds:
                self.show_if_verbose(f"round {row['round']}  {text}")
                self.next_printed_round = row["round"] + max(rounds / _PROGRESS_LINES, 1)
            else:  # at doubling distances
                self.show_if_verbose(f"iteration {row['round']}  {text}")
                self.next_printed_round = row["round"] + max(row["round"], 1)

    def on_end(self, job: Job) -> None:
        self.progress.stop()
        record = Record(job.run_folder.path)
        if job.end_status == "reused":
            status = record.status
            end = ", ".join(filter(None, (status.get("status"), status.get("reason"))))
            self.show_if_verbose(
                f"{record.folder} holds the record of this run ({end}): reused (force=true recomputes)"
            )
            job.rows = record.rows
            job.divergence_round = int(status.get("round", 0))
            summary = record.summary_or_empty
            job.stopped = bool(summary.get("stopped"))
            if not (summary and (job.rows or job.divergence_round)):
                self.show_if_verbose("its metrics.csv or summary.json is lost: force=true computes the run again")
                return
        elif job.end_status not in ("done", "diverged"):
            return
        if job.divergence_round:
            from fcorun.experiment.optimality_gap import advise_on_divergence

            reason = record.status.get("reason", "").replace("not finite", "the state was not finite")
            advice = advise_on_divergence(job.experiment)
            if job.divergence_round == 1:
                advice += "; if that does not help, debug=true shows where the divergence began"
            self.show_if_verbose(f"diverged: {reason}; {advice}")
            if job.end_status == "reused" and job.experiment.settings.debug:
                self.show_if_verbose(
                    "nothing was computed: debug=true force=true shows the client and the line of the divergence"
                )
        else:
            self._print_metrics(job)
        curvature = record.summary.get("curvature") or {}
        if auto_values := ", ".join(f"{key}={value:.4g}" for key, value in curvature.items() if "." in key):
            origin = ""
            if "most" in curvature:
                origin = f", from losses whose curvature is {curvature['least']:.3g} to {curvature['most']:.3g}"
            self.show_if_verbose(f"auto: {auto_values}{origin}")
        for sentence in filter(None, (job.convergence, job.reason)):
            self.show_if_verbose(sentence)
        gap_is_unknown = job.certificate is None and job.movement is None
        if job.end_status == "done" and gap_is_unknown and self.data is not None:
            from fcorun.experiment.optimality_gap import explain_unassessed_gap

            if explanation := explain_unassessed_gap(job.experiment, self.data):
                self.show_if_verbose(explanation)
        if job.end_status != "reused":
            files = [name for name in RECORD_FILES if (record.folder / name).exists() and name != "status.json"]
            self.show_if_verbose(f"{job.end_status}: {job.run_folder.path}/ holds {', '.join(files)}")

    def _print_metrics(self, job: Job) -> None:
        """Print a table of the metrics: final values, best values with their rounds, tail averages."""
        settings = job.experiment.settings
        metrics = job.experiment.metrics
        last_row = job.rows[-1]
        if is_baseline_row(last_row):
            tail_column = "solution"
        elif job.stopped:
            tail_column = "at the end"
        else:
            tail_column = f"mean of last {min(settings.tail_rounds, int(last_row['round']))} rounds"
        lines = []
        aggregates = aggregate(job.rows, settings.tail_rounds, metrics, stopped=job.stopped)
        for name, value in aggregates["final"].items():
            best = aggregates["best"].get(name)
            best_cells = (f"{best['value']:.6g}", str(best["round"])) if best else ("", "")
            lines.append([name, _format_metric(value), *best_cells, _format_metric(aggregates["tail"][name])])
        self.console.print_table(["metric", "final", "best", "round", tail_column], lines)
        if names := metrics.cutoff_metrics(aggregates["final"]):
            self.show_if_verbose(f"{', '.join(names)}: magnitude over cutoff={settings.cutoff:g}")


def _format_metric(value: float) -> str:
    """Return a metric as text, empty for one that the run has no value of."""
    return "" if value != value else f"{value:.6g}"


class SweepConsole(_Progress):
    """The output of a sweep, one progress bar for all runs.

    A context manager, whose methods may be called from several threads.
    """

    def __init__(self, verbose: bool = True):
        super().__init__(verbose, TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
        self.runs = 0
        self.ended_runs = 0
        self.printed_runs = 0  # the number of ended runs that was printed last
        self.awaited_runs = 0  # the number of runs of another process that was printed last
        self.computed_rounds = 0.0
        self.rounds_by_folder: dict[Any, float] = {}
        self.printed_sentences: set[str] = set()
        self.lock = threading.Lock()

    def on_sweep_end(self) -> None:
        self.progress.stop()

    def show(self, line: str) -> None:
        print(escape_controls(line), file=sys.stderr)

    def on_sweep_start(self, runs: int, rounds: int) -> None:
        self.runs = runs
        if runs:
            self.progress.start()
            self.task = self.progress.add_task(f"0 of {runs} runs", total=max(rounds, 1))

    def on_wait(self, runs: int) -> None:
        line = f"{runs} {'run is' if runs == 1 else 'runs are'} being computed by another process; waiting"
        if self.live:
            self.progress.update(self.task, description=line)
        elif runs != self.awaited_runs:  # called every second
            self.show_if_verbose(line)
        self.awaited_runs = runs

    def on_start(self, job: Job, data: FederatedData, resumed: int) -> None:
        self.warn(filter(None, (data.description, *job.list_warnings(data))))

    def warn(self, sentences: Iterable[str]) -> None:
        with self.lock:
            new = [text for text in dict.fromkeys(sentences) if text not in self.printed_sentences]
            self.printed_sentences |= set(new)
        for sentence in new:
            self.show_if_verbose(sentence)

    def on_evaluation(self, job: Job, row: dict[str, float]) -> None:
        with self.lock:
            folder = job.run_folder.path
            rounds = min(row["round"], job.experiment.settings.rounds)
            self.computed_rounds += rounds - self.rounds_by_folder.get(folder, 0)
            self.rounds_by_folder[folder] = rounds
            if self.live:
                self.progress.update(self.task, completed=self.computed_rounds)

    def on_end(self, job: Job) -> None:
        self.on_point_end(job)

    def on_point_end(self, run: Any) -> None:
        with self.lock:
            if run.end_status in ("locked", "interrupted"):
                return
            self.ended_runs += 1
            line = f"{self.ended_runs} of {self.runs} runs"
            if self.live:
                self.progress.update(self.task, description=line)
            elif self.ended_runs == self.runs or self.ended_runs >= self.printed_runs + self.runs / _PROGRESS_LINES:
                self.printed_runs = self.ended_runs
                self.show_if_verbose(line)
