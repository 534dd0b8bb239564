"""Which runs go through the machine together: what shares minibatches, fits into memory, and keeps the cores busy."""

from fcorun.engine.engine import Engine
from fcorun.engine.footprint import bytes_each
from fcorun.runs.job import Job
from fcorun.system.machine import free_memory

_APART = 4  # points a seed, from which on seeds run apart
_USED = 0.6  # of the memory that is free
_FEW = 4  # runs that are not worth a thread more


def cut(engine: Engine, jobs: list[Job], parts: int) -> list[list[Job]]:
    """The jobs in batches: one for each of ``parts`` threads, or more where they would not fit into memory together."""
    return [batch for same in _by_seed(jobs) for batch in _fitting(engine, same, parts)]


def _by_seed(jobs: list[Job]) -> list[list[Job]]:
    """The jobs of each seed apart where that leaves enough of each, for their minibatches are shared; else together."""
    seeds: dict[int, list[Job]] = {}
    for job in jobs:
        seeds.setdefault(job.experiment.settings.seed, []).append(job)
    return list(seeds.values()) if len(jobs) >= _APART * len(seeds) else [jobs]


def _fitting(engine: Engine, jobs: list[Job], parts: int) -> list[list[Job]]:
    first = jobs[0].experiment
    allowed = free_memory() * _USED if first.settings.memory is None else first.settings.memory * 2**30
    seeds = [job.experiment.settings.seed for job in jobs]
    fitting = int(allowed // parts // bytes_each(engine.federation, first.numbers(), seeds))
    count = min(parts, max(1, len(jobs) // _FEW))
    width = max(1, min(-(-len(jobs) // count), fitting))
    return [jobs[i : i + width] for i in range(0, len(jobs), width)]
