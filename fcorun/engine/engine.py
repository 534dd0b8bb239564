"""The rounds: sampling, local work, averaging, evaluation, for one run or for a batch of runs that differ in numbers.

Rounds run inside ``lax.scan`` between evaluations. Of G runs, the numbers (rates, strengths) are a ``vmap`` axis and
the minibatches are shared, so that a matrix-vector product becomes a matrix-matrix one. The clients of a round are a
``vmap`` for one run and a ``scan`` for several: on the CPU that is 1.3 and 2.5 times faster than the other way. Runs of
different seeds have minibatches of their own, and their clients are a ``vmap``.
"""

import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fcorun.algorithms.base import Algorithm, LocalData, Tree
from fcorun.datasets.base import FederatedData
from fcorun.engine.evaluate import Evaluation, on_device, targets
from fcorun.engine.round import Round
from fcorun.engine.schedule import START, Rounds, Schedule
from fcorun.engine.traffic import Traffic, size_of
from fcorun.errors import UserError
from fcorun.problem.problem import Batch, Problem
from fcorun.problem.quadratic import Quadratic, decomposed
from fcorun.problem.vector import Vector

VERSION = 2  # raise it whenever the same configuration gives other numbers: old records are then not reused

Numbers = dict[str, dict[str, float]]  # {"algo": {"client_lr": 0.001}, "reg": {...}, "mirror": {...}}


@dataclass(frozen=True)
class Snapshot:
    """G runs at an evaluation.

    Attributes:
        round: rounds done.
        seconds: time spent running so far, for all G together.
        metrics: each of shape (G,).
        solution: the parameters of the output by name, with leading axis G.
        diverged: the round in which a run's state stopped being finite, 0 for those that go on, shape (G,).
        state: everything that a later call needs to go on from here; a pytree of arrays with leading axis G.
        work: gradients of examples and proxes evaluated so far, over all clients and the server, shape (G, 2).
        models: the clients' own models by parameter, with leading axes G, M, on the device; None where they have none.
    """

    round: int
    seconds: float
    metrics: dict[str, np.ndarray]
    solution: dict[str, np.ndarray]
    diverged: np.ndarray
    state: Tree
    work: np.ndarray
    models: dict[str, jax.Array] | None = None


