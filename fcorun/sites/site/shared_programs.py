"""Programs that the sites of a process share, as in a trial: each is traced and compiled once for equal shapes."""

import pickle
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np

from fcorun.data.rows.site_rows import SiteRows
from fcorun.engine.engine import CompiledPrograms, Engine
from fcorun.engine.federation import Federation
from fcorun.engine.remote.programs import RemotePrograms, count_sent_runs
from fcorun.engine.round import MessageShapes

Answer = Callable[..., Any]


@dataclass(frozen=True)
class SitePrograms:
    """The programs of a site's part of a batch of runs. Rows, numbers and states of clients are their arguments.

    Attributes:
        federation: the federation of the first site that uses them.
        n_runs: the number of runs, G.
        compiled: the programs of an engine.
    """

    federation: Federation
    n_runs: int
    compiled: CompiledPrograms = field(default_factory=CompiledPrograms)

    @cached_property
    def answers(self) -> list[Answer]:
        """The programs of a round, one for each exchange."""
        n_sent = count_sent_runs(self.federation.algorithm, self.n_runs)
        n_exchanges = len(self.federation.shapes.uploads)
        programs = [RemotePrograms(self.federation, n_sent, exchange) for exchange in range(n_exchanges)]
        return [jax.jit(lambda *arguments, p=p: p.answer(*arguments)) for p in programs]

    @cached_property
    def solution_sums(self) -> Answer:
        """The program of an evaluation."""
        programs = RemotePrograms(self.federation, self.n_runs)
        return jax.jit(lambda *arguments: programs.solution_sums(*arguments))


@dataclass(frozen=True)
class SharedPrograms:
    """The programs of the sites of one plan in this process.

    Attributes:
        programs: the programs, by all that their traces read besides their arguments.
        shapes: the shapes of messages, by the numbers of rows of all clients.
    """

    programs: dict[Hashable, SitePrograms] = field(default_factory=dict)
    shapes: dict[bytes, MessageShapes] = field(default_factory=dict)

    def attach(self, engine: Engine, n_runs: int) -> tuple[Engine, SitePrograms]:
        """Return a site's engine for ``n_runs`` runs and its programs, both with what an equal site has compiled."""
        self.share_shapes(engine.federation)
        key = _constants_of(engine.federation, n_runs)
        if key not in self.programs:
            self.programs[key] = SitePrograms(engine.federation, n_runs)
        programs = self.programs[key]
        return replace(engine, programs=programs.compiled), programs

    def share_shapes(self, federation: Federation) -> None:
        """Have a federation of the plan take the shapes of messages from the first one on the same clients."""
        key = np.asarray(federation.schedule.sizes, np.int64).tobytes()
        if key not in self.shapes:
            self.shapes[key] = federation.shapes
        vars(federation)["shapes"] = self.shapes[key]  # which are not traced again


def _constants_of(federation: Federation, n_runs: int) -> Hashable:
    """Return all that traces of a site's programs read besides their arguments; a new object where it has no bytes."""
    schedule, evaluation, rows = federation.schedule, federation.evaluation, federation.data.train
    assert isinstance(rows, SiteRows)
    constants = (
        n_runs,
        federation.problem,
        federation.algorithm,
        (federation.uplink, federation.downlink, federation.links, federation.topology),
        (federation.precision, federation.frozen, federation.clients_at_once, federation.w0),
        (schedule.sizes, schedule.starts, schedule.client_weights, schedule.clients_per_round),
        (schedule.batch_size, schedule.local_epochs, schedule.local_steps, schedule.client_weighting, schedule.times),
        (evaluation.client_weighting, evaluation.cutoff, evaluation.gap),
        (rows.local_numbers, rows.n_initial_states, rows.curvature, federation.data.n_clients),
    )
    try:
        return pickle.dumps(constants)  # compared with others', and never read
    except (pickle.PicklingError, TypeError, AttributeError):  # of a class that was made within a function
        return object()
