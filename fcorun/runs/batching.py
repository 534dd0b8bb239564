"""Which runs go through the machine together: what shares minibatches, fits into memory, and keeps the cores busy; and
on how many devices, GPUs or the cores of a CPU."""

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
from fcorun.experiment.experiment import Experiment
from fcorun.runs.job import Job
from fcorun.system.hosts import current_hosts
from fcorun.system.machine import check_memory, free_device_memory, memory_limit, use_cores_as_devices

ALL_DEVICES = "all"
_WORTH = 2**22  # bytes that a core is to read in a round: with less, measured, the cores' meeting at its end costs more
_APART = 4  # points a seed, from which on seeds run apart
_FEW = 4  # runs that are worth a thread more,
_FEWER, _MUCH = 2, 2**24  # or these, where so many bytes are read in a round: each seed has minibatches of its own


def split_jobs(engine: Engine, jobs: list[Job], parts: int) -> list[list[Job]]:
    """The jobs in batches: one for each of ``parts`` threads, or more where they would not fit into memory together."""
    return [batch for same in _by_seed(jobs) for batch in _fitting(engine, same, parts)]


def max_runs(
    engine: Engine, point: Numbers, seeds: Sequence[int], memory: float | None, parts: int, taken: int = 0
) -> int:
    """How many runs with these seeds fit into the memory of each of ``parts`` threads, at least 1; ``memory`` is in
    GiB, None for what is free, and ``taken`` the bytes of it that each thread has for something else. Raises UserError
    where not even one run fits."""
    data, parameters = engine.federation.data, engine.federation.problem.shapes
    what = f"a run on {data.n_clients:,} clients with {sum(map(math.prod, parameters.values())):,} parameters"
    check_memory(min_bytes_per_run(engine.federation, point), free_device_memory(), memory, what)
    return max(1, int((memory_limit(memory) / parts - taken) // bytes_per_run(engine.federation, point, seeds)))


def _by_seed(jobs: list[Job]) -> list[list[Job]]:
    """The jobs of each seed apart where that leaves enough of each, for their minibatches are shared; else together."""
    seeds: dict[int, list[Job]] = {}
    for job in jobs:
        seeds.setdefault(job.experiment.settings.seed, []).append(job)
    return list(seeds.values()) if len(jobs) >= _APART * len(seeds) else [jobs]


def _fitting(engine: Engine, jobs: list[Job], parts: int) -> list[list[Job]]:
    first = jobs[0].experiment
    seeds = [job.experiment.settings.seed for job in jobs]
    several = len(set(seeds))
    fitting = max_runs(engine, first.numbers(), seeds, first.settings.memory, parts, taken=engine.row_bytes_budget or 0)
    if engine.row_bytes_budget is not None and several > 1:  # each has rows of its own
        fitting = max(1, min(fitting, engine.row_bytes_budget // prefetch_bytes(engine.federation)))
    few = _FEWER if several * bytes_read_per_round(engine) >= _MUCH else _FEW
    count = min(parts, max(1, len(jobs) // few))
    width = min(-(-len(jobs) // count), fitting)
    return [jobs[i : i + width] for i in range(0, len(jobs), width)]


def check_devices(experiments: Iterable[Experiment]) -> None:
    """Refuse more devices than there are. Raises UserError."""
    for experiment in experiments:
        asked = experiment.settings.devices
        if asked in (AUTO, ALL_DEVICES, 1) or not isinstance(experiment.algo, Algorithm):
            continue
        use_cores_as_devices()
        each = {0: jax.local_device_count()}
        if current_hosts():
            each = Counter(device.process_index for device in jax.devices())
        there, of = min(each.values()), "cores of a CPU" if jax.default_backend() == "cpu" else "GPUs"
        if int(asked) > there:
            where = f" on host {min(each, key=lambda host: each[host])}" if len(each) > 1 else ""
            raise UserError(
                f"devices={asked} is more than there are{where}, {there} ({of}): give at most that, or devices=all"
            )


def choose_devices(asked: int | str, engine: Engine, runs: int) -> int:
    """How many devices compute so many runs, as ``asked`` for; on several hosts so many of each, by default all.

    Of "auto": on GPUs all for several runs, and one for one run. On a CPU, whose cores several runs share by threads,
    as many for one run as have enough to do in a round.
    """
    if hosts := current_hosts():
        return jax.device_count() if asked in (ALL_DEVICES, AUTO) else int(asked) * hosts.count
    if asked == ALL_DEVICES:
        use_cores_as_devices()
        return jax.local_device_count()
    if asked != AUTO:
        return int(asked)
    if jax.default_backend() != "cpu":
        return jax.local_device_count() if runs > 1 else 1
    return 1 if runs > 1 else min(jax.local_device_count(), max(1, bytes_read_per_round(engine) // _WORTH))


def bytes_read_per_round(engine: Engine) -> int:
    """The bytes of what the clients of a round take their gradients on, step by step."""
    federation, schedule = engine.federation, engine.federation.schedule
    rows = federation.arrays[0]
    each = federation.client_bytes(rows and rows.decomposed)
    return schedule.cohort_size * int(schedule.steps.max()) * each * (schedule.edge_rounds or 1)
