"""Evaluations on their way to the trackers of runs that go on."""

import threading
import time
from pathlib import Path
from typing import Any

from fcorun.base.records.few_rows import FewRows
from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.tracker import call_tracker
from fcorun.runs.job import Job, Watcher

_SHARE = 0.02  # the largest share of the time that trackers take
_FIRST_SECONDS = 10.0  # a shorter run is sent when it is complete


class TrackedRuns(Watcher):
    """A watcher that also sends evaluations to trackers, as often as ``_SHARE`` of the time allows.

    Runs of one program have the same tracker. A tracker that fails is told no more evaluations.
    """

    def __init__(self, watch: Watcher):
        self.watch = watch
        self.waiting: dict[Path, tuple[Job, list[dict[str, float]]]] = {}  # by the folder of the run
        self.few: dict[Path, FewRows] = {}  # by the folder of the run, whose summary is not yet there
        self.next_time = time.monotonic() + _FIRST_SECONDS
        self.lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.watch, name)

    def on_start(self, job: Job, data: FederatedData, resumed: int) -> None:
        self.few[job.run_folder.path] = FewRows.find([job.run_folder.path], data.few_rows)
        self.watch.on_start(job, data, resumed)

    def on_end(self, job: Job) -> None:
        with self.lock:
            self.waiting.pop(job.run_folder.path, None)  # the record has them all
        if job.end_status in ("failed", "interrupted"):
            call_tracker(job.experiment.tracker.on_failure, job.run_folder, self.few.get(job.run_folder.path))
        self.watch.on_end(job)

    def on_evaluation(self, job: Job, row: dict[str, float]) -> None:
        self.watch.on_evaluation(job, row)
        with self.lock:
            self.waiting.setdefault(job.run_folder.path, (job, []))[1].append(row)
            began = time.monotonic()
            if began < self.next_time:
                return
            succeeded = [
                call_tracker(job.experiment.tracker.on_evaluation, job.run_folder, self.few[folder], rows)
                for folder, (job, rows) in self.waiting.items()
            ]
            self.waiting.clear()
            now = time.monotonic()
            self.next_time = now + (now - began) / _SHARE if all(succeeded) else float("inf")
