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
from fcorun.errors import HostLost, UserError, describe_error
from fcorun.experiment.build import load_data
from fcorun.experiment.experiment import Experiment
from fcorun.experiment.prepare import plugin_to_config
from fcorun.system.hosts import Hosts, current_hosts

_TOLD = ("algo", "reg")  # in which numbers are worked out
_PATIENCE = 5.0  # seconds in which a host that is gone, or has failed, is known to be
_OF_THE_HOST = (MemoryError, jax.errors.JaxRuntimeError)  # after these, the hosts may wait for each other


def load_on_all_hosts(experiment: Experiment) -> FederatedData:
    """The data, once all hosts have the same. Raises UserError for a host that has others, or other code, and for what
    several hosts do not compute."""
    hosts = current_hosts()
    if hosts is None:
        asked = experiment.settings.hosts or {}
        if asked.get("address") and asked.get("count") != 1:
            raise UserError("hosts.*: several hosts are for the command fcorun: leave them out")
        return load_data(experiment)
    if experiment.settings.debug:
        raise UserError("debug=true computes one client after the other, on one host: leave hosts.* out")
    hosts.broadcast("prepare", config=experiment.config)
    try:
        data = load_data(experiment)
    finally:
        answers = {rank: hosts.receive(rank) for rank in hosts.connections}
    for rank, answer in answers.items():
        _check(experiment, hosts, answer, rank)
        if answer["on_disk"] != data.on_disk:
            where = "stay on disk" if answer["on_disk"] else "are in memory"
            raise UserError(
                f"the rows {where} on {hosts.describe_host(rank)}, and not on {hosts.describe_host(0)}: give "
                f"data.resident"
            )
    return data


def _check(experiment: Experiment, hosts: Hosts, answer: dict[str, Any], rank: int) -> None:
    """Raises UserError where a host is not ready for the experiment of the first one."""
    if "refused" in answer:
        raise UserError(f"{hosts.describe_host(rank)}: {answer['refused']}")
    who, first = hosts.describe_host(rank), hosts.describe_host(0)
    theirs, own = answer["fingerprint"], experiment.fingerprint
    if theirs != own:
        data = experiment.names["data"]
        raise UserError(
            f"{who} has other data={data} than {first}, {theirs[:8]} and {own[:8]}: give all the same files"
        )
    if answer["identity"] != experiment.identity:
        raise UserError(f"{who} has other code of this run than {first}: give all the same files")


def build_on_all_hosts(engine: Engine, experiment: Experiment) -> None:
    """Have all hosts build the engine, of an experiment whose numbers are known."""
    if hosts := current_hosts():
        told = {name: plugin_to_config(getattr(experiment, name), experiment.names[name], {}) for name in _TOLD}
        hosts.broadcast("build", **told, devices=engine.devices, budget=engine.row_bytes_budget)


def run_rounds(
    engine: Engine, points: Sequence[Numbers], seeds: Sequence[int], state: Any, done: int, **counted: Any
) -> Generator[Snapshot, None, None]:
    """``engine.run``, computed by all hosts. To be closed. Raises what that raises where it does so on all; HostLost
    where one is gone, or cannot go on alone; and KeyboardInterrupt where one is interrupted."""
    hosts = current_hosts()
    if hosts is None:
        yield from engine.run(points, seeds, state, done, **counted)
        return
    hosts.broadcast("run", points=points, seeds=seeds, done=done)
    try:
        for now in engine.run(points, seeds, state, done, **counted):
            yield now
            hosts.check_failures()
            if now.round < engine.rounds and not now.diverged.all():
                hosts.broadcast("advance", diverged=now.diverged.tolist())
    except HostLost:
        raise
    except Exception as error:
        if isinstance(error, _OF_THE_HOST):
            hosts.check_failures(_PATIENCE)
        elif hosts.all_failed(_PATIENCE):
            raise
        raise hosts.make_lost_error(
            0, describe_error(error)
        ) from error  # the others may wait for this one within a round
    finally:
        if not hosts.failure:
            hosts.broadcast("stop")
