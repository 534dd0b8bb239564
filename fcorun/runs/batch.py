"""Batches: runs that one program computes together, how runs are divided into them, and resumption."""

import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace

import jax
import numpy as np

from fcorun.base.config import AUTO
from fcorun.base.errors import UserError
from fcorun.base.records.formats import Checkpoint
from fcorun.base.records.record import Record
from fcorun.base.system.machine import (
    check_memory,
    compute_policy,
    current_hosts,
    format_gib,
    free_device_memory,
    memory_limit,
    use_cores_as_devices,
    use_precision,
)
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.site_rows import SiteRows
from fcorun.engine.engine import (
    Engine,
    Snapshot,
    bytes_per_run,
    min_bytes_per_run,
    needs_state_file,
    prefetch_bytes,
    state_structure,
    upload_bytes_at_once,
)
from fcorun.engine.federation import Numbers
from fcorun.engine.segments.client_states import ClientStateFile
from fcorun.engine.traffic import Traffic
from fcorun.experiment.experiment import PreparedExperiment, measure_remaining_descent
from fcorun.experiment.optimality_gap import (
    advise,
    aims_at_optimum,
    assess_gap,
    describe_unknown_gap,
    summarize_duality_gap,
)
from fcorun.methods.algorithms.algorithm import Algorithm, PyTree
from fcorun.runs.client_history import ClientHistory
from fcorun.runs.job import Job, Progress, RunFollower, Start, Watcher, repeat_last
from fcorun.runs.shared_cores import SharedCores

# The division of runs into batches and over devices.
#
# Runs of one batch fit into memory together, and share minibatches if they have one seed; batches keep the cores busy.
# Devices are GPUs or the cores of a CPU.

ALL_DEVICES = "all"
# the fewest bytes read in a round for each further core: with fewer, the synchronization of the cores costs more
_BYTES_WORTH_A_CORE = 2**22
_POINTS_WORTH_A_BATCH = 4  # with at least as many points for each seed, each seed has batches of its own
RUNS_WORTH_A_THREAD = 4  # the fewest runs for each further thread
_LARGE_RUNS_WORTH_A_THREAD = 2  # the same, if a round of the minibatches of all seeds has at least _LARGE_ROUND_BYTES
_LARGE_ROUND_BYTES = 2**24


