"""The computing of jobs: batches that fit memory, in as many threads as there are cores, kept by checkpoints."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fcorun.algorithms.base import Algorithm, Baseline, Tree
from fcorun.datasets.base import FederatedData
from fcorun.engine.engine import Engine, Numbers, Snapshot
from fcorun.engine.evaluate import Evaluation
from fcorun.engine.traffic import Traffic
from fcorun.errors import UserError
from fcorun.experiment import reference
from fcorun.problem import solver
from fcorun.problem.problem import Problem
from fcorun.runs.complete import complete
from fcorun.runs.summary import summarize
from fcorun.system.machine import cores, free_memory

if TYPE_CHECKING:
    from fcorun.runs.runner import Job, Watcher

_APART = 4  # points a seed, from which on seeds run apart
_SHARED = 4  # runs that are worth dividing between two threads

Submit = Callable[..., Future]  # (function, *arguments) -> the call, as a future


def execute(jobs: list["Job"], data: FederatedData, watch: "Watcher", submit: Submit | None = None) -> None:
    """Run jobs that differ in numbers only and start from the same round."""
    submit = submit or at_once
    for job in list(jobs):
        job.experiment = replace(job.experiment, reg=reference.with_strength(job.experiment, data))
        asked = job.experiment.algo
        try:
            job.experiment, job.bounds = job.experiment.resolved(data)
        except UserError as error:  # of this point of a grid; the others go on
            job.fail(error)
            watch.ends(job)
            jobs = [other for other in jobs if other is not job]
            continue
        if isinstance(asked, Algorithm):
            job.reason = asked.remark(job.bounds or {})
        if job.experiment.settings.reference:
            job.optimum = reference.optimum(job.experiment, data)
            if not job.optimum["certified"]:
                job.reason = (
                    f"the reference optimum is not certified: {job.optimum['kind']} {job.optimum['certificate']:.3g}"
                )
    if not jobs:
        return
    algo = jobs[0].experiment.algo
    if isinstance(algo, Baseline):
        for job in jobs:
            _solve(job, data, watch, submit)
        return
    engine = jobs[0].experiment.engine(data)
    parts = cores() if jax.default_backend() == "cpu" else 1
    with jax.enable_x64(engine.precision == "float64"):
        batches = [batch for same in _by_seed(jobs) for batch in _cut(engine, same, parts)]
        seeds = {job.experiment.settings.seed for job in jobs}
        traffic = {seed: engine.traffic(jobs[0].experiment.numbers(), seed) for seed in seeds}
    crew = _Crew(engine, traffic, watch, submit, threading.Event(), threading.Event())
    if len(batches) == 1:
        while batches:
            batches = [rest for batch in batches if (rest := _run_or_halve(crew, batch, len(batch)))]
        return
    _run_side_by_side(crew, batches, parts)


def _run_side_by_side(crew: "_Crew", batches: list[list["Job"]], parts: int) -> None:
    """Run batches in ``parts`` threads. What is handed back is divided among the threads that have nothing to do."""
    width = max(map(len, batches))
    waiting, running = [(batch, width) for batch in batches], set()
    with ThreadPoolExecutor(parts) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < parts:
                    running.add(pool.submit(_run_or_halve, crew, *waiting.pop(0)))
                if len(running) < parts:
                    crew.idle.set()
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                crew.idle.clear()
                back = [rest for future in ended if (rest := future.result())]
                pieces = (parts - len(running)) // max(len(back), 1)  # of each: one at least, for its thread is free
                for rest in back:
                    width = -(-len(rest) // pieces)
                    waiting += [(rest[i : i + width], width) for i in range(0, len(rest), width)]
        except BaseException:
            crew.stop.set()
            raise


@dataclass(frozen=True)
class _Crew:
    """What the threads of one call share.

    ``traffic`` is what the runs of each seed send. ``stop`` asks the threads to keep a checkpoint
    and leave, ``idle`` says that one of them has nothing to do.
    """

    engine: Engine
    traffic: dict[int, Traffic]
    watch: "Watcher"
    submit: Submit
    stop: threading.Event
    idle: threading.Event


def _by_seed(jobs: list["Job"]) -> list[list["Job"]]:
    """The jobs of each seed apart where that leaves enough of each, for their minibatches are shared; else together."""
    seeds: dict[int, list[Job]] = {}
    for job in jobs:
        seeds.setdefault(job.experiment.settings.seed, []).append(job)
    return list(seeds.values()) if len(jobs) >= _APART * len(seeds) else [jobs]


def _cut(engine: Engine, jobs: list["Job"], parts: int) -> list[list["Job"]]:
    """The jobs in batches: one a thread, or more where they would not fit into memory together."""
    first = jobs[0].experiment
    allowed = free_memory() * 0.6 if first.settings.memory is None else first.settings.memory * 2**30
    seeds = len({job.experiment.settings.seed for job in jobs})
    fitting = int(allowed // parts // engine.bytes_each(first.numbers(), seeds))
    count = min(parts, max(1, len(jobs) // 4))
    width = max(1, min(-(-len(jobs) // count), fitting))
    return [jobs[i : i + width] for i in range(0, len(jobs), width)]


def _run_or_halve(crew: _Crew, jobs: list["Job"], width: int) -> list["Job"]:
    """Run a batch; if memory does not suffice after all, its halves one after the other. What is handed back."""
    try:
        return _run_batch(crew, jobs, width)
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if len(jobs) == 1 or not (isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)):
            raise
    half = -(-len(jobs) // 2)
    for part in (jobs[:half], jobs[half:]):
        for job in part:
            job.folder.log(f"memory did not suffice for {len(jobs)} runs at once: {len(part)} at once")
        while part:  # here, and in smaller programs, until they are over
            part = _run_or_halve(replace(crew, idle=threading.Event()), part, len(part))
    return []


def _run_batch(crew: _Crew, jobs: list["Job"], width: int) -> list["Job"]:
    """Run jobs as one program of ``width`` runs; the last job fills what is left of it.

    When at least half of them have diverged, or another thread has nothing to do, those that go on are handed back at
    their checkpoints, to run in smaller programs; late in a run that would not pay.
    """
    engine, settings = crew.engine, jobs[0].experiment.settings
    with jax.enable_x64(engine.precision == "float64"):
        points = [job.experiment.numbers() for job in jobs]
        points += points[-1:] * (width - len(points))
        seeds = [job.experiment.settings.seed for job in jobs]
        seeds += seeds[-1:] * (width - len(seeds))
        state, done, seconds, work = _resume(engine, jobs, points)
        saved, now, back = time.perf_counter(), None, []
        try:
            for now in engine.run(points, seeds, state, done, seconds, work):
                for g, job in enumerate(jobs):
                    job.diverged = int(now.diverged[g])
                    if not job.diverged and (not job.rows or job.rows[-1]["round"] < now.round):
                        evals = dict(zip(("grad_evals", "prox_evals"), now.work[g].tolist(), strict=True))
                        sent = crew.traffic[seeds[g]].after(now.round)
                        counters = {"round": now.round, "seconds": now.seconds / len(jobs), **sent, **evals}
                        row = job.add(counters, {name: float(value[g]) for name, value in now.metrics.items()})
                        crew.watch.row(job, row)
                if crew.stop.is_set():
                    raise KeyboardInterrupt
                alive = [g for g, job in enumerate(jobs) if not job.diverged]
                fewer = 2 * len(alive) <= len(jobs) or (crew.idle.is_set() and len(alive) >= _SHARED)
                if fewer and alive and len(jobs) > 1 and done < now.round <= settings.rounds / 2:
                    back = alive
                    break
                if time.perf_counter() - saved >= settings.checkpoint_every:
                    _checkpoint(jobs, now)
                    saved = time.perf_counter()
        except BaseException:
            if now is not None:
                _checkpoint(jobs, now)
            raise
    assert now is not None
    times = {"compile": engine.spent["compile"], "steady": now.seconds / len(jobs), "batched_with": len(jobs)}
    over = [g for g in range(len(jobs)) if g not in back]
    solutions = [{name: value[g] for name, value in now.solution.items()} for g in over]
    models = None if now.models is None or not settings.save_personal else jax.tree.map(np.asarray, now.models)
    personal = None if models is None else [{name: value[g] for name, value in models.items()} for g in over]
    _finish([jobs[g] for g in over], engine.data, solutions, personal, times, crew.watch, crew.submit)
    _checkpoint(jobs, now, back)
    return [jobs[g] for g in back]


def _checkpoint(jobs: list["Job"], now: Snapshot, places: Sequence[int] | None = None) -> None:
    """Keep what the jobs, or those at ``places``, need to go on."""
    for g in range(len(jobs)) if places is None else places:
        job, leaves = jobs[g], [leaf[g] for leaf in (*jax.tree.leaves(now.state), now.work)]
        job.folder.save_checkpoint(leaves, now.round, now.seconds / len(jobs), job.rows)


def _resume(engine: Engine, jobs: list["Job"], points: list[Numbers]) -> tuple[Tree, int, float, np.ndarray | None]:
    """The state, round, seconds and work of the jobs' checkpoints; nothing when they start."""
    kept = [checkpoint for job in jobs if (checkpoint := job.folder.load_checkpoint()) is not None]
    if len(kept) < len(jobs):
        for job in jobs:
            job.rows = []
        return None, 0, 0.0, None
    structure = engine.structure(points[0])
    states, work = [], []
    for job, ((*leaves, spent), _, _, rows) in zip(jobs, kept, strict=True):
        job.rows = rows
        states.append(jax.tree.unflatten(structure, leaves))
        work.append(spent)
    states += states[-1:] * (len(points) - len(jobs))
    work += work[-1:] * (len(points) - len(jobs))
    return jax.tree.map(lambda *v: np.stack(v), *states), kept[0][1], kept[0][2] * len(jobs), np.array(work)


