"""One batch: runs that go through the machine as one program, kept by checkpoints."""

import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

import jax
import numpy as np

from fcorun.algorithms.base import PyTree
from fcorun.datasets.base import FederatedData
from fcorun.engine.engine import Engine, Snapshot
from fcorun.engine.estimates import needs_state_file, state_structure
from fcorun.engine.federation import Numbers
from fcorun.engine.segments.client_states import ClientStateFile
from fcorun.engine.traffic import Traffic
from fcorun.experiment.convergence import measure_remaining_descent
from fcorun.experiment.optimality_gap import assess_gap, can_assess_gap
from fcorun.runs.finish import finish_run
from fcorun.runs.hosts.leader import run_rounds
from fcorun.runs.job import Job, Watcher
from fcorun.runs.progress import Progress
from fcorun.system.interruption import check_interrupted

_SHARED = 4  # runs that are worth dividing between two threads


@dataclass(frozen=True)
class BatchContext:
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


def run_with_oom_retry(context: BatchContext, jobs: list[Job], width: int) -> list[Job]:
    """Run a batch; if memory does not suffice after all, its halves one after the other. What is handed back."""
    try:
        return run_batch(context, jobs, width)
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if len(jobs) == 1 or not (isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)):
            raise
    jobs = [job for job in jobs if not job.end_status]
    half = -(-len(jobs) // 2)
    for part in (jobs[:half], jobs[half:]):
        for job in part:
            job.run_folder.log(f"memory did not suffice for {len(jobs)} runs at once: {len(part)} at once")
        while part:  # here, and in smaller programs, until they are over
            part = run_with_oom_retry(replace(context, idle=threading.Event()), part, len(part))
    return []


def run_batch(context: BatchContext, jobs: list[Job], width: int) -> list[Job]:
    """Run jobs as one program of ``width`` runs; the last job fills what is left of it.

    A run that meets a target of ``stop`` is over, and its record complete. When at least half of them are over or have
    diverged, or another thread has nothing to do, those that go on are handed back at their checkpoints, to run in
    smaller programs, if compiling these takes less time than they save.
    """
    engine, settings = context.engine, jobs[0].experiment.settings
    width += -width % engine.devices if width > engine.devices else 0  # each device has as many runs
    with jax.enable_x64(engine.federation.precision == "float64"):
        points = _filled([job.experiment.numbers() for job in jobs], width)
        seeds = _filled([job.experiment.settings.seed for job in jobs], width)
        state, done, seconds, work = _resume(engine, jobs, points)
        states = _states(engine, jobs, points, seeds, done)
        saved, now, back, progress = time.perf_counter(), None, [], Progress()
        engine.federation.nonfinite_clients.clear()
        computed = run_rounds(
            engine, points, seeds, state, done, elapsed_seconds=seconds, work=work, client_states=states
        )
        try:
            for now in computed:
                _note(context, jobs, now)
                _finish(
                    context, jobs, now, states, [g for g, job in enumerate(jobs) if job.stopped and not job.end_status]
                )
                check_interrupted()
                if context.stop.is_set():
                    raise KeyboardInterrupt
                alive = [g for g, job in enumerate(jobs) if not (job.divergence_round or job.end_status)]
                left = None  # seconds
                if now.round > done:
                    left = (now.seconds - seconds) / (now.round - done) * (settings.rounds - now.round)
                progress.log_progress([jobs[g] for g in alive], left, last=now.round == settings.rounds)
                if left is not None and len(jobs) > 1:
                    back = alive if _pays(context, len(alive), width, left) else []
                if back or not alive:
                    break
                if time.perf_counter() - saved >= settings.checkpoint_every:
                    _checkpoint(jobs, now, states)
                    saved = time.perf_counter()
            assert now is not None
            _finish(
                context, jobs, now, states, [g for g, job in enumerate(jobs) if g not in back and not job.end_status]
            )
        except BaseException:
            if now is not None:
                _checkpoint(jobs, now, states)
            raise
        finally:
            computed.close()
    _checkpoint(jobs, now, states, back)
    return [jobs[g] for g in back]


def _pays(crew: BatchContext, alive: int, width: int, left: float) -> bool:
    """Whether so many of ``width`` runs, which have ``left`` seconds to go, are over sooner in smaller programs."""
    shared = crew.idle.is_set() and alive >= _SHARED
    less = max(1 - alive / width, 0.5 * shared)
    return alive > 0 and less >= 0.5 and less * left > crew.engine.programs.estimated_recompile_seconds


def _filled(values: list, width: int) -> list:
    return values + values[-1:] * (width - len(values))


def _note(crew: BatchContext, jobs: list[Job], now: Snapshot) -> None:
    """A row more for each run that goes on, and whether it has met a target by that."""
    for g, job in enumerate(jobs):
        if job.end_status:
            continue
        job.divergence_round, lost = int(now.diverged[g]), crew.engine.federation.nonfinite_clients
        if job.divergence_round in lost:
            job.divergence_origin = f", first in client {lost[job.divergence_round]}"
        if job.divergence_round:
            continue
        if not job.rows or job.rows[-1]["round"] < now.round:
            sent = crew.traffic[job.experiment.settings.seed].bytes_after(
                now.round, job.upload_bytes, job.download_bytes
            )
            crew.watch.on_evaluation(job, job.add_snapshot(now, g, sent, now.seconds / len(jobs)))
        if not job.stopped:  # a row from before an interruption, which came while the record was completed, counts too
            job.check_targets()


def _finish(
    crew: BatchContext, jobs: list[Job], now: Snapshot, states: list[ClientStateFile] | None, over: Sequence[int]
) -> None:
    """Complete the records of the jobs at the places ``over``."""
    if not over:
        return
    times = {"compile": crew.engine.programs.compile_seconds, "steady": now.seconds / len(jobs)}
    times |= {"batched_with": len(jobs)}
    kept = now.client_models is not None and jobs[0].experiment.settings.save_personal
    models = jax.tree.map(np.asarray, now.client_models) if kept else None
    for g in over:
        solution = {name: value[g] for name, value in now.solution.items()}
        own = None if models is None else {name: value[g] for name, value in models.items()}
        jobs[g].check_growth()
        _judge(jobs[g], crew.engine.federation.data, solution)
        if now.client_models is not None and states is not None:
            _count(jobs[g], states[g], len(crew.engine.federation.data.sizes))
        finish_run(jobs[g], crew.engine.federation.data, solution, own, times=times)
        crew.watch.on_end(jobs[g])


def _count(job: Job, states: ClientStateFile, evaluated: int) -> None:
    """Say of how many clients of a population own models are measured that have any of their own."""
    there = states.count_participants(np.arange(evaluated))
    job.add_reason(
        f"own models are of {evaluated:,} evaluated clients, of whom {there:,} have taken part: the others' are "
        "what all begin with"
    )


def _judge(job: Job, data: FederatedData, solution: PyTree) -> None:
    """Say how far from the optimum a run ended whose steps were worked out for it, unless it is there."""
    if (
        not job.divergence_round
        and can_assess_gap(job.experiment, job.resolved_values)
        and np.isfinite(job.rows[-1]["objective"])
    ):
        assert job.resolved_values is not None
        if data.on_disk:
            job.add_reason("how near the optimum it ended is not judged, for that takes all rows in memory")
            return
        ends = (job.rows[0]["objective"], job.rows[-1]["objective"])
        verdict = assess_gap(job.experiment, data, solution, ends, job.resolved_values["least"])
        job.certificate = asdict(verdict)
        job.add_reason(verdict.describe(job.experiment, data, falling=measure_remaining_descent(job.rows) is not None))


def _checkpoint(
    jobs: list[Job], now: Snapshot, states: list[ClientStateFile] | None, places: Sequence[int] | None = None
) -> None:
    """Keep what the jobs that are not over, or those at ``places``, need to go on. Where clients' states have gone on
    since, the checkpoint before stays."""
    held = [np.asarray(leaf) for leaf in (*jax.tree.leaves(now.state), now.work)]  # of several hosts, this one's
    for g in (g for g, job in enumerate(jobs) if not job.end_status) if places is None else places:
        if states is not None and states[g].done != now.round:
            continue
        job, leaves = jobs[g], [leaf[g] for leaf in held]
        job.run_folder.save_checkpoint(leaves, now.round, now.seconds / len(jobs), job.rows)
        if states is not None:
            states[g].checkpoint()


def _states(
    engine: Engine, jobs: list[Job], points: list[Numbers], seeds: list[int], done: int
) -> list[ClientStateFile] | None:
    """The files with clients' states of a population, which stand beside the checkpoints; the last run's is also that
    of those that fill the program."""
    found = engine.open_client_states(points, seeds, [job.run_folder.client_states_path for job in jobs], done)
    return found and _filled(found, len(points))


def _resume(engine: Engine, jobs: list[Job], points: list[Numbers]) -> tuple[PyTree, int, float, np.ndarray | None]:
    """The state, round, seconds and work of the jobs' checkpoints; nothing when they start."""
    kept = [checkpoint for job in jobs if (checkpoint := job.run_folder.load_checkpoint()) is not None]
    lost = needs_state_file(engine.federation, points[0]) and any(
        not job.run_folder.client_states_path.exists() for job in jobs
    )
    if len(kept) < len(jobs) or lost:
        for job in jobs:
            job.rows = []
        return None, 0, 0.0, None
    tree = state_structure(engine.federation, points[0])
    states, work = [], []
    for job, ((*leaves, spent), _, _, rows) in zip(jobs, kept, strict=True):
        job.rows = rows
        states.append(jax.tree.unflatten(tree, leaves))
        work.append(spent)
    states, work = _filled(states, len(points)), np.array(_filled(work, len(points)))
    return jax.tree.map(lambda *v: np.stack(v), *states), kept[0][1], kept[0][2] * len(jobs), work
