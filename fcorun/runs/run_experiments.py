"""Run experiments, each into a record of its own: those that differ in numbers only by one program, in batches."""

import itertools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from fcorun.base.config import numeric_fields
from fcorun.base.errors import UserError
from fcorun.base.records.formats import yaml_text
from fcorun.base.records.record import FINISHED_STATUSES, IN_USE, Record, RunFolder
from fcorun.base.system.files import Keyed, check_interrupted, defer_interruption, wait_for_first
from fcorun.base.system.machine import available_cores, compute_policy, current_hosts, memory_limit, use_precision
from fcorun.data.datasets.dataset import FederatedData
from fcorun.engine.engine import CompiledPrograms, Engine, build_traffic, depends_on_seed, message_bytes
from fcorun.experiment import build
from fcorun.experiment.build import check_metric_measured, load_data
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.requirements import ROWS_MEMORY_SHARE, check_round_memory
from fcorun.experiment.tracker import NoTracker, call_tracker
from fcorun.methods.algorithms.algorithm import Algorithm, Baseline
from fcorun.results.models.fitted_record import FittedRecord
from fcorun.runs.batch import (
    BatchContext,
    check_devices,
    choose_devices,
    has_lost_key,
    lost_key_error,
    run_with_oom_retry,
    split_jobs,
)
from fcorun.runs.job import Job, Watcher, take_places
from fcorun.runs.several_hosts import build_on_all_hosts, load_on_all_hosts
from fcorun.runs.shared_cores import SharedCores
from fcorun.runs.tracked_runs import TrackedRuns


def run_experiments(
    experiments: Sequence[PreparedExperiment],
    folders: Sequence[str | Path | None],
    watch: Watcher | None = None,
    pictures: bool = True,
) -> list[FittedRecord]:
    """Run experiments that are prepared, in groups of equal ``batch_key``.

    Args:
        pictures: whether the record of a single run gets pictures. A point of a grid gets none.
    """
    paths = []
    for experiment, folder in zip(experiments, folders, strict=True):
        paths.append(Path(folder or experiment.default_folder))
    for metric in dict.fromkeys(experiment.settings.metric for experiment in experiments):
        check_metric_measured([e for e in experiments if e.settings.metric == metric], metric)
    experiment_of = dict(zip(paths, experiments, strict=True))
    for path, experiment in zip(paths, experiments, strict=True):
        if experiment_of[path].identity != experiment.identity:
            raise UserError(f"{path} is given to two different runs; give each a folder of its own")
    with_pictures = pictures and len(experiment_of) == 1
    groups: dict[str, list[Job]] = {}
    for path, experiment in experiment_of.items():
        if experiment.settings.force:
            Record(path).check_replaceable()
        job = Job(experiment, RunFolder(path, experiment.identity), with_pictures, experiment.settings.force)
        groups.setdefault(experiment.batch_key, []).append(job)
    errors: list[BaseException] = []
    for group in groups.values():
        try:
            run_jobs(group, watch or Watcher())
        except UserError as error:  # no job of this group was started
            errors.append(error)
        errors += [job.error for job in group if job.error is not None]
        for error in errors:
            if isinstance(error, KeyboardInterrupt):
                raise error
    for job in itertools.chain(*groups.values()):
        if job.end_status == "locked":
            raise UserError(f"{job.run_folder.path} {IN_USE}")
    for error in errors:
        raise error
    return [FittedRecord(path) for path in paths]


