"""What a run shows on the terminal: a line, a progress bar, a table. Plain lines where it is no terminal."""

import os
import sys
import threading
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fcorun.algorithms.base import Algorithm
from fcorun.cli.terminal import Terminal
from fcorun.datasets.base import FederatedData
from fcorun.errors import escape_controls
from fcorun.metrics import aggregate, is_baseline_row
from fcorun.records.record import Record
from fcorun.runs.job import Job, SweepWatcher, Watcher

_FILES = (  # of a record, in the order in which they matter to its reader
    *("metrics.csv", "scores.csv", "curves.png", "coefficients.csv", "coefficients.png", "weights.nii.gz", "brain.png"),
    *("summary.json", "solution.npz", "personal.npz", "scaling.npz", "config.yaml", "run.log"),
)
_LINES = 10  # progress lines of a run, where there is no terminal


class _Output(Terminal):
    """A console whose reader may go away (``| head``): the run goes on, in silence."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Console(Watcher):
    """Shows one run. A context manager; with ``verbose`` off it shows nothing."""

    def __init__(self, verbose: bool = True):
        self.out = _Output(file=sys.stdout, highlight=False, soft_wrap=True, quiet=not verbose)
        self.live = verbose and self.out.is_terminal
        columns = (TextColumn("round"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"))
        self.progress = Progress(
            *columns, TimeRemainingColumn(), console=self.out, transient=True, disable=not self.live
        )
        self.task: Any = None
        self.told = 0.0
        self.data: FederatedData | None = None

    def __enter__(self) -> "Console":
        return self

    def __exit__(self, *error) -> None:
        self.progress.stop()

    def on_start(self, job: Job, data: FederatedData, resumed: int) -> None:
        settings, self.data = job.experiment.settings, data
        size = f"{data.n_rows} examples of {data.n_clients} clients, {data.x.shape[1]} features"
        if isinstance(job.experiment.algo, Algorithm):
            cohort = settings.clients_per_round or data.n_clients
            size = f"{settings.rounds} rounds, {cohort} clients a round, {size}"
        self.out.print(f"{job.label}: {size}" + (f"; goes on after round {resumed}" if resumed else ""))
        if job.experiment.warning:
            self.out.print(job.experiment.warning)
        for remark in data.warnings:
            self.out.print(escape(remark))
        self.progress.start()
        self.task = self.progress.add_task("", total=settings.rounds)

    def on_evaluation(self, job: Job, row: dict[str, float]) -> None:
        text = job.headline()
        counted = isinstance(job.experiment.algo, Algorithm)
        rounds = job.experiment.settings.rounds
        if self.live:
            total = rounds if counted else None
            self.progress.update(self.task, completed=row["round"], total=total, description=text)
        elif row["round"] >= self.told:  # about ten lines; of a baseline, whose end is not known, at doubling distances
            self.out.print(f"{'round' if counted else 'iteration'} {row['round']}  {text}")
            self.told = row["round"] + (max(rounds / _LINES, 1) if counted else max(row["round"], 1))

    def on_end(self, job: Job) -> None:
        self.progress.stop()
        record = Record(job.run_folder.path)
        if job.end_status == "reused":
            status = record.status
            end = ", ".join(filter(None, (status.get("status"), status.get("reason"))))
            self.out.print(f"{record.folder} holds the record of this run ({end}): reused (force=true recomputes)")
            job.rows, job.divergence_round = record.rows, int(status.get("round", 0))
        elif job.end_status not in ("done", "diverged"):
            return
        if job.divergence_round:
            why = record.status.get("reason", "").replace("not finite", "the state was not finite")
            helps = "; if none helps, debug=true says where it began" if job.divergence_round == 1 else ""
            self.out.print(f"diverged: {why}; try a smaller algo.client_lr or algo.server_lr{helps}")
            if job.end_status == "reused" and job.experiment.settings.debug:
                self.out.print("nothing was computed: debug=true force=true says in which client and line that began")
        else:
            self._table(job)
        if told := _worked_out(record.summary.get("curvature") or {}):
            self.out.print(told)
        if job.reason:
            self.out.print(job.reason)
        unknown = job.certificate is None and job.movement is None
        if job.end_status == "done" and unknown and self.data is not None:
            from fcorun.experiment.optimality_gap import explain_unassessed_gap

            if told := explain_unassessed_gap(job.experiment, self.data):
                self.out.print(told)
        if job.end_status != "reused":
            there = ", ".join(name for name in _FILES if (record.folder / name).exists())
            self.out.print(f"{job.end_status}: {job.run_folder.path}/ holds {there}")

    def _table(self, job: Job) -> None:
        settings = job.experiment.settings
        table = Table(box=None, pad_edge=False, header_style="bold")
        tail = min(settings.tail_rounds, int(job.rows[-1]["round"]))
        mean = (
            "solution"
            if is_baseline_row(job.rows[-1])
            else "at the end"
            if job.stopped
            else f"mean of last {tail} rounds"
        )
        for column in ("metric", "final", "best", "round", mean):
            table.add_column(column, justify="left" if column == "metric" else "right")
        metrics = job.experiment.metrics
        found = aggregate(job.rows, settings.tail_rounds, metrics, stopped=job.stopped)
        for name, value in found["final"].items():
            best = found["best"].get(name)
            cells = (f"{best['value']:.6g}", str(best["round"])) if best else ("", "")
            table.add_row(name, f"{value:.6g}", *cells, f"{found['tail'][name]:.6g}")
        self.out.print(table)
        if cut := metrics.cutoff_metrics(found["final"]):
            self.out.print(f"{', '.join(cut)}: magnitude over cutoff={settings.cutoff:g}")


def _worked_out(known: dict) -> str:
    """The numbers that stand for "auto" in a run, and what they come from."""
    found = ", ".join(f"{key}={value:.4g}" for key, value in known.items() if "." in key)
    bends = f", from losses whose curvature is {known['least']:.3g} to {known['most']:.3g}" if "most" in known else ""
    return f"auto: {found}{bends}" if found else ""


class SweepConsole(SweepWatcher):
    """Shows many runs as one bar. A context manager; methods may be called from several threads."""

    def __init__(self, verbose: bool = True):
        self.console = _Output(file=sys.stdout, highlight=False, soft_wrap=True, quiet=not verbose)
        self.live = verbose and self.console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
        self.progress = Progress(
            *columns, TimeRemainingColumn(), console=self.console, transient=True, disable=not self.live
        )
        self.rounds, self.done, self.runs, self.ended, self.told = 0, 0, 0, 0, 0.0
        self.remarked: set[str] = set()  # what has been said of the data
        self.at: dict[Any, float] = {}  # rounds done, by folder
        self.guard = threading.Lock()

    def __enter__(self) -> "SweepConsole":
        return self

    def __exit__(self, *error) -> None:
        self.on_sweep_end()

    def on_sweep_end(self) -> None:
        """No more runs."""
        self.progress.stop()

    def show(self, line: str) -> None:
        print(escape_controls(line), file=sys.stderr)

    def show_if_verbose(self, line: str) -> None:
        self.console.print(line)

    def on_sweep_start(self, runs: int, rounds: int) -> None:
        """So many runs are to come, with so many rounds in all."""
        self.runs, self.rounds = runs, rounds
        if runs:
            self.progress.start()
            self.task: Any = self.progress.add_task(f"0 of {runs} runs", total=max(rounds, 1))

    def on_wait(self, runs: int) -> None:
        """Another process is computing the rest."""
        self._show(f"{runs} runs are being computed by another process; waiting for them")

    def on_start(self, job: Job, data: FederatedData, resumed: int) -> None:
        with self.guard:
            new = [remark for remark in data.warnings if remark not in self.remarked]
            self.remarked |= set(new)
        for remark in new:
            self.show_if_verbose(escape(remark))

    def on_evaluation(self, job: Job, row: dict[str, float]) -> None:
        with self.guard:
            rounds = min(row["round"], job.experiment.settings.rounds)
            self.done += rounds - self.at.get(job.run_folder.path, 0)
            self.at[job.run_folder.path] = rounds
            if self.live:
                self.progress.update(self.task, completed=self.done)

    def on_end(self, job: Job) -> None:
        self.on_point_end(job)

    def on_point_end(self, run: Any) -> None:
        """A run is over (its ``end`` says how), here or in another process."""
        with self.guard:
            if run.end_status in ("locked", "interrupted"):
                return
            self.ended += 1
            if self.live:
                self.progress.update(self.task, description=f"{self.ended} of {self.runs} runs")
            elif self.ended == self.runs or self.ended >= self.told + self.runs / _LINES:
                self.told = self.ended
                self.console.print(f"{self.ended} of {self.runs} runs")

    def _show(self, line: str) -> None:
        if self.live:
            self.progress.update(self.task, description=line)
        else:
            self.console.print(line)