def _solve(job: "Job", data: FederatedData, watch: "Watcher", submit: Submit) -> None:
    """Run a baseline: a row a certificate, counted in iterations instead of rounds, and nothing communicated."""
    experiment, settings = job.experiment, job.experiment.settings
    algo, problem = experiment.algo, experiment.problem(data)
    assert isinstance(algo, Baseline)
    with jax.enable_x64(True):
        evaluation = Evaluation(data, settings.client_weighting, settings.cutoff)
        everyone, extra = reference.gathered(data, settings.client_weighting), evaluation.arrays("float64")
        given = algo.rows(data.offsets)
        rows = reference.gathered(data, settings.client_weighting, given)
        measure = jax.jit(lambda w: evaluation.measure(problem, w, everyone.x, everyone.y, extra))
        clock = time.perf_counter()
        for now in solver.minimize(_own(problem, data, given), rows, algo.tolerance, algo.max_iterations):
            counters = {"round": now.iteration, "seconds": time.perf_counter() - clock}
            counters |= dict.fromkeys(("bytes_up", "bytes_down", "grad_evals", "prox_evals"), 0)
            if not np.isfinite(now.objective):
                job.diverged = max(now.iteration, 1)
                break
            row = job.add(counters, {name: float(value) for name, value in measure(now.w).items()})
            watch.row(job, row)
    if not now.certified and not job.diverged:
        job.reason = f"not certified: {now.kind} {now.certificate:.3g} after {now.iteration} iterations"
    job.certificate = {"kind": now.kind, "value": now.certificate, "certified": now.certified}
    times = {"compile": 0.0, "steady": time.perf_counter() - clock, "batched_with": 1}
    _finish([job], data, [{name: np.asarray(value) for name, value in now.w.items()}], None, times, watch, submit)