def run_jobs(jobs: list[Job], watch: Watcher, cores: SharedCores | None = None, keeps_places: bool = False) -> None:
    """Run jobs that differ in numbers only and are not over. Sets the ``end_status`` and ``error`` of each.

    Args:
        cores: those that the jobs share with others, which run in other threads; None: all of the machine.
        keeps_places: whether each job has its place in the programs whatever other jobs are over, so that the last
            digits of its numbers do not depend on them; programs do not become smaller then when jobs end early.

    Raises UserError if no job could be started: bad data, a folder that cannot be written or holds another run.
    """
    first = jobs[0].experiment
    cores = cores or SharedCores()
    study = first.settings.strength_study
    if study and first.chooses_strength and any(job.choose_strength is None for job in jobs):
        raise UserError(f"`study.strength={study.strength}` chooses the strength of each run of a sweep: give `-m` (in "
                        "Python, `Experiment.from_config(config).sweep(folder)`), or choose one with fcorun "
                        "select")  # fmt: skip
    check_devices([first])
    with cores.set_up:
        start = time.perf_counter()
        data = load_on_all_hosts(first) if isinstance(first.algo, Algorithm) else load_data(first)
    if isinstance(first.algo, Baseline):
        first.algo.select_rows(data.train.offsets)  # refuses a client that does not exist, before any file is written
    with defer_interruption():
        _claim_and_run(jobs, data, watch, start, cores, keeps_places=keeps_places)


def _claim_and_run(
    jobs: list[Job], data: FederatedData, watch: Watcher, start: float, cores: SharedCores, keeps_places: bool
) -> None:
    """Claim the folders of jobs, run those that are not finished, and release the folders."""
    settings = jobs[0].experiment.settings
    if not all(isinstance(job.experiment.tracker, NoTracker) for job in jobs):
        watch = TrackedRuns(watch)
    claimed: list[Job] = []
    try:
        for job in jobs:
            check_interrupted()
            if job.end_status:
                continue
            state = job.run_folder.claim(job.force, job.label)
            if state == "finished":
                from fcorun.runs.finish import has_other_threshold, rescore

                if has_other_threshold(Record(job.run_folder.path), settings.threshold):
                    state = "finished" if rescore(job, data) else "locked"
            if state in ("finished", "locked"):
                job.end_status = "reused" if state == "finished" else "locked"
                watch.on_end(job)
                continue
            claimed.append(job)
        for job in claimed:
            if job.choose_strength is not None:
                _choose_strength(job, watch, cores)
            _refuse_lost_key(job, watch)
        jobs_by_round: dict[int, list[Job]] = {}  # by the round of their checkpoints, -1 for none
        for job in claimed:
            if job.end_status:  # no strength could be chosen, or the key of the noise is lost
                continue
            checkpoint = job.run_folder.load_checkpoint()
            rounds_done = 0 if checkpoint is None else checkpoint.round
            jobs_by_round.setdefault(-1 if checkpoint is None else rounds_done, []).append(job)
            job.run_folder.mark_running(job.label)
            job.run_folder.write_file("config.yaml", yaml_text(job.experiment.config))
            job.run_folder.save_plugins(job.experiment.plugin_code)
            beginning = "starts" if checkpoint is None else f"resumes after round {rounds_done}"
            job.run_folder.log(f"{beginning}: {job.label}")
            for warning in job.list_warnings(data):
                job.run_folder.log(warning)
            watch.on_start(job, data, rounds_done)
            job.setup_seconds = time.perf_counter() - start
        for same_round in jobs_by_round.values():
            execute(take_places(jobs, same_round) if keeps_places else same_round, data, watch, cores, keeps_places)
    except BaseException as error:
        unfinished = [job for job in claimed if not job.end_status and not job.adopt_finished_record()]
        for job in unfinished:
            job.fail(error)
            watch.on_end(job)
        is_recorded = unfinished and isinstance(error, (Exception, KeyboardInterrupt))
        if not is_recorded or isinstance(error, UserError):
            raise
    finally:
        for job in claimed:
            job.run_folder.release()
        for job in claimed:
            has_tracker = not isinstance(job.experiment.tracker, NoTracker)
            if has_tracker and job.end_status in FINISHED_STATUSES:
                with cores.set_up:  # a tracker may have one current run in a process
                    call_tracker(job.experiment.tracker.log, job.run_folder)