def split_jobs(engine: Engine, jobs: list[Job], n_threads: int, share: int | None = None) -> list[list[Job]]:
    """Split jobs into batches, at most one for each of ``n_threads`` threads, or more where memory does not suffice.

    Where other groups of jobs compute in these threads, too, there are at most ``share`` batches, since a wide program
    does less: on a LASSO, a step of 42 runs takes 1.5 times as long as one of 21.

    Unless there are few jobs for each seed, the jobs of each seed are split by themselves, since those of a batch with
    one seed share minibatches. The batches of a group are of nearly equal size.
    """
    jobs_by_seed: dict[int, list[Job]] = {}
    for job in jobs:
        jobs_by_seed.setdefault(job.experiment.settings.seed, []).append(job)
    groups = [jobs]
    if len(jobs) >= _POINTS_WORTH_A_BATCH * len(jobs_by_seed):
        groups = list(jobs_by_seed.values())
    batches = []
    for group in groups:
        first = group[0].experiment
        seeds = [job.experiment.settings.seed for job in group]
        n_seeds = len(set(seeds))
        budget = engine.row_bytes_budget
        width_limit = max_runs(engine, first.numbers(), seeds, first.settings.memory, n_threads, reserved=budget or 0)
        if budget is not None and n_seeds > 1:  # each seed reads other rows from disk
            width_limit = max(1, min(width_limit, budget // prefetch_bytes(engine.federation)))
        runs_per_thread = RUNS_WORTH_A_THREAD
        if n_seeds * bytes_read_per_round(engine) >= _LARGE_ROUND_BYTES:
            runs_per_thread = _LARGE_RUNS_WORTH_A_THREAD
        n_batches = min(share or n_threads, max(1, len(group) // runs_per_thread))
        width = min(-(-len(group) // n_batches), width_limit)
        batches += [group[start : start + width] for start in range(0, len(group), width)]
    return batches


def max_runs(
    engine: Engine, point: Numbers, seeds: Sequence[int], memory: float | None, n_threads: int, reserved: int = 0
) -> int:
    """Return how many runs with these seeds fit into the memory of each of ``n_threads`` threads, at least 1.

    Args:
        memory: the memory in GiB; None for the free memory.
        reserved: the bytes of it that each thread needs for other things.

    Raises UserError if a single run does not fit.
    """
    data, shapes = engine.federation.data, engine.federation.problem.shapes
    n_parameters = sum(math.prod(shape) for shape in shapes.values())
    description = f"a run on {data.n_clients:,} clients with {n_parameters:,} parameters"
    needed = min_bytes_per_run(engine.federation, point)
    uploads = upload_bytes_at_once(engine.federation)
    if uploads > needed / 2:
        description += f", whose uploads take {format_gib(uploads)} (`clients_at_once=1` computes one at a time),"
    check_memory(needed, free_device_memory(), memory, description)
    bytes_per_thread = memory_limit(memory) / n_threads - reserved
    return max(1, int(bytes_per_thread // bytes_per_run(engine.federation, point, seeds)))


def check_devices(experiments: Iterable[PreparedExperiment]) -> None:
    """Refuse more devices than the machine, or any of several hosts, has. Raises UserError."""
    given = {each.settings.devices for each in experiments if isinstance(each.algo, Algorithm)} - {AUTO, ALL_DEVICES, 1}
    if not given:
        return
    use_cores_as_devices()
    devices_of_host = _count_devices_of_hosts()
    smallest_host, available = min(devices_of_host.items(), key=lambda item: item[1])
    largest = max(map(int, given))
    if largest > available:
        kind = compute_policy().device_name
        where = f" on host {smallest_host}" if len(devices_of_host) > 1 else ""
        raise UserError(
            f"`devices={largest}` exceeds the number of devices{where}, {available} ({kind}): give at most that, or "
            "`devices=all`"
        )


def _count_devices_of_hosts() -> Counter[int]:
    """Return the number of devices of each host, by rank."""
    return Counter(device.process_index for device in jax.devices())


def choose_devices(devices: int | str, engine: Engine, n_runs: int) -> int:
    """Choose how many devices compute ``n_runs`` runs, by the setting ``devices``: a number, "all" or "auto".

    With "auto", several runs have all GPUs, and one run has one GPU. On a CPU, whose cores several runs share by
    threads, one run has as many cores as have enough to do in a round. On several hosts a number is that of each
    host, and "auto" and "all" are the number of the host that has fewest, since each host computes equal parts.
    """
    hosts = current_hosts()
    if hosts:
        of_each = min(_count_devices_of_hosts().values()) if devices in (ALL_DEVICES, AUTO) else int(devices)
        return of_each * hosts.count
    if devices == ALL_DEVICES:
        use_cores_as_devices()
        return jax.local_device_count()
    if devices != AUTO:
        return int(devices)
    if not compute_policy().threaded_batches:
        return jax.local_device_count() if n_runs > 1 else 1
    if n_runs > 1:
        return 1
    return min(jax.local_device_count(), max(1, bytes_read_per_round(engine) // _BYTES_WORTH_A_CORE))


def bytes_read_per_round(engine: Engine) -> int:
    """Return the bytes of the rows on which the clients of a round compute their gradients, step by step."""
    federation, schedule = engine.federation, engine.federation.schedule
    device_rows = federation.arrays[0]
    bytes_per_step = federation.layout.client_bytes(device_rows and device_rows.decomposed)
    return schedule.cohort_size * int(schedule.steps.max()) * bytes_per_step * (schedule.edge_rounds or 1)


# Batches: runs that one program computes together, resumed from checkpoints.


@dataclass(frozen=True)
class BatchContext:
    """The state that the threads of one call share.

    Attributes:
        traffic: the bytes sent in the runs of each seed.
        cores: those that compute the batches.
        earlier_compile_seconds: the time that earlier runs of the same engine spent compiling.
        stop: set to make the threads save a checkpoint and end.
        uses_idle_cores: whether jobs that a batch hands back may run on other cores.
        keeps_places: whether no job is handed back, since it would have another place in a smaller program.
    """

    engine: Engine
    traffic: dict[int, Traffic]
    watch: Watcher
    cores: SharedCores
    earlier_compile_seconds: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)
    uses_idle_cores: bool = False
    keeps_places: bool = False


def run_with_oom_retry(context: BatchContext, jobs: list[Job], width: int) -> list[Job]:
    """Run a batch, or its halves one after the other if it exhausts the memory.

    Returns the jobs that ``run_batch`` hands back.
    """
    try:
        return run_batch(context, jobs, width)
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        out_of_memory = isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)
        if width <= max(1, context.engine.devices) or not out_of_memory:
            raise
    jobs = [job for job in jobs if not job.end_status]
    middle = -(-len(jobs) // 2)
    for half in (jobs[:middle], jobs[middle:]):
        for job in half:
            job.run_folder.log(f"memory did not suffice for {width} runs at once: {len(half)} at once")
        remaining = half
        while remaining:  # jobs that are handed back run in smaller programs, in this thread
            own_context = replace(context, uses_idle_cores=False)
            remaining = run_with_oom_retry(own_context, remaining, len(remaining))
    return []


def run_batch(context: BatchContext, jobs: list[Job], width: int) -> list[Job]:
    """Run jobs as one program of ``width`` runs; repeats of the last job fill the program.

    A run that meets a target of ``stop`` is over, and its record complete. When at least half of the runs are over or
    have diverged, or a core is idle, the other jobs are handed back at their checkpoints to run in smaller programs, if
    compiling these takes less time than they save.
    """
    engine, settings = context.engine, jobs[0].experiment.settings
    if width > engine.devices:
        width += -width % engine.devices  # so that each device has as many runs
    with context.cores.take(engine.devices), use_precision(engine.federation.precision):
        points = repeat_last([job.experiment.numbers() for job in jobs], width)
        seeds = repeat_last([job.experiment.settings.seed for job in jobs], width)
        start = _resume(engine, jobs, points)
        paths = [None if job.end_status else job.run_folder.client_states_path for job in jobs]
        files = engine.open_client_states(points, seeds, paths, start.round)
        client_states = files and repeat_last(files, width)  # None if the states are in the checkpoints
        progress, last_checkpoint = Progress(), time.perf_counter()
        resumable = [] if engine.federation.data.train.stays_at_sites else jobs  # connections to sites have a journal
        handed_back: list[int] = []  # indices of jobs
        follower = RunFollower(
            engine, jobs, points, traffic=context.traffic, on_row=context.watch.on_evaluation, stop=context.stop
        )
        snapshots = follower.follow(start, client_states)
        try:
            for snapshot in snapshots:
                ended = [i for i, job in enumerate(jobs) if job.ended and not job.end_status]
                _finish_jobs(context, jobs, snapshot, client_states, ended)
                alive = [i for i, job in enumerate(jobs) if not (job.divergence_round or job.end_status)]
                seconds_left = None
                if snapshot.round > start.round:
                    seconds_per_round = (snapshot.seconds - start.seconds) / (snapshot.round - start.round)
                    seconds_left = seconds_per_round * (settings.rounds - snapshot.round)
                progress.log_progress([jobs[i] for i in alive], seconds_left, last=snapshot.round == settings.rounds)
                if seconds_left is not None and _is_worth_splitting(
                    context, len(jobs), len(alive), width, seconds_left
                ):
                    handed_back = alive
                if handed_back or not alive:
                    break
                # a secret key must outlast a kill, lest the same rounds are told once more with other noise, and so
                # must the first row of rounds with noise, which tells that they cost something
                has_new_key = len(jobs[0].rows) <= 2 and jobs[0].experiment.privacy.has_secret_key
                if has_new_key or time.perf_counter() - last_checkpoint >= settings.checkpoint_every:
                    _save_checkpoints(resumable, snapshot, client_states)
                    last_checkpoint = time.perf_counter()
            ended = [i for i, job in enumerate(jobs) if i not in handed_back and not job.end_status]
            _finish_jobs(context, jobs, snapshot, client_states, ended)
        except BaseException:
            if follower.snapshot is not None:
                _save_checkpoints(resumable, follower.snapshot, client_states)
            raise
        finally:
            snapshots.close()
    if handed_back:
        _save_checkpoints(jobs, snapshot, client_states, handed_back)
    return [jobs[i] for i in handed_back]


def _is_worth_splitting(context: BatchContext, n_jobs: int, alive: int, width: int, seconds_left: float) -> bool:
    """Return whether ``alive`` of a batch's runs, with ``seconds_left`` to go, end sooner in smaller programs.

    The answer depends on measured times and on idle threads, and so do the last digits of a wide grid. A rule by shapes
    alone would leave threads idle where most runs of another batch end early, by targets, certificates or divergence.

    Args:
        width: the number of runs of the program, ``n_jobs`` and their padding.
    """
    share_saved = 1 - alive / width
    if context.uses_idle_cores and alive >= 2 * RUNS_WORTH_A_THREAD and context.cores.has_idle():
        share_saved = max(share_saved, 0.5)  # the idle core takes half of the runs
    if context.keeps_places or n_jobs == 1 or alive == 0 or share_saved < 0.5:
        return False
    return share_saved * seconds_left > context.engine.programs.estimated_recompile_seconds


def _finish_jobs(
    context: BatchContext,
    jobs: list[Job],
    snapshot: Snapshot,
    client_states: list[ClientStateFile] | None,
    indices: Sequence[int],
) -> None:
    """Complete the records of the jobs at ``indices``, which end with this snapshot."""
    if not indices:
        return
    from fcorun.runs.finish import finish_run

    data = context.engine.federation.data
    algorithm = context.engine.federation.algorithm
    times = {
        "compile": context.engine.programs.compile_seconds - context.earlier_compile_seconds,
        "steady": snapshot.seconds / len(jobs),
        "batched_with": len(jobs),
    }
    all_models = None
    if snapshot.client_models is not None and jobs[0].experiment.settings.save_personal:
        all_models = jax.tree.map(np.asarray, snapshot.client_models)
    for i in indices:
        solution = {name: values[i] for name, values in snapshot.solution.items()}
        models = None if all_models is None else {name: values[i] for name, values in all_models.items()}
        jobs[i].check_growth()
        _assess_gap(jobs[i], data, solution)
        if snapshot.client_models is not None and client_states is not None:
            n_evaluated = len(data.train.sizes)
            participants = client_states[i].count_participants(np.arange(n_evaluated))
            jobs[i].add_reason(f"personal models are of {n_evaluated:,} evaluated clients, of whom {participants:,} "
                               "have taken part; the others still have the initial model")  # fmt: skip
        intervals = None
        if algorithm.has_client_estimates and snapshot.round and not jobs[i].divergence_round:
            from fcorun.results.models.meta_analysis import tabulate_estimates

            server = jax.tree.map(lambda values, i=i: np.asarray(values)[i], snapshot.state["server"])
            estimates = algorithm.client_estimates(server)
            intervals = tabulate_estimates(jobs[i].experiment, data, solution, estimates)
            for warning in intervals.warnings:
                jobs[i].add_reason(warning)
        files = intervals.files if intervals else {}
        subjects = [intervals.table] if intervals else []
        finish_run(jobs[i], data, solution, models, times=times, files=files, subjects=subjects)
        context.watch.on_end(jobs[i])


def _assess_gap(job: Job, data: FederatedData, solution: PyTree) -> None:
    """Assess the optimality gap of a run that aims at the optimum, and describe a large one.

    The gap follows from a solver on all rows, where the steps of the run were resolved for it, or where the run ended
    by its algorithm's own certificate; of rows that stay at sites, from the duality gap at the end, if the run measured
    that.
    """
    if job.divergence_round or not aims_at_optimum(job.experiment):
        return
    objectives = (job.rows[0]["objective"], job.rows[-1]["objective"])
    duality_gap = job.rows[-1].get("gap", np.inf)
    falling = measure_remaining_descent(job.rows) is not None
    resolved = job.resolved_values or {}
    has_resolved_steps = "least" in resolved and any(name.startswith("algo.") for name in resolved)
    if data.train.stays_at_sites:
        if "gap" not in job.rows[-1]:
            if not (job.convergence or job.experiment.settings.reference):  # which measure the distance
                job.add_reason(describe_unknown_gap(job.experiment, data))
        elif not np.isfinite(duality_gap):
            away = isinstance(data.train, SiteRows) and data.train.absences.entries
            why = "was not measured at the end, where a site was away" if away else "is not finite"
            job.add_reason(f"how near the optimum it ended is not known: its duality gap {why}")
        else:
            gap = summarize_duality_gap(objectives, duality_gap)
            job.certificate = asdict(gap)
            if not (gap.near or job.stopped):
                advice = advise(job.experiment, data, falling)
                job.add_reason(
                    f"the objective ended at most {duality_gap:.3g} above the optimum, by its duality gap: {advice}"
                )
        return
    if not np.isfinite(objectives[1]) or not (has_resolved_steps or job.convergence):
        return
    if data.train.why_not_in_memory:
        if not job.convergence:
            job.add_reason("how near the optimum it ended is not judged, for that takes all rows in memory")
    else:
        least = resolved.get("least", 0.0)
        gap = assess_gap(job.experiment, data, solution, objectives, least, duality_gap=duality_gap)
        job.certificate = asdict(gap)
        if gap.near is False or not job.convergence:  # where no bound decides, the algorithm's certificate stands
            job.add_reason(gap.describe(job.experiment, data, falling=falling))


def _save_checkpoints(
    jobs: list[Job],
    snapshot: Snapshot,
    client_states: list[ClientStateFile] | None,
    indices: Sequence[int] | None = None,
) -> None:
    """Save checkpoints of the jobs at ``indices``, by default of the jobs that are not over.

    The checkpoint before stays if the file of the clients' states is at a later round.
    """
    leaves = [np.asarray(leaf) for leaf in (*jax.tree.leaves(snapshot.state), snapshot.work)]  # local to this host
    if indices is None:
        indices = [i for i, job in enumerate(jobs) if not job.end_status]
    for i in indices:
        if client_states is not None and client_states[i].rounds_done != snapshot.round:
            continue
        seconds = snapshot.seconds / len(jobs)
        of_job = [leaf[i] for leaf in leaves]
        clients = jobs[i].clients.to_arrays()
        checkpoint = Checkpoint(of_job, snapshot.round, seconds, jobs[i].rows, clients)
        jobs[i].run_folder.save_checkpoint(checkpoint, jobs[i].experiment.privacy.has_secret_key)
        if client_states is not None:
            client_states[i].checkpoint()


def has_lost_key(job: Job) -> bool:
    """Return whether a run that began anew would draw another secret key than that of rounds that were told."""
    return job.experiment.privacy.has_secret_key and bool(Record(job.run_folder.path).spent_epsilon)


def lost_key_error(job: Job) -> UserError:
    """Return the refusal to begin anew with another secret key, with what the rounds so far have cost."""
    spent = Record(job.run_folder.path).spent_epsilon
    return UserError(f"the checkpoint {job.run_folder.checkpoint_path} is missing or cannot be read, and with it the "
                     "secret key of `privacy` is lost: another run has other noise, and costs its epsilon besides that "
                     f"of the rounds so far, {spent} and more after it; choose another folder, which keeps this "
                     "record, and add the two")  # fmt: skip


def _resume(engine: Engine, jobs: list[Job], points: list[Numbers]) -> Start:
    """Return the checkpoints of the jobs as one start; the beginning unless every job has a checkpoint.

    All jobs of a batch have checkpoints of one round: ``run_jobs`` groups them so.
    """
    checkpoints = []
    for job in jobs:
        checkpoint = job.run_folder.load_checkpoint()
        if checkpoint is not None:
            checkpoints.append(checkpoint)
    complete = len(checkpoints) == len(jobs)
    if needs_state_file(engine.federation, points[0]):
        complete = complete and all(job.run_folder.client_states_path.exists() for job in jobs)
    if not complete:
        for job in jobs:
            if has_lost_key(job):
                raise lost_key_error(job)
            job.rows = []
            job.clients = ClientHistory()
        return Start()
    structure = state_structure(engine.federation, points[0])
    states, work = [], []
    for job, checkpoint in zip(jobs, checkpoints, strict=True):
        *leaves, job_work = checkpoint.leaves
        job.rows = checkpoint.rows
        job.clients = ClientHistory.from_arrays(checkpoint.clients)
        states.append(jax.tree.unflatten(structure, leaves))
        work.append(job_work)
    state = jax.tree.map(lambda *leaves: np.stack(leaves), *repeat_last(states, len(points)))
    first = checkpoints[0]
    return Start(state, first.round, first.seconds * len(jobs), np.array(repeat_last(work, len(points))))
