"""Run experiments: one, or several that differ in numbers only, each into a record of its own."""

import itertools
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import yaml

from fcorun import reference, solver
from fcorun.algorithms.base import Baseline, Tree
from fcorun.datasets.base import FederatedData
from fcorun.curves import draw_curves
from fcorun.engine import Engine, Numbers, Snapshot
from fcorun.evaluate import Evaluation, in_order
from fcorun.experiment import Experiment, prepare
from fcorun.record import Record, RunFolder, csv_text, npz_bytes
from fcorun.summary import summarize


class Watcher:
    """What is told of runs as they go; does nothing. Methods are called from the threads that run."""

    def reused(self, record: Record) -> None:
        """A finished record was found; nothing is computed."""

    def starts(self, job: "Job", data: FederatedData, resumed: int) -> None:
        """A run begins, or goes on after ``resumed`` rounds."""

    def row(self, job: "Job", row: dict[str, float]) -> None:
        """A run was evaluated."""

    def ends(self, job: "Job") -> None:
        """A run's record is complete."""


@dataclass
class Job:
    """One run on its way: what it is, where it goes, and its rows so far."""

    experiment: Experiment
    folder: RunFolder
    setup: float = 0.0  # seconds before the first compilation
    rows: list[dict[str, float]] = field(default_factory=list)
    optimum: dict | None = None  # of fcorun.reference.optimum
    certificate: dict | None = None  # of a baseline
    diverged: int = 0  # the round, or 0
    reason: str = ""
    end: str = ""  # the status, once the record is complete

    @property
    def label(self) -> str:
        """A line that says which run this is."""
        names, numbers = self.experiment.names, self.experiment.numbers()
        rates = " ".join(f"{k}={v:g}" for section in numbers.values() for k, v in section.items())
        return f"algo={names['algo']} data={names['data']} reg={names['reg']} {rates}".strip()

    def add(self, counters: dict[str, float], metrics: dict[str, float]) -> dict[str, float]:
        """Add an evaluation, with the gap to the optimum where that is known; the new row."""
        if self.optimum is not None:
            metrics["suboptimality"] = metrics["objective"] - self.optimum["objective"]
        self.rows.append(counters | in_order(metrics))
        return self.rows[-1]


def run(config: Mapping[str, Any], folder: str | Path | None = None, watch: Watcher | None = None) -> Record:
    """Run one configuration to the end and return its record.

    Args:
        config: plain values, as ``compose`` gives them or as a record's config.yaml holds them.
        folder: where the record goes; by default outputs/DATA/ALGORITHM-IDENTITY. If it holds the finished record of
            the same run, that is returned; an interrupted one is continued.

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
    configs: Sequence[Mapping[str, Any]], folders: Sequence[str | Path | None] | None = None, watch: Watcher | None = None
) -> list[Record]:
    """Run configurations that differ in numbers only (rates, strengths) as one program, minibatches shared.

    Each gets the record it would have had alone, to float tolerance. Arguments and errors as for ``run``; a ValueError
    says that the configurations differ in more than numbers.
    """
    begun = time.perf_counter()
    watch = watch or Watcher()
    experiments = [prepare(config) for config in configs]
    if len({e.batch_key for e in experiments}) > 1:
        raise ValueError("these configurations differ in more than the numbers of algo, reg and mirror")
    settings, data = experiments[0].settings, experiments[0].load()
    if isinstance(experiments[0].algo, Baseline):
        experiments[0].algo.rows(data.offsets)  # refuses a client that is not there, before anything is written
    places = [Path(f or e.default_folder) for e, f in zip(experiments, folders or [None] * len(experiments), strict=True)]
    unique = dict(zip(places, experiments, strict=True))
    jobs: dict[int, list[Job]] = {}
    claimed = []
    try:
        for place, experiment in unique.items():
            job = Job(experiment, RunFolder(place, experiment.identity))
            found = job.folder.claim(settings.force)
            if found == "finished":
                watch.reused(Record(place))
                continue
            claimed.append(job)
            kept = job.folder.load_checkpoint() if found == "resume" else None
            job.folder.write("config.yaml", yaml.safe_dump(experiment.config, sort_keys=False))
            job.folder.set_status("running", job.label, pid=os.getpid())
            job.folder.log(f"{'goes on after round ' + str(kept[1]) if kept else 'starts'}: {job.label}")
            jobs.setdefault(kept[1] if kept else -1, []).append(job)
            watch.starts(job, data, kept[1] if kept else 0)
        for job in claimed:
            job.setup = time.perf_counter() - begun
        for same_round in jobs.values():
            _run(same_round, data, watch)
    except BaseException as error:
        for job in claimed:
            if not job.end and isinstance(error, KeyboardInterrupt):
                reason = f"stopped after round {job.rows[-1]['round'] if job.rows else 0}"
                job.folder.log(f"interrupted: {reason}")
                job.folder.set_status("interrupted", job.label, reason)
            elif not job.end:
                job.folder.fail(error, job.label)
        raise
    finally:
        for job in claimed:
            job.folder.release()
    return [Record(place) for place in places]


def _run(jobs: list[Job], data: FederatedData, watch: Watcher) -> None:
    """Run jobs that start from the same round, in as many threads as there are cores."""
    for job in jobs:
        job.experiment = replace(job.experiment, reg=reference.with_strength(job.experiment, data))
        if job.experiment.settings.reference:
            job.optimum = reference.optimum(job.experiment, data)
            if not job.optimum["certified"]:
                job.folder.log(f"the reference optimum is not certified: {job.optimum}")
    if isinstance(jobs[0].experiment.algo, Baseline):
        for job in jobs:
            _solve(job, data, watch)
        return
    engine = jobs[0].experiment.engine(data)
    parts = min(os.cpu_count() or 1, max(1, len(jobs) // 4)) if jax.default_backend() == "cpu" else 1
    width = -(-len(jobs) // parts)
    batches = [jobs[i : i + width] for i in range(0, len(jobs), width)]
    stop = threading.Event()
    if len(batches) == 1:
        return _run_batch(engine, jobs, width, watch, stop)
    with ThreadPoolExecutor(parts) as pool:
        futures = [pool.submit(_run_batch, engine, batch, width, watch, stop) for batch in batches]
        try:
            for future in futures:
                future.result()
        except BaseException:
            stop.set()
            raise


def _run_batch(engine: Engine, jobs: list[Job], width: int, watch: Watcher, stop: threading.Event) -> None:
    """Run jobs as one program of ``width`` runs; the last job fills what is left of it."""
    settings = jobs[0].experiment.settings
    with jax.enable_x64(engine.precision == "float64"):
        points = [job.experiment.numbers() for job in jobs] + [jobs[-1].experiment.numbers()] * (width - len(jobs))
        up, down = engine.bytes_per_round(points)
        state, done, seconds = _resume(engine, jobs, points)
        saved, now = time.perf_counter(), None
        try:
            for now in engine.run(points, state, done, seconds):
                traffic = {"bytes_up": up * now.round, "bytes_down": down * now.round}
                for g, job in enumerate(jobs):
                    job.diverged = int(now.diverged[g])
                    if not job.diverged and (not job.rows or job.rows[-1]["round"] < now.round):
                        counters = {"round": now.round, "seconds": now.seconds / len(jobs), **traffic}
                        row = job.add(counters, {name: float(value[g]) for name, value in now.metrics.items()})
                        watch.row(job, row)
                if stop.is_set():
                    raise KeyboardInterrupt
                if time.perf_counter() - saved >= settings.checkpoint_every:
                    _checkpoint(jobs, now)
                    saved = time.perf_counter()
        except BaseException:
            if now is not None:
                _checkpoint(jobs, now)
            raise
    assert now is not None
    times = {"compile": engine.spent["compile"], "steady": now.seconds / len(jobs), "batched_with": len(jobs)}
    for g, job in enumerate(jobs):
        _finish(job, engine.data, {name: value[g] for name, value in now.solution.items()}, times, watch)


def _checkpoint(jobs: list[Job], now: Snapshot) -> None:
    for g, job in enumerate(jobs):
        leaves = [leaf[g] for leaf in jax.tree.leaves(now.state)]
        job.folder.save_checkpoint(leaves, now.round, now.seconds / len(jobs), job.rows)


def _resume(engine: Engine, jobs: list[Job], points: list[Numbers]) -> tuple[Tree, int, float]:
    """The state, round and seconds of the jobs' checkpoints; nothing when they start."""
    kept = [job.folder.load_checkpoint() for job in jobs]
    if kept[0] is None:
        return None, 0, 0.0
    structure = jax.tree.structure(engine.start(points))
    states = []
    for job, (leaves, _, _, rows) in zip(jobs, kept, strict=True):
        job.rows = rows
        states.append(jax.tree.unflatten(structure, leaves))
    states += states[-1:] * (len(points) - len(jobs))
    return jax.tree.map(lambda *v: np.stack(v), *states), kept[0][1], kept[0][2] * len(jobs)


