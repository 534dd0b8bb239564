"""Runs over several hosts: what the first one tells the others to compute, and how they do it.

The first one goes about its runs as it would alone. It tells the others of the experiment, so that each loads the data;
of the engine, with what was "auto" worked out; and of each batch. Rounds are computed by all: the state goes from the
first to the others before them, and is the same on all after them. The first one measures, and says whether to go on.
"""

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
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
    try:
        data = load(experiment)
    finally:
        answers = {rank: hosts.hear(rank) for rank in hosts.links}
    for rank, answer in answers.items():
        _check(experiment, hosts, answer, rank)
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
) -> Generator[Snapshot, None, None]:
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
    here = _Here(hosts)
    try:
        while True:
            here.do(here.hear())
    except SystemExit as end:
        return int(end.code or 0)


@dataclass
class _Here:
    """What a host that is not the first has of the runs: a method for each thing that it may be told to do."""

    hosts: Hosts
    experiment: Experiment | None = None
    data: FederatedData | None = None
    engine: Engine | None = None

    def hear(self) -> dict[str, Any]:
        """What the first host says next. Raises SystemExit if it is the end, HostLost if that is so by a loss."""
        told = self.hosts.hear()
        if told["do"] == "end":
            self.hosts.over = True
            raise HostLost(told["why"]) if told["why"] else SystemExit(told["code"])
        return told

    def do(self, told: dict[str, Any]) -> None:
        """Do what is told; what goes wrong is told the first host, who then says the end."""
        try:
            getattr(self, told.pop("do"))(**told)
        except HostLost:
            raise
        except Exception as error:
            time.sleep(_LATER)
            self.hosts.say(failed=describe(error))

    def prepare(self, config: dict[str, Any]) -> None:
        """Load the data of an experiment, and say what it is here."""
        try:
            self.experiment = prepare(config)
            self.data = load(self.experiment)
            self.hosts.say(identity=self.experiment.identity, fingerprint=self.experiment.fingerprint)
        except Exception as error:
            self.hosts.say(refused=describe(error))

    def build(self, algo: dict[str, Any], reg: dict[str, Any], devices: int) -> None:
        """Build its engine, with the numbers that the first host has worked out."""
        assert self.experiment is not None
        assert self.data is not None
        plugins = {"algo": build_plugin("algo", algo), "reg": build_plugin("reg", reg)}
        self.engine = replace(engine_for(replace(self.experiment, **plugins), self.data), devices=devices)

    def run(self, points: Sequence[Numbers], seeds: Sequence[int], done: int) -> None:
        """Compute the rounds of a batch, until the first host says that there are no more."""
        assert self.engine is not None

        def diverged() -> np.ndarray | None:
            told = self.hear()
            return np.array(told["diverged"], np.int32) if told["do"] == "advance" else None

        with jax.enable_x64(self.engine.federation.precision == "float64"):
            self.engine.follow(points, seeds, done, diverged)

    def stop(self) -> None:
        """The rounds of a batch are over, as they are here."""
