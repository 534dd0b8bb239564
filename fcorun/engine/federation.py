"""What is traced: runs of one algorithm on one problem and data set, as pure functions of arrays.

Rounds run inside ``lax.scan`` between evaluations. Of G runs, the numbers (rates, strengths) are a ``vmap`` axis and
the minibatches are shared, so that a matrix-vector product becomes a matrix-matrix one. The clients of a round go
through in chunks: of one run as many at once as stay in the cache, of several on a CPU one at a time, which is 1.3 and
2.5 times faster than the other way. Runs of different seeds have minibatches of their own, and share the cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fcorun.algorithms.base import Algorithm, PyTree
from fcorun.algorithms.local_data import tree_bytes
from fcorun.communication.base import Uplink
from fcorun.communication.identity import Identity
from fcorun.datasets.base import FederatedData
from fcorun.engine.arrays import (
    DeviceRows,
    SubsetView,
    gather_whole_data,
    precompute_losses,
    rows_to_device,
    whole_row_indices,
)
from fcorun.engine.clients import CohortFunction, chunk_bytes, chunk_width, chunked, looped
from fcorun.engine.devices import SINGLE_DEVICE, Devices, vmap_runs
from fcorun.engine.evaluate import Evaluation, personal_models
from fcorun.engine.round import Round, RoundDraws
from fcorun.engine.schedule import START, Rounds, Schedule
from fcorun.engine.traffic import MessageShapes, trace_message_shapes
from fcorun.problem.problem import Problem
from fcorun.problem.vector import Vector

Numbers = dict[str, dict[str, float]]  # {"algo": {"client_lr": 0.001}, "reg": {...}, "mirror": {...}}


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
    uplink: Uplink = field(default_factory=Identity)
    w0: dict[str, np.ndarray] | None = None
    frozen: bool = False
    debug: bool = False
    subset: SubsetView | None = None
    clients_at_once: int | None = None
    nonfinite_clients: dict[int, str] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def regularizer_numbers(self) -> dict[str, np.ndarray]:
        """The numbers of the regularizer that differ from client to client, each (M,)."""
        values = self.problem.regularizer.per_client or {}
        return {name: np.asarray(each, self.precision) for name, each in values.items()}

    @property
    def _own(self) -> dict[str, jax.Array]:
        return {name: jnp.asarray(values) for name, values in self.regularizer_numbers.items()}

    @cached_property
    def arrays(self) -> tuple[DeviceRows | None, dict[str, jax.Array]]:
        """The rows, with the losses decomposed where that is of use, and what the evaluation needs; on the device. No
        rows where these stay on disk and are needed."""
        part = {"is_subset": self.subset is not None, "dtype": self.precision}
        losses = precompute_losses(self.problem, self.algorithm, self.data, self.schedule, **part)
        extra = self.evaluation.arrays(self.precision, self.algorithm.has_personal_models)
        return rows_to_device(self.data, losses, self.subset, self.precision), extra

    @cached_property
    def shapes(self) -> MessageShapes:
        """Of what is sent, which the numbers of a run do not change."""
        given = {"dtype": self.precision, "frozen": self.frozen, "shape_of": self.shape_of}
        return trace_message_shapes(self.algorithm, self.problem, self.data, self.schedule, **given)

    def shape_of(self, function: Callable, *arguments: Any) -> Any:
        """The arrays that a function returns, or their shapes."""
        if not self.debug:
            return jax.eval_shape(function, *arguments)
        with jax.disable_jit():
            return function(*arguments)

    def bind(self, numbers: Numbers) -> tuple[Algorithm, Problem]:
        """The algorithm and the problem with these numbers in them."""
        reg = {name: value for name, value in numbers.get("reg", {}).items() if name not in self.regularizer_numbers}
        problem = self.problem.with_numbers(reg, numbers.get("mirror"))
        if "curvature" in numbers:  # of a part of the data
            problem = replace(problem, curvature=(numbers["curvature"]["least"], numbers["curvature"]["most"]))
        return replace(self.algorithm, **numbers.get("algo", {})), problem

    def stack_numbers(self, points: Sequence[Numbers]) -> Any:
        """The numbers of all runs as arrays with leading axis G."""
        return jax.tree.map(lambda *v: jax.device_put(np.asarray(v, self.precision)), *points)

    def initial_duals(self, seeds: Sequence[int]) -> Vector:
        """The dual points that runs of these seeds start from, stacked."""
        objective, shapes = self.problem.objective, self.problem.shapes
        starts = [objective.initial_parameters(shapes, np.random.default_rng([seed, START])) for seed in seeds]
        return Vector(
            {n: jax.device_put(np.stack([each[n] for each in starts]).astype(self.precision)) for n in shapes}
        )

    def initial_state(self, numbers: Any, z0: Vector) -> PyTree:
        """The state of each run before the first round. ``clients`` holds each client's state and the memory of its
        uplink, with a leading axis M after that of the runs; of a population one client's, as all begin."""
        clients, shapes = self.data.n_clients if self.data.generated is None else 1, self.shapes

        def init(numbers, z0):
            algorithm, problem = self.bind(numbers)
            given = {k: jnp.asarray(v, z0.dtype) for k, v in (self.w0 or {}).items()}
            server, client = algorithm.init(problem, Vector(given) if given else problem.initial_point(z0))
            kept = client, self.uplink.init(lambda: shapes.upload)
            kept = jax.tree.map(lambda v: jnp.broadcast_to(v, (clients, *jnp.shape(v))), kept)
            return {"server": server, "clients": kept, "diverged": jnp.zeros((), jnp.int32)}

        return vmap_runs(init, (0, 0), numbers, z0, sequential=self.debug)

    def split_sums(self, numbers: Any, state: PyTree, x: jax.Array, y: jax.Array, extra: dict[str, jax.Array]):
        """Of each run the sums over these rows of what is measured of them, by part; those of x and y are "train"."""

        def one(numbers, server):
            algorithm, problem = self.bind(numbers)
            return self.evaluation.split_sums(
                problem, algorithm.output(problem.for_side("server"), server), x, y, extra
            )

        return vmap_runs(one, (0, 0), numbers, state["server"], sequential=self.debug)

    def evaluate(self, numbers: Any, state: PyTree, x: Any, y: Any, extra: dict[str, jax.Array]):
        """Evaluate each run: its metrics, predictions for ``Evaluation.ranked``, solution, and clients' own models.

        Where rows stay on disk, or are those of several hosts, x and y are None and the sums over them by part are in
        the state, "sums".
        """

        def one(numbers, server, clients, sums):
            algorithm, problem = self.bind(numbers)
            w = algorithm.output(problem.for_side("server"), server)
            sums = self.evaluation.split_sums(problem, w, x, y, extra) if sums is None else sums
            metrics = self.evaluation.metrics_from_sums(problem, w, sums, extra)
            metrics |= self.evaluation.predictions(problem, w, x, extra)
            if not algorithm.has_personal_models:
                return metrics, dict(w), None

            models = personal_models(algorithm, problem, server, clients[0], self._own)
            own_metrics = self.evaluation.measure_personal(problem, models, self._own, rows=(x, y), extra=extra)
            return metrics | own_metrics, dict(w), dict(models)

        given = (state["server"], state["clients"], state.get("sums"))
        return vmap_runs(one, (0, 0, 0, 0 if "sums" in state else None), numbers, *given, sequential=self.debug)

    def advance(
        self,
        numbers: Any,
        state: PyTree,
        rows: DeviceRows,
        rounds: Rounds,
        start: Any,
        devices: Devices = SINGLE_DEVICE,
    ) -> tuple[PyTree, jax.Array]:
        """The runs after ``rounds``, and the work of each client and, last, the server, (G, M + 1, 3); where
        clients make their rows, of each place in the cohort.

        ``rounds`` have a leading axis G where seeds differ; ``start`` is the number of the first one. One of
        several ``devices`` computes its part."""
        shared = rounds.cohort.ndim == 2
        whole = gather_whole_data(self.schedule, rows, self.data, self.precision)
        at_once = self.chunk_width(state["diverged"].shape[0], shared, whole)

        def one(numbers, state, rounds):
            algorithm, problem = self.bind(numbers)

            def one_round(carry, now):
                state, number, work = carry
                weight = now.weights.astype(self.precision)  # before a division, lest float64 keep seven digits
                place = now.cohort if now.state_index is None else now.state_index
                kept, own = jax.tree.map(
                    lambda v: v if self.full_participation else v[place], (state["clients"], self._own)
                )
                on_server = replace(problem.for_side("server"), share=now.cohort_share.astype(self.precision))
                this = Round(
                    algorithm=algorithm,
                    problem=problem,
                    server_problem=on_server,
                    schedule=self.schedule,
                    **{"x": rows.x, "y": rows.y, "row_extras": rows.row_extras},
                    regularizer_numbers=own,
                    whole=whole,
                    cohort=self._whose(now.cohort),
                    client_rows=self._rows_of_client(rows, now) if whole is None else None,
                    weights=weight,
                    compute_cohort=devices.map_clients(self._clients(at_once, now.cohort, number), now.assignment),
                    uplink=self.uplink,
                    frozen=self.frozen,
                    generate_rows=self.data.generated and self.data.generated.generate_rows,
                )
                drawn = RoundDraws(now.rows, now.keys, now.shared_uniforms)
                if self.edge_of is None:
                    end = this.run_star(state["server"], kept, drawn)
                else:
                    edge_of, edges = jnp.asarray(self.edge_of, jnp.int32), int(self.edge_of.max()) + 1
                    end = this.run_tree(state["server"], kept, drawn, edge_of[now.cohort], edges)
                work = work.at[
                    slice(-1) if self.schedule.generated_clients or self.full_participation else now.cohort
                ].add(end.client_work)
                kept = end.commit(state, place, number, self.full_participation)
                return (kept, number + 1, work.at[-1].add(end.server_work)), None

            idle = jnp.zeros((len(self.schedule.work_sizes) + 1, 3), jnp.int32)
            state, _, work = lax.scan(one_round, (state, start, idle), rounds)[0]
            return state, devices.sum_work(work)

        axes = (0, 0, None if shared else 0)
        return vmap_runs(one, axes, numbers, state, rounds, sequential=self.debug or state["diverged"].shape[0] == 1)

    def _whose(self, cohort: jax.Array) -> jax.Array | None:
        """The numbers of these clients, among those of their host; None where each has its whole data at hand."""
        if self.data.host_bounds is not None:
            return jnp.asarray(
                np.arange(self.data.n_clients) - self.data.host_bounds[self.data.host_of_client], jnp.int32
            )[cohort]
        return None if self.full_participation and not self.schedule.generated_clients else cohort

    def _rows_of_client(self, rows: DeviceRows, now: Rounds) -> jax.Array | None:
        """All rows of each client of a cohort, where any takes its whole data; else None."""
        if not self.needs_whole_data:
            return None
        if now.whole_rows is not None:
            return jnp.asarray(now.whole_rows)
        return whole_row_indices(self.schedule, rows, jnp.asarray(now.cohort))

    @cached_property
    def needs_whole_data(self) -> bool:
        """Whether clients take their whole data, in steps or beside their minibatches."""
        return "whole" in self.shapes.accessed

    @property
    def full_participation(self) -> bool:
        """Whether the cohort is all clients in their order."""
        return self.schedule.cohort_size == self.data.n_clients

    def chunk_width(self, runs: int, shared: bool, whole: PyTree = None) -> int:
        """How many clients of a cohort are computed at once in a program of so many runs, whose minibatches may be
        ``shared``; ``whole`` is the data of all clients where they are taken at once, or None."""
        if self.clients_at_once is not None:
            return min(self.clients_at_once, self.schedule.cohort_size)
        if shared and runs > 1 and jax.default_backend() == "cpu":
            return 1
        each = self.client_bytes(whole) + tree_bytes(self.problem.zeros(self.precision))
        return chunk_width(self.schedule.cohort_size, chunk_bytes() // (runs * each))

    def client_bytes(self, whole: PyTree = None) -> int:
        """The bytes of what a client takes a step on: a minibatch, the rows that it makes, or its part of ``whole``."""
        if whole is not None:
            return tree_bytes(whole) // len(jax.tree.leaves(whole)[0])
        rows = self.schedule.max_rows if self.needs_whole_data else self.schedule.max_batch
        if self.data.generated is not None:
            rows = self.data.generated.rows_per_client
        return rows * int(np.prod(self.data.x.shape[1:])) * np.dtype(self.precision).itemsize

    def _clients(self, at_once: int, cohort: jax.Array, number: Any) -> CohortFunction:
        """How the clients of a cohort are computed in a round."""
        if self.debug:
            names, now = self.data.clients or range(self.data.n_clients), int(number) + 1
            return looped([names[m] for m in cohort], now, lambda who: self.nonfinite_clients.setdefault(now, who))
        return chunked(at_once)