def _own(problem: Problem, data: FederatedData, rows: slice) -> Problem:
    """The problem of whom these rows belong to: of one client, with its own numbers of the regularizer."""
    owner = np.flatnonzero((data.offsets[:-1] == rows.start) & (data.offsets[1:] == rows.stop))
    each = problem.regularizer.per_client or {}
    return (
        problem.with_numbers({name: float(values[owner[0]]) for name, values in each.items()})
        if len(owner)
        else problem
    )


def _finish(
    jobs: list["Job"],
    data: FederatedData,
    solutions: list[dict],
    personal: list[dict] | None,
    times: dict,
    watch: "Watcher",
    submit: Submit,
):
    """Complete the records of jobs that have ended; ``personal`` are the clients' own models of each, to be kept."""
    futures = []
    for job, solution, models in zip(jobs, solutions, personal or [None] * len(jobs), strict=True):
        if models is not None:
            models |= {"client": np.array(data.clients or range(len(data.sizes)))}
        status, reason = ("diverged", f"not finite in round {job.diverged}") if job.diverged else ("done", job.reason)
        judged = next(name for name in ("personal_train_loss", "objective") if name in job.rows[-1])
        if status == "done" and job.rows[-1][judged] > job.rows[0][judged]:
            name = "objective" if judged == "objective" else "own models' training loss"
            reason = job.reason = reason or f"the {name} ended above where it began: smaller rates may help"
        summary = summarize(job, data, status, {"setup": job.setup, **times})
        folder = replace(job.folder, lock=None)
        futures.append(submit(complete, folder, job.rows, solution, models, summary, reason, job.diverged))
    for job, future in zip(jobs, futures, strict=True):  # each by itself: one that cannot be written spoils no other
        try:
            future.result()
        except Exception as error:
            job.fail(error)
        else:
            job.end = "diverged" if job.diverged else "done"
        watch.ends(job)


def at_once(function: Callable, *arguments: Any) -> Future:
    """Call now, in this process."""
    future: Future = Future()
    try:
        future.set_result(function(*arguments))
    except Exception as error:
        future.set_exception(error)
    return future
