"""Evaluations on their way to the trackers of runs that go on."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.base.records.few_rows import LEAST_ROWS
from fcorun.base.records.record import Record
from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.tracker import call_tracker
from fcorun.runs.job import Job, Watcher

_SHARE = 0.02  # the largest share of the time that trackers take
_FIRST_SECONDS = 10.0  # a shorter run is sent when it is complete


class TrackedRuns(Watcher):
    """A watcher that also sends evaluations to trackers, as often as ``_SHARE`` of the time allows.

    Runs of one program have the same tracker. A tracker that fails is told no more evaluations. A run with few
    validation rows, whose metrics tell of single patients, is sent when it is complete.
    """

    def __init__(self, watch: Watcher):
        self.watch = watch
        self.waiting: dict[Path, tuple[Job, list[dict[str, float]]]] = {}  # by the folder of the run
        self.unsent: set[Path] = set()  # the folders of runs with few validation rows
        self.next_time = time.monotonic() + _FIRST_SECONDS
        self.lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.watch, name)

    def on_start(self, job: Job, data: FederatedData, resumed: int) -> None:
        if data.validation is not None:
            group = data.validation.group
            n = data.validation.n_rows if group is None else len(np.unique(group))
            if n < LEAST_ROWS:
                self.unsent.add(job.run_folder.path)
        self.watch.on_start(job, data, resumed)

    def on_end(self, job: Job) -> None:
        with self.lock:
            self.waiting.pop(job.run_folder.path, None)  # the record has them all
        if job.end_status in ("failed", "interrupted"):
            call_tracker(job.experiment.tracker.on_failure, Record(job.run_folder.path), folder=job.run_folder)
        self.watch.on_end(job)

    def on_evaluation(self, job: Job, row: dict[str, float]) -> None:
        self.watch.on_evaluation(job, row)
        if job.run_folder.path in self.unsent:
            return
        with self.lock:
            self.waiting.setdefault(job.run_folder.path, (job, []))[1].append(row)
            began = time.monotonic()
            if began < self.next_time:
                return
            succeeded = [
                call_tracker(job.experiment.tracker.on_evaluation, Record(folder), rows, folder=job.run_folder)
                for folder, (job, rows) in self.waiting.items()
            ]
            self.waiting.clear()
            now = time.monotonic()
            self.next_time = now + (now - began) / _SHARE if all(succeeded) else float("inf")
