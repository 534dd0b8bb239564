"""Run experiments: one, or several that differ in numbers only, each into a record of its own."""

import contextlib
import itertools
import os
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fcorun.algorithms.base import Baseline
from fcorun.datasets.base import FederatedData
from fcorun.errors import UserError
from fcorun.experiment.experiment import Experiment, prepare
from fcorun.metrics import CATALOGUE
from fcorun.records.folder import RunFolder
from fcorun.records.formats import yaml_text
from fcorun.records.record import FINISHED, Record
from fcorun.runs.execute import Submit, execute
from fcorun.trackers.base import track


class Watcher:
    """What is told of runs as they go; does nothing. Methods are called from the threads that run."""

    def starts(self, job: "Job", data: FederatedData, resumed: int) -> None:
        """A run begins, or goes on after ``resumed`` rounds."""

    def row(self, job: "Job", row: dict[str, float]) -> None:
        """A run was evaluated."""

    def ends(self, job: "Job") -> None:
        """A run is over: its ``end`` is done, diverged, failed, interrupted, reused or locked."""


@dataclass
class Job:
    """One run on its way: what it is, where it goes, and how far it has come.

    Attributes:
        end: how it ended, empty until then. A finished record that was found ends it as "reused", a folder that another
            process is computing as "locked".
        error: why it failed.
        setup: seconds before its first compilation.
        rows: its evaluations.
        optimum, certificate: of fcorun.experiment.reference.optimum; of a baseline.
        diverged: the round in which its state stopped being finite, or 0.
        reason: a remark on a run that is done.
        bounds: of the curvature, with the numbers that follow from them, where the algorithm asks for them.
    """

    experiment: Experiment
    folder: RunFolder
    end: str = ""
    error: BaseException | None = None
    setup: float = 0.0
    rows: list[dict[str, float]] = field(default_factory=list)
    optimum: dict | None = None
    certificate: dict | None = None
    diverged: int = 0
    reason: str = ""
    bounds: dict | None = None

    @property
    def label(self) -> str:
        """A line that says which run this is."""
        return self.experiment.label

    def add(self, counters: dict[str, float], metrics: dict[str, float]) -> dict[str, float]:
        """Add an evaluation, with the gap to the optimum where that is known; the new row."""
        if self.optimum is not None:
            metrics["suboptimality"] = metrics["objective"] - self.optimum["objective"]
        self.rows.append(counters | CATALOGUE.in_order(metrics))
        return self.rows[-1]

    def finished(self) -> bool:
        """Whether the record is complete although nobody has noted it: a helper wrote it while this process stopped."""
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


def run(config: Mapping[str, Any], folder: str | Path | None = None, watch: Watcher | None = None) -> Record:
    """Run one configuration to the end and return its record.

    Args:
        config: plain values, as ``compose`` gives them or as a record's config.yaml holds them.
        folder: where the record goes; by default outputs/DATA/ALGORITHM-IDENTITY. If it holds the finished record of
            the same run, that is returned; an interrupted one is continued.
        watch: is told of the run as it goes.

    Raises UserError for whatever a user can mend; what else goes wrong is recorded as failed and raised.
    """
    return run_grid([config], [folder], watch)[0]


def grid(config: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The configurations of a grid: ``config`` with every combination of values, {"algo.client_lr": [...], ...}."""
    configs = []
    for values in itertools.product(*axes.values()):
        changed = deepcopy(dict(config))
        for key, value in zip(axes, values, strict=True):
            *sections, last = key.split(".")
            place = changed
            for section in sections:
                place = place[section]
            place[last] = value
        configs.append(changed)
    return configs


def run_grid(
    configs: Sequence[Mapping[str, Any]],
    folders: Sequence[str | Path | None] | None = None,
    watch: Watcher | None = None,
) -> list[Record]:
    """Run configurations that differ in numbers (rates, strengths) and seed only as one program, minibatches shared.

    Each gets the record it would have had alone, to float tolerance. Arguments and errors as for ``run``; a ValueError
    says that the configurations differ in more than numbers.
    """
    if not configs:
        return []
    experiments = [prepare(config) for config in configs]
    if len({e.batch_key for e in experiments}) > 1:
        raise ValueError("these configurations differ in more than seed and the numbers of algo, reg and mirror")
    places = [Path(f or e.default_folder) for e, f in zip(experiments, folders or [None] * len(configs), strict=True)]
    unique = dict(zip(places, experiments, strict=True))
    for place, experiment in zip(places, experiments, strict=True):
        if unique[place].identity != experiment.identity:
            raise UserError(f"{place} is given to two different runs; give each a folder of its own")
    jobs = [Job(experiment, RunFolder(place, experiment.identity)) for place, experiment in unique.items()]
    run_jobs(jobs, watch or Watcher())
    for job in jobs:
        if job.end == "locked":
            raise UserError(f"{job.folder.folder} is being computed by another process; wait for it to end")
        if job.error is not None:
            raise job.error
    return [Record(place) for place in places]


def run_jobs(jobs: list[Job], watch: Watcher, submit: Submit | None = None) -> None:
    """Run jobs that differ in numbers only; how each went is in its ``end`` and ``error``.

    ``submit`` has functions called elsewhere, like that of concurrent.futures; the records are completed by it.

    Raises UserError when nothing could be begun: bad data, a folder that cannot be written or holds another run.
    """
    begun = time.perf_counter()
    first = jobs[0].experiment
    data = first.load()
    if isinstance(first.algo, Baseline):
        first.algo.rows(data.offsets)  # refuses a client that is not there, before anything is written
    claimed: list[Job] = []
    together: dict[int, list[Job]] = {}  # by the rounds that a checkpoint holds, -1 for none
    try:
        for job in jobs:
            found = job.folder.claim(first.settings.force)
            if found in ("finished", "locked"):
                job.end = "reused" if found == "finished" else found
                watch.ends(job)
                continue
            claimed.append(job)
        for job in claimed:
            kept = job.folder.load_checkpoint()
            together.setdefault(kept[1] if kept else -1, []).append(job)
            job.folder.set_status("running", job.label, pid=os.getpid())
            job.folder.write("config.yaml", yaml_text(job.experiment.config))
            job.folder.log(f"{f'goes on after round {kept[1]}' if kept else 'starts'}: {job.label}")
            if job.experiment.remark:
                job.folder.log(job.experiment.remark)
            watch.starts(job, data, kept[1] if kept else 0)
            job.setup = time.perf_counter() - begun
        for same_round in together.values():
            execute(same_round, data, watch, submit)
    except BaseException as error:
        unfinished = [job for job in claimed if not job.end and not job.finished()]
        for job in unfinished:
            job.fail(error)
            watch.ends(job)
        if not unfinished or isinstance(error, UserError) or not isinstance(error, (Exception, KeyboardInterrupt)):
            raise
    finally:
        for job in claimed:
            job.folder.release()
        for job in claimed:
            if job.end in FINISHED:
                track(job.experiment.tracker, job.folder)
