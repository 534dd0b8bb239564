"""Runs over several hosts: what the first one tells the others to compute, and how they do it.

The first one goes about its runs as it would alone. It tells the others of the experiment, so that each loads the data;
of the engine, with what was "auto" worked out; and of each batch. Rounds are computed by all: the state goes from the
first to the others before them, and is the same on all after them. The first one measures, and says whether to go on.
"""

import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fcorun.config import build_plugin
from fcorun.datasets.base import FederatedData
from fcorun.engine.engine import Engine, Snapshot
from fcorun.engine.federation import Numbers
from fcorun.errors import HostLost, UserError, describe
from fcorun.experiment.build import engine_for, load
from fcorun.experiment.experiment import Experiment
from fcorun.experiment.prepare import plain_of, prepare
from fcorun.system.child import on_signals
from fcorun.system.hosts import Hosts, joined

_TOLD = ("algo", "reg")  # in which numbers are worked out
_PATIENCE = 5.0  # seconds in which a host that is gone is known to be
_LATER = 1.0  # seconds until a host complains of a round that broke off, which one that is gone may have caused


def loaded(experiment: Experiment) -> FederatedData:
    """The data, once all hosts have the same. Raises UserError for a host that has others, or other code, and for what
    several hosts do not compute."""
    hosts = joined()
    if hosts is None:
        if (experiment.settings.hosts or {}).get("address"):
            raise UserError("hosts.*: several hosts are for the command fcorun: leave them out")
        return load(experiment)
    if experiment.settings.debug:
        raise UserError("debug=true computes one client after the other, on one host: leave hosts.* out")
    hosts.tell("prepare", config=experiment.config)
    data = load(experiment)
    for rank in hosts.links:
        _check(experiment, hosts, hosts.hear(rank), rank)
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
        hosts.tell("build", **told, devices=engine.devices)


def rounds_of(
    engine: Engine, points: Sequence[Numbers], seeds: Sequence[int], state: Any, done: int, **counted: Any
) -> Generator[Snapshot]:
    """``engine.run``, computed by all hosts. To be closed. Raises HostLost where one is gone, or this one cannot go on,
    and KeyboardInterrupt where one is interrupted."""
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
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        hosts.heed(_PATIENCE)
        raise hosts.lost(0, describe(error)) from error  # the others may wait for this one within a round
    finally:
        if not hosts.why:
            hosts.tell("stop")


def follow() -> int:
    """On a host that is not the first: do what that one says; the exit code. Raises HostLost."""
    hosts = joined()
    assert hosts is not None
    on_signals(lambda *_: hosts.say(interrupted=True))  # the first one ends all, after a round that all have computed
    experiment = data = engine = None
    while True:
        told = hosts.hear()
        if told["do"] == "prepare":
            try:
                experiment = prepare(told["config"])
                data = load(experiment)
                hosts.say(identity=experiment.identity, fingerprint=experiment.fingerprint)
            except Exception as error:
                hosts.say(refused=describe(error))
        elif told["do"] == "end":
            return _ended(hosts, told)
        else:
            try:
                if told["do"] == "build":
                    assert experiment is not None
                    assert data is not None
                    built = replace(experiment, **{name: build_plugin(name, told[name]) for name in _TOLD})
                    engine = replace(engine_for(built, data), devices=told["devices"])
                elif told["do"] == "run":
                    assert engine is not None
                    _run(engine, hosts, told)
            except (MemoryError, jax.errors.JaxRuntimeError) as error:
                time.sleep(_LATER)
                hosts.say(failed=describe(error))


def _run(engine: Engine, hosts: Hosts, told: dict[str, Any]) -> None:
    """A batch's rounds, until the first host says that there are no more."""

    def go_on() -> np.ndarray | None:
        word = hosts.hear()
        return np.array(word["diverged"], np.int32) if word["do"] == "advance" else None

    with jax.enable_x64(engine.federation.precision == "float64"):
        engine.follow(told["points"], told["seeds"], told["done"], go_on)


def _ended(hosts: Hosts, told: dict[str, Any]) -> int:
    hosts.over = True
    if told["why"]:
        raise HostLost(told["why"])
    return told["code"]
