"""The computing of jobs that differ in numbers only: in batches, by as many threads as there are cores."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jax

from fcorun.algorithms.base import Algorithm, Baseline
from fcorun.config import numbers
from fcorun.datasets.base import FederatedData
from fcorun.engine.engine import Engine
from fcorun.engine.footprint import broadcast_bytes, drawn, traffic, upload_bytes
from fcorun.errors import UserError
from fcorun.experiment import build, reference
from fcorun.experiment.ending import UNDRAWN
from fcorun.experiment.on_disk import SHARE, check_round
from fcorun.runs.baseline import solve
from fcorun.runs.batch import Crew, run_or_halve
from fcorun.runs.hosts.leading import built
from fcorun.runs.job import Job, Watcher
from fcorun.runs.memory import chosen, cut
from fcorun.system.hosts import joined
from fcorun.system.interruption import check_interrupted
from fcorun.system.machine import allowed_memory, cores
from fcorun.system.waiting import first_of


def execute(jobs: list[Job], data: FederatedData, watch: Watcher) -> None:
    """Run jobs that differ in numbers only and start from the same round."""
    jobs = [job for job in jobs if _made_ready(job, data, watch)]
    if not jobs:
        return
    if isinstance(jobs[0].experiment.algo, Baseline):
        for job in jobs:
            solve(job, data, watch)
        return
    engine, settings = build.engine_for(jobs[0].experiment, data), jobs[0].experiment.settings
    with jax.enable_x64(engine.federation.precision == "float64"):
        devices = 1 if engine.federation.debug else chosen(settings.devices, engine, len(jobs))
        engine = replace(engine, devices=devices)
        alone = jax.default_backend() != "cpu" or engine.federation.debug or joined() is not None
        parts = 1 if alone else max(cores() // devices, 1)
        if data.on_disk:
            engine = replace(engine, budget=int(allowed_memory(settings.memory) * SHARE / parts))
            if engine.federation.takes_whole and engine.federation.arrays[0] is None:
                check_round(data, engine.federation.schedule, settings, whole=True)
        built(engine, jobs[0].experiment)
        batches = [[job] for job in jobs] if engine.federation.debug else cut(engine, jobs, parts)
        seeds = {job.experiment.settings.seed for job in jobs}
        _foretell(engine, jobs, len(seeds) > 1)
        crew = Crew(engine, {seed: traffic(engine.federation, engine.rounds, seed) for seed in seeds}, watch)
    if len(batches) == 1:
        while batches:
            batches = [rest for batch in batches if (rest := run_or_halve(crew, batch, len(batch)))]
    else:
        _run_side_by_side(crew, batches, parts)


def _foretell(engine: Engine, jobs: list[Job], several: bool) -> None:
    """Note what is known of the jobs before they run; remark it where ``several`` seeds change nothing."""
    federation, chance = engine.federation, drawn(engine.federation)
    for job in jobs:
        assert isinstance(job.experiment.algo, Algorithm)
        job.up, job.down = (of(federation, job.experiment.algo) for of in (upload_bytes, broadcast_bytes))
        job.drawn = chance
        job.devices = engine.devices
        job.hosts = hosts.count if (hosts := joined()) else 1
        if several and not chance:
            job.remark(f"the seed changes nothing here: {UNDRAWN}")


def _made_ready(job: Job, data: FederatedData, watch: Watcher) -> bool:
    """Work out what is relative, "auto" or a reference; whether the job can run: if not, the others of a grid go on."""
    check_interrupted()
    asked, given = job.experiment.algo, numbers(job.experiment.objective)
    job.experiment = build.bind_objective(job.experiment, data)
    found = numbers(job.experiment.objective)
    worked_out = {f"objective.{name}": value for name, value in found.items() if name not in given}
    job.experiment = replace(job.experiment, reg=reference.with_strength(job.experiment, data))
    try:
        job.experiment, bounds = build.resolved(job.experiment, data)
        job.bounds = worked_out | (bounds or {}) or None
    except UserError as error:
        job.fail(error)
        watch.ends(job)
        return False
    job.remark(asked.remark(job.bounds or {}))
    if job.experiment.settings.reference:
        job.optimum = reference.optimum(job.experiment, data)
        target, least = (job.experiment.settings.stop or {}).get("suboptimality", float("inf")), job.resolution()
        if target < least:
            precision = job.experiment.settings.precision
            job.fail(
                UserError(
                    f"stop.suboptimality={target:g}: precision={precision} resolves {least:.1g} of an objective "
                    f"of {job.optimum['objective']:.3g}; give a larger target, or precision=float64"
                )
            )
            watch.ends(job)
            return False
        if not job.optimum["certified"]:
            found = f"{job.optimum['kind']} {job.optimum['certificate']:.3g}"
            job.remark(f"the reference optimum is not certified: {found}")
    return True


def _run_side_by_side(crew: Crew, batches: list[list[Job]], parts: int) -> None:
    """Run batches in ``parts`` threads. What is handed back is divided among the threads that have nothing to do."""
    width = max(map(len, batches))
    waiting, running = [(batch, width) for batch in batches], set()
    with ThreadPoolExecutor(parts) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < parts:
                    running.add(pool.submit(run_or_halve, crew, *waiting.pop(0)))
                if len(running) < parts:
                    crew.idle.set()
                ended, running = first_of(running)
                crew.idle.clear()
                back = [rest for future in ended if (rest := future.result())]
                pieces = (parts - len(running)) // max(len(back), 1)  # of each: one at least, for its thread is free
                for rest in back:
                    width = -(-len(rest) // pieces)
                    waiting += [(rest[i : i + width], width) for i in range(0, len(rest), width)]
        except BaseException:
            crew.stop.set()
            raise
