"""Which runs go through the machine together: what shares minibatches, fits into memory, and keeps the cores busy."""

from collections.abc import Sequence

from fcorun.engine.engine import Engine
from fcorun.engine.federation import Numbers
from fcorun.engine.footprint import bytes_each
from fcorun.runs.job import Job
from fcorun.system.machine import free_memory

_APART = 4  # points a seed, from which on seeds run apart
_USED = 0.6  # of the memory that is free
_FEW = 4  # runs that are not worth a thread more


def cut(engine: Engine, jobs: list[Job], parts: int) -> list[list[Job]]:
    """The jobs in batches: one for each of ``parts`` threads, or more where they would not fit into memory together."""
    return [batch for same in _by_seed(jobs) for batch in _fitting(engine, same, parts)]


def room(engine: Engine, point: Numbers, seeds: Sequence[int], memory: float | None, parts: int, taken: int = 0) -> int:
    """How many runs with these seeds fit into the memory of each of ``parts`` threads, at least 1; ``memory`` is in
    GiB, None for what is free, and ``taken`` the bytes of it that each thread has for something else."""
    allowed = free_memory() * _USED if memory is None else memory * 2**30
    return max(1, int((allowed / parts - taken) // bytes_each(engine.federation, point, seeds)))


def _by_seed(jobs: list[Job]) -> list[list[Job]]:
    """The jobs of each seed apart where that leaves enough of each, for their minibatches are shared; else together."""
    seeds: dict[int, list[Job]] = {}
    for job in jobs:
        seeds.setdefault(job.experiment.settings.seed, []).append(job)
    return list(seeds.values()) if len(jobs) >= _APART * len(seeds) else [jobs]


def _fitting(engine: Engine, jobs: list[Job], parts: int) -> list[list[Job]]:
    first = jobs[0].experiment
    seeds = [job.experiment.settings.seed for job in jobs]
    fitting = room(engine, first.numbers(), seeds, first.settings.memory, parts)
    count = min(parts, max(1, len(jobs) // _FEW))
    width = min(-(-len(jobs) // count), fitting)
    return [jobs[i : i + width] for i in range(0, len(jobs), width)]