def _choose_strength(job: Job, watch: Watcher, cores: SharedCores) -> None:
    """Have a job choose its strength; the job has failed if there is none to choose."""
    check_interrupted()
    assert job.choose_strength is not None
    job.run_folder.mark_running(job.label, "chooses its strength")
    try:
        with cores.set_up, cores.take(cores.count):
            job.experiment, job.selection = job.choose_strength(job.experiment)
    except UserError as error:
        job.fail(error)
        watch.on_end(job)


def _refuse_lost_key(job: Job, watch: Watcher) -> None:
    """Have a job fail whose secret key was in a checkpoint that is missing or cannot be read."""
    if has_lost_key(job) and job.run_folder.load_checkpoint() is None:
        job.fail(lost_key_error(job))
        watch.on_end(job)


def execute(jobs: list[Job], data: FederatedData, watch: Watcher, cores: SharedCores, keeps_places: bool) -> None:
    """Run jobs that differ in numbers only and start from the same round."""
    if jobs[0].experiment.settings.imputations:
        from fcorun.runs.pooled_fits import run_imputed

        for job in jobs:
            with cores.set_up, cores.take(1):
                run_imputed(job, data, watch)
        return
    with cores.set_up:
        jobs = [job for job in jobs if _resolve(job, data, watch)]
    if all(job.end_status for job in jobs):
        return
    if isinstance(jobs[0].experiment.algo, Baseline):
        from fcorun.runs.pooled_fits import run_baseline

        for job in jobs:
            with cores.take(1):
                run_baseline(job, data, watch)
        return
    with cores.set_up:
        context, batches, n_threads = _set_up_batches(jobs, data, watch, cores)
    if keeps_places:
        context = replace(context, keeps_places=True)
        batches = [batch for batch in batches if not all(job.end_status for job in batch)]
    if n_threads > 1 and len(jobs) > 1:
        _run_in_threads(context, batches, n_threads)
        return
    for remaining in batches:
        while remaining:
            remaining = run_with_oom_retry(context, remaining, len(remaining))


