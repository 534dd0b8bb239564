"""One batch: runs that go through the machine as one program, kept by checkpoints."""

import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

import jax
import numpy as np

from fcorun.algorithms.base import Tree
from fcorun.datasets.base import FederatedData
from fcorun.engine.engine import Engine, Snapshot
from fcorun.engine.federation import Numbers
from fcorun.engine.footprint import filed, structure
from fcorun.engine.stretch.states import States
from fcorun.engine.traffic import Traffic
from fcorun.experiment.ending import unfinished
from fcorun.experiment.verdict import judge, wanted
from fcorun.runs.finish import finish
from fcorun.runs.hosts.leading import rounds_of
from fcorun.runs.job import Job, Watcher
from fcorun.runs.progress import Progress
from fcorun.system.interruption import check_interrupted

_SHARED = 4  # runs that are worth dividing between two threads


@dataclass(frozen=True)
class Crew:
    """What the threads of one call share.

    Attributes:
        traffic: what the runs of each seed send.
        stop: asks the threads to keep a checkpoint and leave.
        idle: says that one of them has nothing to do.
    """

    engine: Engine
    traffic: dict[int, Traffic]
    watch: Watcher
    stop: threading.Event = field(default_factory=threading.Event)
    idle: threading.Event = field(default_factory=threading.Event)