@dataclass(frozen=True)
class Engine:
    """Runs of one algorithm on one problem and data set.

    ``problem`` and ``algorithm`` are templates: the numbers in them are replaced by those of each run. Several threads
    may call ``run`` at once; they share the compiled programs. ``edge_of`` is the edge of each client, where a tree has
    them. ``w0`` is where to start, by default where the objective says; ``frozen`` leaves the server's model there.
    """

    problem: Problem
    algorithm: Algorithm
    data: FederatedData
    schedule: Schedule
    evaluation: Evaluation
    rounds: int
    eval_every: int
    precision: str = "float32"
    edge_of: np.ndarray | None = None
    w0: dict[str, np.ndarray] | None = None
    frozen: bool = False
    spent: dict[str, float] = field(default_factory=lambda: {"compile": 0.0})  # seconds
    programs: dict = field(default_factory=dict, repr=False)
    compiling: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @cached_property
    def per_client(self) -> dict[str, np.ndarray]:
        """The numbers of the regularizer that differ from client to client, each (M,)."""
        values = self.problem.regularizer.per_client or {}
        return {name: np.asarray(each, self.precision) for name, each in values.items()}

    @cached_property
    def arrays(self) -> tuple[jax.Array, jax.Array, dict[str, jax.Array], Quadratic | None]:
        """Examples, targets, what the evaluation needs beside them, and the clients' losses decomposed where they are
        quadratic and the algorithm takes all data at once; on the device."""
        x, y = on_device(self.data.x, self.precision), targets(self.data, self.data.y, self.precision)
        losses = None
        examples, parameters = self.data.sizes.max(), sum(math.prod(shape) for shape in self.problem.shapes.values())
        if (self.algorithm.proximal and self.schedule.repeats) or (
            self.algorithm.deterministic and examples > parameters
        ):
            losses = decomposed(self.problem.objective, self.data, self.problem.shapes, self.precision)
        extra = self.evaluation.arrays(self.precision, self.algorithm.personalises)
        return x, y, extra, jax.device_put(losses)

    def bind(self, numbers: Numbers) -> tuple[Algorithm, Problem]:
        """The algorithm and the problem with these numbers in them."""
        reg = {name: value for name, value in numbers.get("reg", {}).items() if name not in self.per_client}
        problem = self.problem.with_numbers(reg, numbers.get("mirror"))
        return replace(self.algorithm, **numbers.get("algo", {})), problem

    def start(self, points: list[Numbers], seeds: list[int] | None = None) -> Tree:
        """The state before the first round."""
        numbers, z0 = self.stack(points), self._z0(seeds or [self.schedule.seed] * len(points))
        return self._compiled(self._start, numbers, z0)(numbers, z0)

    def _z0(self, seeds: list[int]) -> Vector:
        """The dual points that runs of these seeds start from, stacked."""
        objective, shapes = self.problem.objective, self.problem.shapes
        starts = [objective.start(shapes, np.random.default_rng([seed, START])) for seed in seeds]
        return Vector({name: np.stack([each[name] for each in starts]).astype(self.precision) for name in shapes})

    def _start(self, numbers, z0):
        clients = len(self.data.sizes)

        def init(numbers, z0):
            algorithm, problem = self.bind(numbers)
            w0 = (
                problem.start(z0)
                if self.w0 is None
                else Vector({k: jnp.asarray(v, z0.dtype) for k, v in self.w0.items()})
            )
            server, client = algorithm.init(problem, w0)
            clients_state = jax.tree.map(lambda v: jnp.broadcast_to(v, (clients, *jnp.shape(v))), client)
            return {"server": server, "clients": clients_state, "diverged": jnp.zeros((), jnp.int32)}

        return jax.vmap(init)(numbers, z0)

    def stack(self, points: list[Numbers]) -> Any:
        """The numbers of all runs as arrays with leading axis G."""
        return jax.tree.map(lambda *v: jax.device_put(np.asarray(v, self.precision)), *points)

    def run(
        self,
        points: list[Numbers],
        seeds: list[int] | None = None,
        state: Tree = None,
        done: int = 0,
        seconds: float = 0.0,
        work: np.ndarray | None = None,
    ) -> Iterator[Snapshot]:
        """Evaluate, then alternate rounds and evaluations to the end.

        ``seeds`` holds the seed of each run, by default the schedule's. Runs of one seed share their minibatches; if
        seeds differ, each run has its own.
        ``state``, ``done``, ``seconds`` and ``work`` of a snapshot of the same runs go on from there; the first
        snapshot is then that one again. Ends early when every run has diverged.
        """
        seeds = seeds or [self.schedule.seed] * len(points)
        numbers = self.stack(points)
        with self.compiling:  # one thread makes them
            x, y, extra, quadratics = self.arrays
        state = self.start(points, seeds) if state is None else jax.device_put(state)
        work = np.zeros((len(points), 2), np.int64) if work is None else work
        evaluate = self._compiled(self._evaluate, numbers, state, x, y, extra)
        clock = time.perf_counter() - seconds

        def snapshot(state, work):
            *found, models = evaluate(numbers, state, x, y, extra)
            metrics, solution = jax.tree.map(np.asarray, tuple(found))
            diverged = np.asarray(state["diverged"])
            losses = [metrics[name] for name in ("train_loss", "personal_train_loss") if name in metrics]
            lost = (diverged == 0) & ~np.isfinite(losses).all(axis=0)
            diverged = np.where(lost, max(done, 1), diverged).astype(np.int32)
            state = state | {"diverged": jax.device_put(diverged)}
            return Snapshot(done, time.perf_counter() - clock, metrics, solution, diverged, state, work, models)

        now = snapshot(state, work)
        rounds = self._draw(done, seeds)
        while True:
            paused = time.perf_counter()
            yield now
            if rounds is None or now.diverged.all():
                return
            given = (numbers, now.state, x, y, quadratics, rounds, np.int32(done))
            advance = self._compiled(self._advance, *given)
            clock += time.perf_counter() - paused
            state, more = advance(*given)  # returns before it has finished,
            done = min(done + self.eval_every - done % self.eval_every, self.rounds)
            rounds = self._draw(done, seeds)  # so that the next rounds are drawn meanwhile
            examples, passes, proxes = np.moveaxis(np.asarray(more), 2, 0).astype(np.int64)  # each (G, clients + 1)
            gradients = examples.sum(axis=1) + passes[:, :-1] @ self.data.sizes
            now = snapshot(state, now.work + np.stack([gradients, proxes.sum(axis=1)], axis=1))

    def _draw(self, done: int, seeds: list[int]) -> Rounds | None:
        """The rounds up to the next evaluation; with a leading axis for the runs, if their seeds differ."""
        count = min(self.eval_every - done % self.eval_every, self.rounds - done)
        if count <= 0:
            return None
        drawn = {seed: replace(self.schedule, seed=seed).draw(done, count) for seed in set(seeds)}
        if len(drawn) == 1:
            return drawn[seeds[0]]
        return Rounds(*(np.stack(parts) for parts in zip(*(drawn[seed] for seed in seeds), strict=True)))

    def _compiled(self, function, *arguments):
        """The program of a method for arguments of these shapes, compiled once."""
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(arguments))
        with self.compiling:
            if (function.__name__, shapes) not in self.programs:
                before = time.perf_counter()
                self.programs[function.__name__, shapes] = jax.jit(function).lower(*arguments).compile()
                self.spent["compile"] += time.perf_counter() - before
            return self.programs[function.__name__, shapes]

    def _evaluate(self, numbers, state, x, y, extra):
        """The metrics, the solution, and the clients' own models."""
        own = {name: jnp.asarray(values) for name, values in self.per_client.items()}

        def one(numbers, server, clients):
            algorithm, problem = self.bind(numbers)
            w = algorithm.output(problem.on("server"), server)
            metrics = self.evaluation.measure(problem, w, x, y, extra)
            if not algorithm.personalises:
                return metrics, dict(w), None

            def personal(own, client) -> Any:
                return algorithm.personal(problem.with_numbers(own).on("client"), server, client)

            models = jax.vmap(personal)(own, clients)
            if not isinstance(models, Vector) or set(models) != set(problem.shapes):
                name, kind = type(algorithm).__name__, type(models).__name__
                raise UserError(f"personal() of {name} must return parameters like w0, and returned {kind}")
            return metrics | self.evaluation.measure_personal(problem, models, own, x, y, extra), dict(w), dict(models)

        return jax.vmap(one)(numbers, state["server"], state["clients"])

    def _advance(self, numbers, state, x, y, quadratics, rounds, start):
        """The runs after ``rounds``, and the work of each client and, last, the server; of arrays only, for jit."""
        single = state["diverged"].shape[0] == 1
        shared = rounds.cohort.ndim == 2
        parallel = single or not shared or jax.default_backend() != "cpu"
        every = self.schedule.cohort_size == len(self.data.sizes)  # then the cohort is all clients in their order
        whole = self._whole(x, y, quadratics)
        edge_of = None if self.edge_of is None else jnp.asarray(self.edge_of, jnp.int32)
        edges = 0 if self.edge_of is None else int(self.edge_of.max()) + 1

        def one(numbers, state, rounds):
            algorithm, problem = self.bind(numbers)

            def one_round(carry, inputs):
                state, number, work = carry
                cohort, rows, weight, share, chances = inputs
                weight = weight.astype(self.precision)  # before a division, lest float64 keep seven digits

                def take(tree):
                    return tree if every else jax.tree.map(lambda v: v[cohort], tree)

                own = {name: jnp.asarray(values) for name, values in self.per_client.items()}
                mine, own, data = take((state["clients"], own, whole))
                on_server = replace(problem.on("server"), share=share.astype(self.precision))
                now = Round(
                    algorithm, problem, on_server, self.schedule, x, y, own, data, weight, parallel, self.frozen
                )
                given = state["server"], mine, self._rows(cohort, rows), chances
                server, clients, spent, at_server = (
                    now.star(*given) if edge_of is None else now.tree(*given, edge_of[cohort], edges)
                )
                work = work.at[:-1].add(spent) if every else work.at[cohort].add(spent)
                work = work.at[-1].add(at_server)
                finite = jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((server, clients))]).all()
                alive = (state["diverged"] == 0) & finite

                def keep(new, old):
                    return jnp.where(alive, new, old)

                new = {
                    "server": jax.tree.map(keep, server, state["server"]),
                    "clients": jax.tree.map(
                        lambda old, new: keep(new, old) if every else old.at[cohort].set(keep(new, old[cohort])),
                        state["clients"],
                        clients,
                    ),
                    "diverged": jnp.where(state["diverged"] + finite == 0, number + 1, state["diverged"]),
                }
                return (new, number + 1, work), None

            idle = jnp.zeros((len(self.data.sizes) + 1, 3), jnp.int32)
            state, _, work = lax.scan(one_round, (state, start, idle), tuple(rounds))[0]
            return state, work

        if single:  # a vmap over one would turn the products into matrix-matrix ones of width 1
            numbers, state = jax.tree.map(lambda v: v[0], (numbers, state))
            return jax.tree.map(lambda v: v[None], one(numbers, state, rounds))
        return jax.vmap(one, (0, 0, None if shared else 0))(numbers, state, rounds)

    def _whole(self, x, y, quadratics) -> Batch | Quadratic | None:
        """Each client's data as one batch, stacked, where they are taken at once and need no gathering of rows."""
        sizes = self.data.sizes
        if quadratics is not None or not self.schedule.repeats or (sizes != sizes[0]).any():
            return quadratics
        shape = (len(sizes), int(sizes[0]))
        once, weight = jnp.ones(shape[:1], jnp.int32), jnp.full(shape, 1 / sizes[0], self.precision)
        return Batch(x.reshape(*shape, -1), y.reshape(shape), weight, 0 * once, once)

    def _rows(self, cohort, rows):
        """The rows of the cohort's batches; where a batch is all of a client's data they were not drawn."""
        if not self.schedule.repeats:
            return rows
        rounds = rows.shape[:-2]  # of edges
        place = jnp.arange(self.schedule.batch)
        start, size = jnp.asarray(self.data.offsets[:-1], jnp.int32)[cohort], jnp.asarray(self.data.sizes)[cohort]
        rows = jnp.where(place < size[:, None], start[:, None] + place, -1)[:, None, :]
        return jnp.broadcast_to(rows, (*rounds, *rows.shape))

    def _shape(self, point: Numbers) -> Tree:
        """What the state of one run looks like."""
        return jax.eval_shape(self._start, self.stack([point]), self._z0([0]))

    def structure(self, point: Numbers) -> Any:
        """The structure of a state, to put its leaves into."""
        return jax.tree.structure(self._shape(point))

    def bytes_each(self, point: Numbers, seeds: int = 1) -> int:
        """About how many bytes of memory each further run of a batch takes: states, local work, predictions."""
        sizes = [s.size * s.dtype.itemsize for s in jax.tree.leaves(self._shape(point))]
        rows = len(self.data.y) + (0 if self.data.y_val is None else len(self.data.y_val))
        outputs = len(self.data.classes) if len(self.data.classes) > 2 else 1
        own = self.schedule.cohort_size if seeds > 1 or jax.default_backend() != "cpu" else 0  # clients at a time
        batch = self.schedule.batch * self.data.x.shape[1]
        return (6 + own) * sum(sizes) + (4 * rows * outputs + own * batch) * np.dtype(self.precision).itemsize

    def traffic(self, point: Numbers, seed: int) -> Traffic:
        """What a run sends."""
        point = jax.tree.map(lambda v: jnp.asarray(v, self.precision), point)

        def trees(numbers):
            algorithm, problem = self.bind(numbers)
            server, client = algorithm.init(problem, problem.zeros(self.precision))
            rows = jnp.zeros((1 if self.schedule.repeats else int(self.schedule.steps.max()), 1), jnp.int32)
            x, y = on_device(self.data.x[:1], self.precision), targets(self.data, self.data.y[:1], self.precision)
            data = LocalData(x, y, rows, self.precision, self.schedule.repeats, self.schedule.uneven)
            received = algorithm.broadcast(server)
            return algorithm.local(problem, received, client, data)[0], received, algorithm.report(server)

        up, down, edge_up = (size_of(tree) for tree in jax.eval_shape(trees, point))
        schedule = replace(self.schedule, seed=seed)
        return Traffic(schedule, self.rounds, up, down, edge_up, self.edge_of, self.frozen)