def _set_up_batches(
    jobs: list[Job], data: FederatedData, watch: Watcher, cores: SharedCores
) -> tuple[BatchContext, list[list[Job]], int]:
    """Build the engine of jobs, and divide them into batches; return what batches share, these, and their threads."""
    experiment = jobs[0].experiment
    settings = experiment.settings
    if settings.debug or current_hosts() is not None or data.train.stays_at_sites:
        engine = build.build_engine(experiment, data)
    else:
        key = f"{experiment.batch_key} {data.warnings}"  # records keep the warnings, which name files
        engine = _build_engine_once(Keyed(key, (experiment, data)))
    federation, earlier_compile_seconds = engine.federation, engine.programs.compile_seconds
    with use_precision(federation.precision):
        is_serial = federation.debug or data.train.stays_at_sites
        n_devices = 1 if is_serial else choose_devices(settings.devices, engine, len(jobs))
        engine = replace(engine, devices=n_devices)
        n_threads = 1
        if compute_policy().threaded_batches and not is_serial and current_hosts() is None:
            n_threads = max(available_cores() // n_devices, 1)
        if federation.fetches_rows:
            budget = int(memory_limit(settings.memory) * ROWS_MEMORY_SHARE / n_threads)
            engine = replace(engine, row_bytes_budget=budget)
            if federation.needs_whole_data:
                check_round_memory(data, engine.federation.schedule, settings, full_batch=True)
        build_on_all_hosts(engine, jobs[0].experiment)
        batches = [[job] for job in jobs]
        if not is_serial:
            batches = split_jobs(engine, jobs, n_threads, min(n_threads, cores.share))
        seeds = {job.experiment.settings.seed for job in jobs}
        hosts = current_hosts()
        for job in jobs:
            assert isinstance(job.experiment.algo, Algorithm)
            job.message_bytes = message_bytes(
                federation, job.experiment.algo, job.experiment.uplink, job.experiment.downlink
            )
            job.depends_on_seed = depends_on_seed(federation)
            job.n_devices = n_devices
            job.n_hosts = hosts.count if hosts else 1
        traffic = {seed: build_traffic(engine.federation, engine.rounds, seed) for seed in seeds}
        if federation.algorithm.works_in_row_span and not is_serial:
            engine.put_rows_on_device()
    return BatchContext(engine, traffic, watch, cores, earlier_compile_seconds), batches, n_threads


@lru_cache(maxsize=2)
def _build_engine_once(request: Keyed[tuple[PreparedExperiment, FederatedData]]) -> Engine:
    """Return the engine of a batch, whose compiled programs the next batch of the same key uses again.

    So does the next batch on data of the same law.
    """
    experiment, data = request.value
    engine = build.build_engine(experiment, data)
    if experiment.law_key is None:
        return engine
    problem = engine.federation.problem
    constants = (problem.curvature, problem.scale, data.train.offsets.tolist())  # of a program, besides its own key
    with use_precision(experiment.settings.precision):
        return engine.share_programs(lambda key: _programs_of_law(f"{experiment.law_key} {constants} {key}"))


@lru_cache(maxsize=64)
def _programs_of_law(key: str) -> CompiledPrograms:
    """Return the programs of all batches with this key; many algorithms may take turns on the data of each seed."""
    return CompiledPrograms()


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
    if job.experiment.reg.relative_or_none is not None:
        from fcorun.experiment.optimum import resolve_strength

        job.experiment = job.experiment.with_resolved(reg=resolve_strength(job.experiment, data))
    try:
        job.experiment, algo_values = build.resolve_auto(job.experiment, data)
    except UserError as error:
        job.fail(error)
        watch.on_end(job)
        return False
    job.resolved_values = resolved_values | (algo_values or {}) or None
    job.add_reason(algo.describe_auto(job.resolved_values or {}))
    if not job.experiment.settings.reference or job.end_status:
        return True
    from fcorun.experiment.optimum import compute_optimum

    job.optimum = compute_optimum(job.experiment, data)
    target = (job.experiment.settings.stop or {}).get("suboptimality", float("inf"))
    resolution = job.resolution(job.optimum["objective"])
    if target < resolution:
        precision = job.experiment.settings.precision
        job.fail(UserError(f"`stop.suboptimality={target:g}`: `precision={precision}` resolves {resolution:.1g} of an "
                           f"objective of {job.optimum['objective']:.3g}; give a larger target, or "
                           "`precision=float64`"))  # fmt: skip
        watch.on_end(job)
        return False
    if not job.optimum["certified"]:
        certificate = f"{job.optimum['kind']} {job.optimum['certificate']:.3g}"
        job.add_reason(f"the reference optimum is not certified: {certificate}")
    return True


def _run_in_threads(context: BatchContext, batches: list[list[Job]], n_threads: int) -> None:
    """Run batches in ``n_threads`` threads. Jobs that are handed back are divided over the group's free cores."""
    context = replace(context, uses_idle_cores=True)
    width = max(len(batch) for batch in batches)
    waiting = [(batch, width) for batch in batches]
    running = set()
    with ThreadPoolExecutor(n_threads) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < n_threads:
                    batch, width = waiting.pop(0)
                    running.add(pool.submit(copy_context().run, run_with_oom_retry, context, batch, width))
                ended, running = wait_for_first(running)
                handed_back = [jobs for jobs in (future.result() for future in ended) if jobs]
                n_free = min(n_threads, context.cores.share) - len(running)
                for k, jobs in enumerate(handed_back):
                    n_pieces = max(n_free // (len(handed_back) - k), 1)
                    n_free -= n_pieces
                    width = -(-len(jobs) // n_pieces)
                    waiting += [(jobs[start : start + width], width) for start in range(0, len(jobs), width)]
        except BaseException:
            context.stop.set()
            raise
