"""Callbacks of runs for a Python program: warnings, and a progress bar in a notebook."""

import sys
import threading
import time
import warnings
from collections.abc import Iterable
from html import escape
from typing import Any

from fcorun.base.records.record import Record
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.tables.data_warnings import IF_CLASSES
from fcorun.runs.job import Job, SweepWatcher

_PAUSE = 0.2  # seconds between two updates of a progress bar


class ExperimentWarning(UserWarning):
    """A warning on an experiment, its data, or its result."""


def warn_each(sentences: Iterable[str]) -> None:
    """Pass sentences to Python's ``warnings``, as those of no line of the program."""
    for sentence in sentences:
        warnings.warn_explicit(sentence, ExperimentWarning, "fcorun", 1)


class WarningWatcher(SweepWatcher):
    """Callbacks that pass the warnings on a run and its data to Python's ``warnings``, each once."""

    def __init__(self):
        self._warned: set[str] = set()

    def on_start(self, job: Job, data: FederatedData, resumed: int) -> None:
        self.warn(job.list_warnings(data))

    def on_end(self, job: Job) -> None:
        record = Record(job.run_folder.path)
        if job.end_status == "reused":  # the warnings of the run that made the record
            sentences = record.summary.get("warnings", ())
            if job.experiment.data.has_explicit_task:  # perhaps not in the program that made the record
                sentences = [sentence for sentence in sentences if IF_CLASSES not in sentence]
            self.warn(sentences)
        reason = str(record.status.get("reason") or "")
        if record.status.get("status") == "diverged":
            from fcorun.experiment.optimality_gap import advise_on_divergence

            reason = f"diverged: {reason}; {advise_on_divergence(job.experiment)}"
        self.warn([reason])

    def warn(self, sentences: Iterable[str]) -> None:
        """Pass sentences to Python's ``warnings``, each once."""
        for sentence in sentences:
            if sentence and sentence not in self._warned:
                self._warned.add(sentence)
                warn_each([sentence])


class NotebookProgress(WarningWatcher):
    """Callbacks that show a progress bar in the output of a notebook's cell."""

    def __init__(self):
        super().__init__()
        self._lock = threading.Lock()
        self._display: Any = None
        self._total = 0
        self._rounds: dict[str, float] = {}  # done, by run
        self._last_update = 0.0

    def on_sweep_start(self, runs: int, rounds: int) -> None:
        self._total = rounds

    def on_start(self, job: Job, data: FederatedData, resumed: int) -> None:
        super().on_start(job, data, resumed)
        self._total = self._total or job.experiment.settings.rounds

    def on_evaluation(self, job: Job, row: dict[str, float]) -> None:
        with self._lock:
            self._rounds[job.experiment.identity] = row["round"]
            if time.monotonic() - self._last_update > _PAUSE:
                self._show(job.headline())

    def on_end(self, job: Job) -> None:
        with self._lock:
            self._show(f"{job.label}: {job.end_status}")
        super().on_end(job)

    def _show(self, text: str) -> None:
        from IPython.display import HTML, display

        done = sum(self._rounds.values())
        progress = ""
        if self._total:
            progress = (
                f'<progress value="{done:.0f}" max="{self._total}"></progress> {done:.0f} of {self._total} rounds '
            )
        bar = HTML(progress + escape(text))
        self._last_update = time.monotonic()
        if self._display is None:
            self._display = display(bar, display_id=True)
        else:
            self._display.update(bar)


def follow_by_default() -> WarningWatcher:
    """Return the watcher of a program that names none: with a progress bar in a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return NotebookProgress() if shell is not None and hasattr(shell, "kernel") else WarningWatcher()
