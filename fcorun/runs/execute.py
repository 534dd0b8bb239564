"""The execution of jobs that differ in numbers only: in batches, by as many threads as there are cores."""

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
from fcorun.system.interruption import check_interrupted, wait_for_first
from fcorun.system.machine import available_cores, compute_policy, memory_limit


def execute(jobs: list[Job], data: FederatedData, watch: Watcher) -> None:
    """Run jobs that differ in numbers only and start from the same round."""
    jobs = [job for job in jobs if _resolve(job, data, watch)]
    if not jobs:
        return
    if isinstance(jobs[0].experiment.algo, Baseline):
        for job in jobs:
            run_baseline(job, data, watch)
        return
    settings = jobs[0].experiment.settings
    engine = build.build_engine(jobs[0].experiment, data)
    federation = engine.federation
    with jax.enable_x64(federation.precision == "float64"):
        n_devices = 1 if federation.debug else choose_devices(settings.devices, engine, len(jobs))
        engine = replace(engine, devices=n_devices)
        n_threads = 1
        if compute_policy().threaded_batches and not federation.debug and current_hosts() is None:
            n_threads = max(available_cores() // n_devices, 1)
        if data.on_disk:
            budget = int(memory_limit(settings.memory) * ROWS_MEMORY_SHARE / n_threads)
            engine = replace(engine, row_bytes_budget=budget)
            if engine.federation.needs_whole_data and engine.federation.arrays[0] is None:
                check_round_memory(data, engine.federation.schedule, settings, full_batch=True)
        build_on_all_hosts(engine, jobs[0].experiment)
        batches = [[job] for job in jobs] if federation.debug else split_jobs(engine, jobs, n_threads)
        seeds = {job.experiment.settings.seed for job in jobs}
        _annotate(engine, jobs, several_seeds=len(seeds) > 1)
        traffic = {seed: estimate_traffic(engine.federation, engine.rounds, seed) for seed in seeds}
        context = BatchContext(engine, traffic, watch)
    if len(batches) > 1:
        _run_in_threads(context, batches, n_threads)
        return
    remaining = batches[0]
    while remaining:
        remaining = run_with_oom_retry(context, remaining, len(remaining))


def _annotate(engine: Engine, jobs: list[Job], *, several_seeds: bool) -> None:
    """Set the fields of jobs that are known before they run, and warn if several seeds give the same numbers."""
    hosts = current_hosts()
    for job in jobs:
        assert isinstance(job.experiment.algo, Algorithm)
        job.upload_bytes = upload_bytes(engine.federation, job.experiment.algo)
        job.download_bytes = broadcast_bytes(engine.federation, job.experiment.algo)
        job.depends_on_seed = depends_on_seed(engine.federation)
        job.n_devices = engine.devices
        job.n_hosts = hosts.count if hosts else 1
        if several_seeds and not job.depends_on_seed:
            job.add_reason(f"the seed changes nothing here: {NO_RANDOMNESS}")


def _resolve(job: Job, data: FederatedData, watch: Watcher) -> bool:
    """Resolve the job's fields that are "auto" or relative, and compute its reference optimum.

    Returns False if the job cannot run; the other jobs of its grid continue.
    """
    check_interrupted()
    algo, numbers_before = job.experiment.algo, numeric_fields(job.experiment.objective)
    job.experiment = build.bind_objective(job.experiment, data)
    resolved_values = {}
    for name, value in numeric_fields(job.experiment.objective).items():
        if name not in numbers_before:
            resolved_values[f"objective.{name}"] = value
    job.experiment = job.experiment.with_resolved(reg=reference.resolve_strength(job.experiment, data))
    try:
        job.experiment, algo_values = build.resolve_auto(job.experiment, data)
    except UserError as error:
        job.fail(error)
        watch.on_end(job)
        return False
    job.resolved_values = resolved_values | (algo_values or {}) or None
    job.add_reason(algo.describe_auto(job.resolved_values or {}))
    if not job.experiment.settings.reference:
        return True
    job.optimum = reference.compute_optimum(job.experiment, data)
    target = (job.experiment.settings.stop or {}).get("suboptimality", float("inf"))
    resolution = job.objective_resolution()
    if target < resolution:
        precision = job.experiment.settings.precision
        message = (f"stop.suboptimality={target:g}: precision={precision} resolves {resolution:.1g} of an objective "
                   f"of {job.optimum['objective']:.3g}; give a larger target, or precision=float64")  # fmt: skip
        job.fail(UserError(message))
        watch.on_end(job)
        return False
    if not job.optimum["certified"]:
        certificate = f"{job.optimum['kind']} {job.optimum['certificate']:.3g}"
        job.add_reason(f"the reference optimum is not certified: {certificate}")
    return True


def _run_in_threads(context: BatchContext, batches: list[list[Job]], n_threads: int) -> None:
    """Run batches in ``n_threads`` threads. Jobs that are handed back are divided among the idle threads."""
    width = max(len(batch) for batch in batches)
    waiting = [(batch, width) for batch in batches]
    running = set()
    with ThreadPoolExecutor(n_threads) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < n_threads:
                    batch, width = waiting.pop(0)
                    running.add(pool.submit(run_with_oom_retry, context, batch, width))
                if len(running) < n_threads:
                    context.idle.set()
                ended, running = wait_for_first(running)
                context.idle.clear()
                handed_back = [jobs for jobs in (future.result() for future in ended) if jobs]
                n_pieces = (n_threads - len(running)) // max(
                    len(handed_back), 1
                )  # at least 1: each batch freed a thread
                for jobs in handed_back:
                    width = -(-len(jobs) // n_pieces)
                    waiting += [(jobs[start : start + width], width) for start in range(0, len(jobs), width)]
        except BaseException:
            context.stop.set()
            raise
