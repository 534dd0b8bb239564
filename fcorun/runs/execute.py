"""The computing of jobs that differ in numbers only: in batches, by as many threads as there are cores."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jax

from fcorun.algorithms.base import Algorithm, Baseline
from fcorun.config import numeric_fields
from fcorun.datasets.base import FederatedData
from fcorun.engine.engine import Engine
from fcorun.engine.estimates import broadcast_bytes, depends_on_seed, estimate_traffic, upload_bytes
from fcorun.errors import UserError
from fcorun.experiment import build, reference
from fcorun.experiment.convergence import NO_RANDOMNESS
from fcorun.experiment.row_requirements import ROWS_MEMORY_SHARE, check_round_memory
from fcorun.runs.baseline import run_baseline
from fcorun.runs.batch import BatchContext, run_with_oom_retry
from fcorun.runs.batching import choose_devices, split_jobs
from fcorun.runs.hosts.leader import build_on_all_hosts
from fcorun.runs.job import Job, Watcher
from fcorun.system.hosts import current_hosts
from fcorun.system.interruption import check_interrupted
from fcorun.system.machine import available_cores, memory_limit
from fcorun.system.polling import wait_for_first


def execute(jobs: list[Job], data: FederatedData, watch: Watcher) -> None:
    """Run jobs that differ in numbers only and start from the same round."""
    jobs = [job for job in jobs if _made_ready(job, data, watch)]
    if not jobs:
        return
    if isinstance(jobs[0].experiment.algo, Baseline):
        for job in jobs:
            run_baseline(job, data, watch)
        return
    engine, settings = build.build_engine(jobs[0].experiment, data), jobs[0].experiment.settings
    with jax.enable_x64(engine.federation.precision == "float64"):
        devices = 1 if engine.federation.debug else choose_devices(settings.devices, engine, len(jobs))
        engine = replace(engine, devices=devices)
        alone = jax.default_backend() != "cpu" or engine.federation.debug or current_hosts() is not None
        parts = 1 if alone else max(available_cores() // devices, 1)
        if data.on_disk:
            engine = replace(engine, row_bytes_budget=int(memory_limit(settings.memory) * ROWS_MEMORY_SHARE / parts))
            if engine.federation.needs_whole_data and engine.federation.arrays[0] is None:
                check_round_memory(data, engine.federation.schedule, settings, full_batch=True)
        build_on_all_hosts(engine, jobs[0].experiment)
        batches = [[job] for job in jobs] if engine.federation.debug else split_jobs(engine, jobs, parts)
        seeds = {job.experiment.settings.seed for job in jobs}
        _foretell(engine, jobs, len(seeds) > 1)
        crew = BatchContext(
            engine, {seed: estimate_traffic(engine.federation, engine.rounds, seed) for seed in seeds}, watch
        )
    if len(batches) == 1:
        while batches:
            batches = [rest for batch in batches if (rest := run_with_oom_retry(crew, batch, len(batch)))]
    else:
        _run_side_by_side(crew, batches, parts)


def _foretell(engine: Engine, jobs: list[Job], several: bool) -> None:
    """Note what is known of the jobs before they run; remark it where ``several`` seeds change nothing."""
    federation, chance = engine.federation, depends_on_seed(engine.federation)
    for job in jobs:
        assert isinstance(job.experiment.algo, Algorithm)
        job.upload_bytes, job.download_bytes = (
            of(federation, job.experiment.algo) for of in (upload_bytes, broadcast_bytes)
        )
        job.depends_on_seed = chance
        job.n_devices = engine.devices
        job.n_hosts = hosts.count if (hosts := current_hosts()) else 1
        if several and not chance:
            job.add_reason(f"the seed changes nothing here: {NO_RANDOMNESS}")


def _made_ready(job: Job, data: FederatedData, watch: Watcher) -> bool:
    """Work out what is relative, "auto" or a reference; whether the job can run: if not, the others of a grid go on."""
    check_interrupted()
    asked, given = job.experiment.algo, numeric_fields(job.experiment.objective)
    job.experiment = build.bind_objective(job.experiment, data)
    found = numeric_fields(job.experiment.objective)
    worked_out = {f"objective.{name}": value for name, value in found.items() if name not in given}
    job.experiment = replace(job.experiment, reg=reference.resolve_strength(job.experiment, data))
    try:
        job.experiment, bounds = build.resolve_auto(job.experiment, data)
        job.resolved_values = worked_out | (bounds or {}) or None
    except UserError as error:
        job.fail(error)
        watch.on_end(job)
        return False
    job.add_reason(asked.describe_auto(job.resolved_values or {}))
    if job.experiment.settings.reference:
        job.optimum = reference.compute_optimum(job.experiment, data)
        target, least = (
            (job.experiment.settings.stop or {}).get("suboptimality", float("inf")),
            job.objective_resolution(),
        )
        if target < least:
            precision = job.experiment.settings.precision
            job.fail(
                UserError(
                    f"stop.suboptimality={target:g}: precision={precision} resolves {least:.1g} of an objective "
                    f"of {job.optimum['objective']:.3g}; give a larger target, or precision=float64"
                )
            )
            watch.on_end(job)
            return False
        if not job.optimum["certified"]:
            found = f"{job.optimum['kind']} {job.optimum['certificate']:.3g}"
            job.add_reason(f"the reference optimum is not certified: {found}")
    return True


def _run_side_by_side(crew: BatchContext, batches: list[list[Job]], parts: int) -> None:
    """Run batches in ``parts`` threads. What is handed back is divided among the threads that have nothing to do."""
    width = max(map(len, batches))
    waiting, running = [(batch, width) for batch in batches], set()
    with ThreadPoolExecutor(parts) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < parts:
                    running.add(pool.submit(run_with_oom_retry, crew, *waiting.pop(0)))
                if len(running) < parts:
                    crew.idle.set()
                ended, running = wait_for_first(running)
                crew.idle.clear()
                back = [rest for future in ended if (rest := future.result())]
                pieces = (parts - len(running)) // max(len(back), 1)  # of each: one at least, for its thread is free
                for rest in back:
                    width = -(-len(rest) // pieces)
                    waiting += [(rest[i : i + width], width) for i in range(0, len(rest), width)]
        except BaseException:
            crew.stop.set()
            raise
