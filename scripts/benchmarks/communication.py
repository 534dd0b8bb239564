"""Rounds with other topologies and channels, compared with plain rounds of the same local work.

Times are processor times of rounds alone, without evaluations, so that other work on the machine matters less.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import jax.numpy as jnp

from benchmarks.measure import make_engine, minimum_times, processor_seconds
from fcorun.engine.engine import CompiledPrograms
from fcorun.methods.communication import Asynchronous
from fcorun.methods.communication.contracts import RoundOutcome, RoundState

ONE_STEP = ("local_steps=1", "local_epochs=null")
WORKS = {
    "an epoch in minibatches of 10": ((), 50),
    "one step on all rows": ((*ONE_STEP, "batch_size=null"), 50),
    "one minibatch of 10": (ONE_STEP, 400),
}
CHANNELS = {
    "none": (),
    "uplink=topk": ("uplink=topk",),
    "uplink=qsgd": ("uplink=qsgd",),
    "downlink=topk": ("downlink=topk",),
}


def graphs() -> Iterator[str]:
    """Measure rounds on a star and on graphs: a client takes one epoch in minibatches, one full step, one minibatch."""
    for work, (overrides, rounds) in WORKS.items():
        fixed = _all_clients(rounds, *overrides)
        tasks = {"star": processor_seconds(*make_engine(*fixed))}
        for graph in ("ring", "torus", "complete"):
            tasks[graph] = processor_seconds(*make_engine(*fixed, "topology=graph", f"topology.graph={graph}"))
        for name, seconds in (found := minimum_times(15, **tasks)).items():
            what = f"processor time of a round of `lasso`, all 64 clients, {work}: {name}"
            yield f"| {what} | {seconds / rounds * 1e3:.2f} ms | {seconds / found['star']:.2f} |"


def channels() -> Iterator[str]:
    """Measure rounds with compressed messages: 1,024 weights, 64 clients, one epoch and one minibatch."""
    for work in ("an epoch in minibatches of 10", "one minibatch of 10"):
        overrides, rounds = WORKS[work]
        engines = {name: make_engine(*_all_clients(rounds, *overrides), *channel) for name, channel in CHANNELS.items()}
        found = minimum_times(15, **{name: processor_seconds(*engine) for name, engine in engines.items()})
        for name, seconds in found.items():
            what = f"processor time of a round of `lasso`, all 64 clients, {work}: {name}"
            yield f"| {what} | {seconds / rounds * 1e3:.2f} ms | {seconds / found['none']:.2f} |"


@dataclass(frozen=True)
class LocalWorks(Asynchronous):
    """The local works of arrivals alone, each from the initial model: no server updates, and no client begins anew."""

    def client_memory(self, server):
        return ()

    def run_round(self, parts, state):
        (exchange,), server = parts.exchanges, state.server
        upload, clients, work = exchange.compute_clients(server["model"], state.clients, parts.draws, jnp.ones(1))
        return RoundOutcome(RoundState(server | {"sum": upload}, state.memory, clients), work, jnp.zeros(3, jnp.int32))


def asynchronous() -> Iterator[str]:
    """Measure 10,000 arrivals of 64 clients at an asynchronous server, and as many local works in a loop."""
    rounds = 10_000
    for algo, psi in (("fedavg", "reg=none"), ("feddualavg", "reg=l1")):
        options = (f"algo={algo}", psi, "topology=asynchronous", "clock=lognormal")
        engine, points = make_engine(*_all_clients(rounds), *options)
        federation = replace(engine.federation, topology=LocalWorks())
        works = replace(engine, federation=federation, programs=CompiledPrograms())
        found = minimum_times(5, works=processor_seconds(works, points), arrivals=processor_seconds(engine, points))
        for name, what in (("works", "local works alone"), ("arrivals", "arrivals")):
            seconds = found[name]
            label = f"processor time of 10,000 {what} of `{algo}`, an epoch each"
            yield f"| {label} | {seconds:.2f} s | {seconds / found['works']:.2f} |"


def _all_clients(rounds: int, *overrides: str) -> tuple[str, ...]:
    """Return the overrides of a run of all clients that is evaluated at its end."""
    return ("clients_per_round=null", f"rounds={rounds}", f"eval_every={rounds}", "algo.client_lr=1e-3", *overrides)
