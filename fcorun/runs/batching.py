"""The division of runs into batches and over devices.

Runs of one batch fit into memory together, and share minibatches if they have one seed; batches keep the cores busy.
Devices are GPUs or the cores of a CPU.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import jax

from fcorun.algorithms.base import Algorithm
from fcorun.config import AUTO
from fcorun.engine.engine import Engine
from fcorun.engine.estimates import bytes_per_run, min_bytes_per_run, prefetch_bytes
from fcorun.engine.federation import Numbers
from fcorun.errors import UserError
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.runs.job import Job
from fcorun.system.hosts import current_hosts
from fcorun.system.machine import check_memory, compute_policy, free_device_memory, memory_limit, use_cores_as_devices

ALL_DEVICES = "all"
# the fewest bytes read in a round for each further core: with fewer, the synchronisation of the cores costs more
_BYTES_WORTH_A_CORE = 2**22
_POINTS_WORTH_A_BATCH = 4  # with at least as many points for each seed, each seed has batches of its own
_RUNS_WORTH_A_THREAD = 4  # the fewest runs for each further thread
_LARGE_RUNS_WORTH_A_THREAD = 2  # and so few, if the minibatches of all seeds have at least the bytes of a large round
_LARGE_ROUND_BYTES = 2**24


def split_jobs(engine: Engine, jobs: list[Job], n_threads: int) -> list[list[Job]]:
    """Split jobs into batches, at most one for each of ``n_threads`` threads, or more where memory does not suffice.

    Unless there are few jobs for each seed, the jobs of each seed are split by themselves, since those of a batch with
    one seed share minibatches.
    """
    jobs_by_seed: dict[int, list[Job]] = {}
    for job in jobs:
        jobs_by_seed.setdefault(job.experiment.settings.seed, []).append(job)
    groups = [jobs]
    if len(jobs) >= _POINTS_WORTH_A_BATCH * len(jobs_by_seed):
        groups = list(jobs_by_seed.values())
    batches = []
    for group in groups:
        batches += _split_group(engine, group, n_threads)
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
    check_memory(min_bytes_per_run(engine.federation, point), free_device_memory(), memory, description)
    bytes_per_thread = memory_limit(memory) / n_threads - reserved
    return max(1, int(bytes_per_thread // bytes_per_run(engine.federation, point, seeds)))


def _split_group(engine: Engine, jobs: list[Job], n_threads: int) -> list[list[Job]]:
    """Split a group of jobs into batches of nearly equal size, as large as memory and the number of threads allow."""
    first = jobs[0].experiment
    seeds = [job.experiment.settings.seed for job in jobs]
    n_seeds = len(set(seeds))
    budget = engine.row_bytes_budget
    width_limit = max_runs(engine, first.numbers(), seeds, first.settings.memory, n_threads, reserved=budget or 0)
    if budget is not None and n_seeds > 1:  # each seed reads other rows from disk
        width_limit = max(1, min(width_limit, budget // prefetch_bytes(engine.federation)))
    runs_per_thread = _RUNS_WORTH_A_THREAD
    if n_seeds * bytes_read_per_round(engine) >= _LARGE_ROUND_BYTES:
        runs_per_thread = _LARGE_RUNS_WORTH_A_THREAD
    n_batches = min(n_threads, max(1, len(jobs) // runs_per_thread))
    width = min(-(-len(jobs) // n_batches), width_limit)
    return [jobs[start : start + width] for start in range(0, len(jobs), width)]


def check_devices(experiments: Iterable[PreparedExperiment]) -> None:
    """Refuse more devices than the machine, or any of several hosts, has. Raises UserError."""
    for experiment in experiments:
        devices = experiment.settings.devices
        if devices in (AUTO, ALL_DEVICES, 1) or not isinstance(experiment.algo, Algorithm):
            continue
        use_cores_as_devices()
        devices_of_host = {0: jax.local_device_count()}
        if current_hosts():
            devices_of_host = Counter(device.process_index for device in jax.devices())
        smallest_host = min(devices_of_host, key=lambda host: devices_of_host[host])
        available = devices_of_host[smallest_host]
        if int(devices) > available:
            kind = compute_policy().device_name
            where = f" on host {smallest_host}" if len(devices_of_host) > 1 else ""
            raise UserError(
                f"devices={devices} exceeds the number of devices{where}, {available} ({kind}): give at most that, or "
                "devices=all"
            )


def choose_devices(devices: int | str, engine: Engine, n_runs: int) -> int:
    """Choose how many devices compute ``n_runs`` runs, by the setting ``devices``: a number, "all" or "auto".

    With "auto", several runs have all GPUs, and one run has one GPU. On a CPU, whose cores several runs share by
    threads, one run has as many cores as have enough to do in a round. On several hosts a number is that of each
    host, and "auto" is "all".
    """
    hosts = current_hosts()
    if hosts:
        return jax.device_count() if devices in (ALL_DEVICES, AUTO) else int(devices) * hosts.count
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