def run_or_halve(crew: Crew, jobs: list[Job], width: int) -> list[Job]:
    """Run a batch; if memory does not suffice after all, its halves one after the other. What is handed back."""
    try:
        return run_batch(crew, jobs, width)
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if len(jobs) == 1 or not (isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)):
            raise
    jobs = [job for job in jobs if not job.end]
    half = -(-len(jobs) // 2)
    for part in (jobs[:half], jobs[half:]):
        for job in part:
            job.folder.log(f"memory did not suffice for {len(jobs)} runs at once: {len(part)} at once")
        while part:  # here, and in smaller programs, until they are over
            part = run_or_halve(replace(crew, idle=threading.Event()), part, len(part))
    return []


def run_batch(crew: Crew, jobs: list[Job], width: int) -> list[Job]:
    """Run jobs as one program of ``width`` runs; the last job fills what is left of it.

    A run that meets a target of ``stop`` is over, and its record complete. When at least half of them are over or have
    diverged, or another thread has nothing to do, those that go on are handed back at their checkpoints, to run in
    smaller programs, if compiling these takes less time than they save.
    """
    engine, settings = crew.engine, jobs[0].experiment.settings
    width += -width % engine.devices if width > engine.devices else 0  # each device has as many runs
    with jax.enable_x64(engine.federation.precision == "float64"):
        points = _filled([job.experiment.numbers() for job in jobs], width)
        seeds = _filled([job.experiment.settings.seed for job in jobs], width)
        state, done, seconds, work = _resume(engine, jobs, points)
        states = _states(engine, jobs, points, seeds, done)
        saved, now, back, progress = time.perf_counter(), None, [], Progress()
        engine.federation.lost.clear()
        computed = rounds_of(engine, points, seeds, state, done, seconds=seconds, work=work, states=states)
        try:
            for now in computed:
                _note(crew, jobs, now)
                _finish(crew, jobs, now, states, [g for g, job in enumerate(jobs) if job.stopped and not job.end])
                check_interrupted()
                if crew.stop.is_set():
                    raise KeyboardInterrupt
                alive = [g for g, job in enumerate(jobs) if not (job.diverged or job.end)]
                left = None  # seconds
                if now.round > done:
                    left = (now.seconds - seconds) / (now.round - done) * (settings.rounds - now.round)
                progress.note([jobs[g] for g in alive], left, last=now.round == settings.rounds)
                if left is not None and len(jobs) > 1:
                    back = alive if _pays(crew, len(alive), width, left) else []
                if back or not alive:
                    break
                if time.perf_counter() - saved >= settings.checkpoint_every:
                    _checkpoint(jobs, now, states)
                    saved = time.perf_counter()
            assert now is not None
            _finish(crew, jobs, now, states, [g for g, job in enumerate(jobs) if g not in back and not job.end])
        except BaseException:
            if now is not None:
                _checkpoint(jobs, now, states)
            raise
        finally:
            computed.close()
    _checkpoint(jobs, now, states, back)
    return [jobs[g] for g in back]


def _pays(crew: Crew, alive: int, width: int, left: float) -> bool:
    """Whether so many of ``width`` runs, which have ``left`` seconds to go, are over sooner in smaller programs."""
    shared = crew.idle.is_set() and alive >= _SHARED
    less = max(1 - alive / width, 0.5 * shared)
    return alive > 0 and less >= 0.5 and less * left > crew.engine.programs.seconds_more


def _filled(values: list, width: int) -> list:
    return values + values[-1:] * (width - len(values))


def _note(crew: Crew, jobs: list[Job], now: Snapshot) -> None:
    """A row more for each run that goes on, and whether it has met a target by that."""
    for g, job in enumerate(jobs):
        if job.end:
            continue
        job.diverged, lost = int(now.diverged[g]), crew.engine.federation.lost
        if job.diverged in lost:
            job.where = f", first in client {lost[job.diverged]}"
        if job.diverged:
            continue
        if not job.rows or job.rows[-1]["round"] < now.round:
            sent = crew.traffic[job.experiment.settings.seed].after(now.round, job.up, job.down)
            crew.watch.row(job, job.note(now, g, sent, now.seconds / len(jobs)))
        if not job.stopped:  # a row from before an interruption, which came while the record was completed, counts too
            job.meets()


def _finish(crew: Crew, jobs: list[Job], now: Snapshot, states: list[States] | None, over: Sequence[int]) -> None:
    """Complete the records of the jobs at the places ``over``."""
    if not over:
        return
    times = {"compile": crew.engine.programs.seconds, "steady": now.seconds / len(jobs)}
    times |= {"batched_with": len(jobs)}
    kept = now.models is not None and jobs[0].experiment.settings.save_personal
    models = jax.tree.map(np.asarray, now.models) if kept else None
    for g in over:
        solution = {name: value[g] for name, value in now.solution.items()}
        own = None if models is None else {name: value[g] for name, value in models.items()}
        jobs[g].judge_growth()
        _judge(jobs[g], crew.engine.federation.data, solution)
        if now.models is not None and states is not None:
            _count(jobs[g], states[g], len(crew.engine.federation.data.sizes))
        finish(jobs[g], crew.engine.federation.data, solution, own, times=times)
        crew.watch.ends(jobs[g])


def _count(job: Job, states: States, evaluated: int) -> None:
    """Say of how many clients of a population own models are measured that have any of their own."""
    there = states.taken_part(np.arange(evaluated))
    job.remark(f"own models are of {evaluated:,} evaluated clients, of whom {there:,} have taken part: the others' are "
               "what all begin with")  # fmt: skip


def _judge(job: Job, data: FederatedData, solution: Tree) -> None:
    """Say how far from the optimum a run ended whose steps were worked out for it, unless it is there."""
    if not job.diverged and wanted(job.experiment, job.bounds) and np.isfinite(job.rows[-1]["objective"]):
        assert job.bounds is not None
        if data.on_disk:
            job.remark("how near the optimum it ended is not judged, for that takes all rows in memory")
            return
        ends = (job.rows[0]["objective"], job.rows[-1]["objective"])
        verdict = judge(job.experiment, data, solution, ends, job.bounds["least"])
        job.certificate = asdict(verdict)
        job.remark(verdict.sentence(job.experiment, data, falling=unfinished(job.rows) is not None))


def _checkpoint(
    jobs: list[Job], now: Snapshot, states: list[States] | None, places: Sequence[int] | None = None
) -> None:
    """Keep what the jobs that are not over, or those at ``places``, need to go on. Where clients' states have gone on
    since, the checkpoint before stays."""
    held = [np.asarray(leaf) for leaf in (*jax.tree.leaves(now.state), now.work)]  # of several hosts, this one's
    for g in (g for g, job in enumerate(jobs) if not job.end) if places is None else places:
        if states is not None and states[g].done != now.round:
            continue
        job, leaves = jobs[g], [leaf[g] for leaf in held]
        job.folder.save_checkpoint(leaves, now.round, now.seconds / len(jobs), job.rows)
        if states is not None:
            states[g].keep()


def _states(engine: Engine, jobs: list[Job], points: list[Numbers], seeds: list[int], done: int) -> list[States] | None:
    """The files with clients' states of a population, which stand beside the checkpoints; the last run's is also that
    of those that fill the program."""
    found = engine.states(points, seeds, [job.folder.states for job in jobs], done)
    return found and _filled(found, len(points))


def _resume(engine: Engine, jobs: list[Job], points: list[Numbers]) -> tuple[Tree, int, float, np.ndarray | None]:
    """The state, round, seconds and work of the jobs' checkpoints; nothing when they start."""
    kept = [checkpoint for job in jobs if (checkpoint := job.folder.load_checkpoint()) is not None]
    lost = filed(engine.federation, points[0]) and any(not job.folder.states.exists() for job in jobs)
    if len(kept) < len(jobs) or lost:
        for job in jobs:
            job.rows = []
        return None, 0, 0.0, None
    tree = structure(engine.federation, points[0])
    states, work = [], []
    for job, ((*leaves, spent), _, _, rows) in zip(jobs, kept, strict=True):
        job.rows = rows
        states.append(jax.tree.unflatten(tree, leaves))
        work.append(spent)
    states, work = _filled(states, len(points)), np.array(_filled(work, len(points)))
    return jax.tree.map(lambda *v: np.stack(v), *states), kept[0][1], kept[0][2] * len(jobs), work