def _solve(job: Job, data: FederatedData, watch: Watcher) -> None:
    """Run a baseline: a row a certificate, counted in iterations instead of rounds, and nothing communicated."""
    experiment, settings = job.experiment, job.experiment.settings
    algo, problem = experiment.algo, experiment.problem(data)
    with jax.enable_x64(True):
        evaluation = Evaluation(data, settings.client_weighting, settings.cutoff)
        everyone, extra = reference.gathered(data, settings.client_weighting), evaluation.arrays("float64")
        rows = reference.gathered(data, settings.client_weighting, algo.rows(data.offsets))
        measure = jax.jit(lambda w: evaluation.measure(problem, w, everyone.x, everyone.y, extra))
        clock = time.perf_counter()
        for now in solver.minimize(problem, rows, algo.tolerance, algo.max_iterations):
            counters = {"round": now.iteration, "seconds": time.perf_counter() - clock, "bytes_up": 0, "bytes_down": 0}
            row = job.add(counters, {name: float(value) for name, value in measure(now.w).items()})
            watch.row(job, row)
    if not now.certified:
        job.reason = f"not certified: {now.kind} {now.certificate:.3g} after {now.iteration} iterations"
    job.certificate = {"kind": now.kind, "value": now.certificate, "certified": now.certified}
    times = {"compile": 0.0, "steady": job.rows[-1]["seconds"], "batched_with": 1}
    _finish(job, data, {name: np.asarray(value) for name, value in now.w.items()}, times, watch)


def _finish(job: Job, data: FederatedData, solution: dict, times: dict[str, float], watch: Watcher) -> None:
    """Complete the record; its status comes last."""
    folder = job.folder
    status, reason = ("diverged", f"not finite in round {job.diverged}") if job.diverged else ("done", job.reason)
    times = {"setup": job.setup, **times}
    folder.write("metrics.csv", csv_text(job.rows))
    folder.write("solution.npz", npz_bytes(solution))
    folder.write("summary.json", json.dumps(summarize(job, data, status, times), indent=2) + "\n")
    folder.write("curves.png", draw_curves(job.rows, job.label, job.experiment.settings.cutoff))
    folder.log(f"{status} {reason}".strip() + f" after round {job.rows[-1]['round'] if job.rows else 0}")
    folder.set_status(status, job.label, reason, **({"round": job.diverged} if job.diverged else {}))
    folder.drop_checkpoint()
    job.end = status
    watch.ends(job)
