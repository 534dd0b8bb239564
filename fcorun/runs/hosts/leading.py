"""Runs over several hosts: what the first one tells the others to compute, and how they do it.

The first one goes about its runs as it would alone. It tells the others of the experiment, so that each loads the data;
of the engine, with what was "auto" worked out; and of each batch. Rounds are computed by all: the state goes from the
first to the others before them, and is the same on all after them. The first one measures, and says whether to go on.
"""

from collections.abc import Generator, Sequence
from typing import Any

import jax

from fcorun.datasets.base import FederatedData
from fcorun.engine.engine import Engine, Snapshot
from fcorun.engine.federation import Numbers
from fcorun.errors import HostLost, UserError, describe
from fcorun.experiment.build import load
from fcorun.experiment.experiment import Experiment
from fcorun.experiment.prepare import plain_of
from fcorun.system.hosts import Hosts, joined

_TOLD = ("algo", "reg")  # in which numbers are worked out
_PATIENCE = 5.0  # seconds in which a host that is gone, or has failed, is known to be
_OF_THE_HOST = (MemoryError, jax.errors.JaxRuntimeError)  # after these, the hosts may wait for each other


def loaded(experiment: Experiment) -> FederatedData:
    """The data, once all hosts have the same. Raises UserError for a host that has others, or other code, and for what
    several hosts do not compute."""
    hosts = joined()
    if hosts is None:
        asked = experiment.settings.hosts or {}
        if asked.get("address") and asked.get("count") != 1:
            raise UserError("hosts.*: several hosts are for the command fcorun: leave them out")
        return load(experiment)
    if experiment.settings.debug:
        raise UserError("debug=true computes one client after the other, on one host: leave hosts.* out")
    hosts.tell("prepare", config=experiment.config)
    try:
        data = load(experiment)
    finally:
        answers = {rank: hosts.hear(rank) for rank in hosts.links}
    for rank, answer in answers.items():
        _check(experiment, hosts, answer, rank)
        if answer["on_disk"] != data.on_disk:
            where = "stay on disk" if answer["on_disk"] else "are in memory"
            raise UserError(f"the rows {where} on {hosts.name(rank)}, and not on {hosts.name(0)}: give data.resident")
    return data


def _check(experiment: Experiment, hosts: Hosts, answer: dict[str, Any], rank: int) -> None:
    """Raises UserError where a host is not ready for the experiment of the first one."""
    if "refused" in answer:
        raise UserError(f"{hosts.name(rank)}: {answer['refused']}")
    who, first = hosts.name(rank), hosts.name(0)
    theirs, own = answer["fingerprint"], experiment.fingerprint
    if theirs != own:
        data = experiment.names["data"]
        raise UserError(
            f"{who} has other data={data} than {first}, {theirs[:8]} and {own[:8]}: give all the same files"
        )
    if answer["identity"] != experiment.identity:
        raise UserError(f"{who} has other code of this run than {first}: give all the same files")


def built(engine: Engine, experiment: Experiment) -> None:
    """Have all hosts build the engine, of an experiment whose numbers are known."""
    if hosts := joined():
        told = {name: plain_of(getattr(experiment, name), experiment.names[name], {}) for name in _TOLD}
        hosts.tell("build", **told, devices=engine.devices, budget=engine.budget)


def rounds_of(
    engine: Engine, points: Sequence[Numbers], seeds: Sequence[int], state: Any, done: int, **counted: Any
) -> Generator[Snapshot, None, None]:
    """``engine.run``, computed by all hosts. To be closed. Raises what that raises where it does so on all; HostLost
    where one is gone, or cannot go on alone; and KeyboardInterrupt where one is interrupted."""
    hosts = joined()
    if hosts is None:
        yield from engine.run(points, seeds, state, done, **counted)
        return
    hosts.tell("run", points=points, seeds=seeds, done=done)
    try:
        for now in engine.run(points, seeds, state, done, **counted):
            yield now
            hosts.heed()
            if now.round < engine.rounds and not now.diverged.all():
                hosts.tell("advance", diverged=now.diverged.tolist())
    except HostLost:
        raise
    except Exception as error:
        if isinstance(error, _OF_THE_HOST):
            hosts.heed(_PATIENCE)
        elif hosts.failed(_PATIENCE):
            raise
        raise hosts.lost(0, describe(error)) from error  # the others may wait for this one within a round
    finally:
        if not hosts.why:
            hosts.tell("stop")
