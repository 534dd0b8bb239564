"""What is traced: runs of one algorithm on one problem and data set, as pure functions of arrays.

Rounds run inside ``lax.scan`` between evaluations. Of G runs, the numbers (rates, strengths) are a ``vmap`` axis and
the minibatches are shared, so that a matrix-vector product becomes a matrix-matrix one. The clients of a round go
through in chunks: of one run as many at once as stay in the cache, of several on a CPU one at a time, which is 1.3 and
2.5 times faster than the other way. Runs of different seeds have minibatches of their own, and share the cache.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fcorun.algorithms.base import Algorithm, Tree
from fcorun.algorithms.local_data import Watched, size_of
from fcorun.datasets.base import FederatedData
from fcorun.engine.arrays import Among, Rows, all_rows, on_device, stored, targets, whole_batches
from fcorun.engine.clients import Clients, in_chunks, one_by_one, room, width
from fcorun.engine.devices import ALONE, Devices, over_runs
from fcorun.engine.evaluate import Evaluation
from fcorun.engine.round import Drawn, Round
from fcorun.engine.schedule import START, Rounds, Schedule
from fcorun.errors import UserError
from fcorun.networks.base import Uplink
from fcorun.networks.plain import Plain
from fcorun.problem.problem import Problem
from fcorun.problem.quadratic import decomposed
from fcorun.problem.span import spanned
from fcorun.problem.vector import Vector

Numbers = dict[str, dict[str, float]]  # {"algo": {"client_lr": 0.001}, "reg": {...}, "mirror": {...}}


class Shapes(NamedTuple):
    """The shapes of uploads, of what is broadcast, of what an edge reports; the random numbers that clients ask for."""

    upload: Tree
    broadcast: Tree
    report: Tree
    asked: set[str]


@dataclass(frozen=True, kw_only=True)
class Federation:
    """An algorithm, a problem, and the clients with their data.

    ``problem`` and ``algorithm`` are templates: the numbers in them are replaced by those of each run.

    Attributes:
        edge_of: the edge of each client, where a tree has them.
        uplink: what happens to uploads.
        w0: where to start, by default where the objective says.
        frozen: whether the server's model stays there.
        debug: whether nothing is traced, clients come one by one, and ``lost`` says who was not finite, by round.
        among: where the rows stand, if the data are a part of others whose rows are on the device.
        clients_at_once: how many clients of a cohort are computed at once; None: as many as stay in the cache.
    """

    problem: Problem
    algorithm: Algorithm
    data: FederatedData
    schedule: Schedule
    evaluation: Evaluation
    precision: str = "float32"
    edge_of: np.ndarray | None = None
    uplink: Uplink = field(default_factory=Plain)
    w0: dict[str, np.ndarray] | None = None
    frozen: bool = False
    debug: bool = False
    among: Among | None = None
    clients_at_once: int | None = None
    lost: dict[int, str] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def per_client(self) -> dict[str, np.ndarray]:
        """The numbers of the regularizer that differ from client to client, each (M,)."""
        values = self.problem.regularizer.per_client or {}
        return {name: np.asarray(each, self.precision) for name, each in values.items()}

    @cached_property
    def arrays(self) -> tuple[Rows, dict[str, jax.Array]]:
        """The rows, with the losses decomposed where that is of use, and what the evaluation needs; on the device."""
        losses, traits = None, self.algorithm.traits
        examples, parameters = self.data.sizes.max(), sum(math.prod(shape) for shape in self.problem.shapes.values())
        if (traits.proximal and self.schedule.repeats) or (traits.deterministic and examples > parameters):
            losses = decomposed(self.problem.objective, self.data, self.problem.shapes, self.precision)
        if (
            losses is None
            and self.algorithm.spans
            and self.schedule.repeats
            and self.among is None
            and not self.schedule.made
        ):
            losses = spanned(self.problem.objective, self.data, self.precision)
        extra = self.evaluation.arrays(self.precision, self.algorithm.personalises)
        return stored(self.data, losses, self.among, self.precision), extra

    @cached_property
    def shapes(self) -> Shapes:
        """Of what is sent, which the numbers of a run do not change."""
        asked: set[str] = set()

        def trees():
            algorithm, problem = self.algorithm, self.problem
            server, client = algorithm.init(problem, problem.zeros(self.precision))
            x, y = on_device(self.data.x[:1], self.precision), targets(self.data, self.data.y[:1], self.precision)
            rows = jnp.zeros((1 if self.schedule.repeats else int(self.schedule.steps.max()), 1), jnp.int32)
            steps = {"repeats": self.schedule.repeats, "uneven": self.schedule.uneven}
            data, received = Watched(x, y, rows, self.precision, **steps, asked=asked), algorithm.broadcast(server)
            return algorithm.local(problem, received, client, data)[0], received, algorithm.report(server)

        upload, received, report = self.shape_of(trees)
        return Shapes(upload, received, report, asked)

    def shape_of(self, function: Callable, *arguments: Any) -> Any:
        """The arrays that a function returns, or their shapes."""
        return function(*arguments) if self.debug else jax.eval_shape(function, *arguments)

    def bind(self, numbers: Numbers) -> tuple[Algorithm, Problem]:
        """The algorithm and the problem with these numbers in them."""
        reg = {name: value for name, value in numbers.get("reg", {}).items() if name not in self.per_client}
        problem = self.problem.with_numbers(reg, numbers.get("mirror"))
        if "curvature" in numbers:  # of a part of the data
            problem = replace(problem, curvature=(numbers["curvature"]["least"], numbers["curvature"]["most"]))
        return replace(self.algorithm, **numbers.get("algo", {})), problem

    def stack(self, points: Sequence[Numbers]) -> Any:
        """The numbers of all runs as arrays with leading axis G."""
        return jax.tree.map(lambda *v: jax.device_put(np.asarray(v, self.precision)), *points)

    def duals(self, seeds: Sequence[int]) -> Vector:
        """The dual points that runs of these seeds start from, stacked."""
        objective, shapes = self.problem.objective, self.problem.shapes
        starts = [objective.start(shapes, np.random.default_rng([seed, START])) for seed in seeds]
        return Vector(
            {n: jax.device_put(np.stack([each[n] for each in starts]).astype(self.precision)) for n in shapes}
        )

    def start(self, numbers: Any, z0: Vector) -> Tree:
        """The state of each run before the first round. ``clients`` holds each client's state and the memory of its
        uplink, with a leading axis M after that of the runs."""
        clients = self.data.members

        def init(numbers, z0):
            algorithm, problem = self.bind(numbers)
            given = {k: jnp.asarray(v, z0.dtype) for k, v in (self.w0 or {}).items()}
            server, client = algorithm.init(problem, Vector(given) if given else problem.start(z0))
            kept = client, self.uplink.init(lambda: self.shapes.upload)
            kept = jax.tree.map(lambda v: jnp.broadcast_to(v, (clients, *jnp.shape(v))), kept)
            return {"server": server, "clients": kept, "diverged": jnp.zeros((), jnp.int32)}

        return over_runs(init, (0, 0), numbers, z0, in_turn=self.debug)

    def evaluate(self, numbers: Any, state: Tree, x: jax.Array, y: jax.Array, extra: dict[str, jax.Array]):
        """Of each run the metrics, the solution, and the clients' own models."""
        own = {name: jnp.asarray(values) for name, values in self.per_client.items()}

        def one(numbers, server, clients):
            algorithm, problem = self.bind(numbers)
            w = algorithm.output(problem.on("server"), server)
            metrics = self.evaluation.measure(problem, w, x, y, extra)
            if not algorithm.personalises:
                return metrics, dict(w), None

            def personal(own, client) -> Any:
                return algorithm.personal(problem.with_numbers(own).on("client"), server, client)

            models = jax.vmap(personal)(own, clients[0])
            if not isinstance(models, Vector) or set(models) != set(problem.shapes):
                name, kind = type(algorithm).__name__, type(models).__name__
                raise UserError(f"personal() of {name} must return parameters like w0, and returned {kind}")
            own_metrics = self.evaluation.measure_personal(problem, models, own, rows=(x, y), extra=extra)
            return metrics | own_metrics, dict(w), dict(models)

        return over_runs(one, (0, 0, 0), numbers, state["server"], state["clients"], in_turn=self.debug)

    def advance(
        self, numbers: Any, state: Tree, rows: Rows, rounds: Rounds, start: Any, devices: Devices = ALONE
    ) -> tuple[Tree, jax.Array]:
        """The runs after ``rounds``, and the work of each client and, last, the server, (G, M + 1, 3); where
        clients make their rows, of each place in the cohort.

        ``rounds`` have a leading axis G where seeds differ; ``start`` is the number of the first one. One of
        several ``devices`` computes its part."""
        shared = rounds.cohort.ndim == 2
        whole = rows.decomposed if rows.decomposed is not None else whole_batches(self.schedule, rows, self.precision)
        at_once = self.at_once(state["diverged"].shape[0], shared, whole)

        def one(numbers, state, rounds):
            algorithm, problem = self.bind(numbers)

            def one_round(carry, now):
                state, number, work = carry
                weight = now.weight.astype(self.precision)  # before a division, lest float64 keep seven digits
                own = {name: jnp.asarray(values) for name, values in self.per_client.items()}
                kept, own = jax.tree.map(lambda v: v if self.every else v[now.cohort], (state["clients"], own))
                on_server = replace(problem.on("server"), share=now.share.astype(self.precision))
                this = Round(
                    algorithm=algorithm,
                    problem=problem,
                    on_server=on_server,
                    schedule=self.schedule,
                    **{"x": rows.x, "y": rows.y, "beside": rows.beside},
                    own=own,
                    whole=whole,
                    cohort=None if self.every and not self.schedule.made else now.cohort,
                    weight=weight,
                    clients=devices.clients(self._clients(at_once, now.cohort, number)),
                    uplink=self.uplink,
                    frozen=self.frozen,
                    made=self.data.population and self.data.population.rows_of,
                )
                drawn = Drawn(all_rows(self.schedule, rows, now.cohort, now.rows), now.keys, now.chances)
                if self.edge_of is None:
                    end = this.star(state["server"], kept, drawn)
                else:
                    edge_of, edges = jnp.asarray(self.edge_of, jnp.int32), int(self.edge_of.max()) + 1
                    end = this.tree(state["server"], kept, drawn, edge_of[now.cohort], edges)
                work = work.at[slice(-1) if self.schedule.made or self.every else now.cohort].add(end.spent)
                kept = end.into(state, now.cohort, number, self.every)
                return (kept, number + 1, work.at[-1].add(end.at_server)), None

            idle = jnp.zeros((len(self.schedule.worked) + 1, 3), jnp.int32)
            state, _, work = lax.scan(one_round, (state, start, idle), rounds)[0]
            return state, devices.total(work)

        axes = (0, 0, None if shared else 0)
        return over_runs(one, axes, numbers, state, rounds, in_turn=self.debug or state["diverged"].shape[0] == 1)

    @property
    def every(self) -> bool:
        """Whether the cohort is all clients in their order."""
        return self.schedule.cohort_size == self.data.members

    def at_once(self, runs: int, shared: bool, whole: Tree = None) -> int:
        """How many clients of a cohort are computed at once in a program of so many runs, whose minibatches may be
        ``shared``; ``whole`` is the data of all clients where they are taken at once, or None."""
        if self.clients_at_once is not None:
            return min(self.clients_at_once, self.schedule.cohort_size)
        if shared and runs > 1 and jax.default_backend() == "cpu":
            return 1
        rows = self.schedule.batch if self.data.population is None else self.data.population.samples
        batch, parameters = rows * self.data.x[0].size, size_of(self.problem.zeros(self.precision))
        batch = batch * np.dtype(self.precision).itemsize if whole is None else size_of(whole) // len(self.data.sizes)
        return width(self.schedule.cohort_size, room() // (runs * (batch + parameters)))

    def _clients(self, at_once: int, cohort: jax.Array, number: Any) -> Clients:
        """How the clients of a cohort are computed in a round."""
        if self.debug:
            names, now = self.data.clients or range(self.data.members), int(number) + 1
            return one_by_one([names[m] for m in cohort], now, lambda who: self.lost.setdefault(now, who))
        return in_chunks(at_once)
