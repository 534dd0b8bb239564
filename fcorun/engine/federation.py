"""The traced computation: runs of one algorithm on one problem and data set, as pure functions of arrays.

Rounds run inside ``lax.scan`` between evaluations. The numbers (rates, strengths) of G runs are a ``vmap`` axis, and
the runs share minibatches, so that a matrix-vector product becomes a matrix-matrix product. The clients of a round are
computed in chunks: those of one run as many at once as stay in the cache, those of several runs on a CPU one at a time.
Either is 1.3 to 2.5 times faster than the other choice. Runs of different seeds have their own minibatches, and share
the cache.
"""

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import FederatedData
from fcorun.engine.clients import SINGLE_DEVICE, CohortFunction, Devices, looped, vmap_runs
from fcorun.engine.device_rows import (
    CohortLayout,
    DeviceRows,
    SubsetView,
    precompute_losses,
    rows_to_device,
    whole_row_indices,
)
from fcorun.engine.evaluate import Evaluation, join_metrics, personal_models
from fcorun.engine.round import MessageShapes, Round, commit, copy_tree, trace_message_shapes
from fcorun.engine.schedule import START, Rounds, Schedule
from fcorun.methods.algorithms.algorithm import Algorithm, PyTree
from fcorun.methods.communication.aggregation import AggregationRule, WeightedMean
from fcorun.methods.communication.contracts import Channel, Channels, Identity, RoundDraws, RoundState, Star, Topology
from fcorun.methods.communication.privacy import CLIP, NoPrivacy, Privacy
from fcorun.methods.problem.operation_counts import to_arrays
from fcorun.methods.problem.problem import Problem, Vector

Numbers = dict[str, dict[str, float]]  # {"algo": {"client_lr": 0.001}, "reg": {...}, "mirror": {...}}


@dataclass(frozen=True, kw_only=True)
class Federation:
    """An algorithm, a problem, and the clients with their data.

    ``problem`` and ``algorithm`` are templates: each run replaces the numbers in them by its own.

    Attributes:
        topology, links: who receives whose messages, and the links of ``Topology.connect``, or None.
        uplink, downlink: the ways of uploads and of broadcasts; templates, too.
        aggregate: the rule by which a receiver combines uploads; a template, too.
        privacy: how messages are clipped, and the noise of each round; a template, too.
        w0: the initial parameters, projected onto the domain of psi; None: the objective's.
        frozen: whether the server's model stays at ``w0``.
        debug: whether to run without tracing, one client at a time, and record clients in ``nonfinite_clients``.
        subset: the indices of the data's rows, if the data are a subset of rows on the device.
        clients_at_once: as of ``CohortLayout``.
        nonfinite_clients: the first client of each round whose upload or state was not finite, with ``debug``.
    """

    problem: Problem
    algorithm: Algorithm
    data: FederatedData
    schedule: Schedule
    evaluation: Evaluation
    precision: str = "float32"
    topology: Topology = field(default_factory=Star)
    links: Any = None
    uplink: Channel = field(default_factory=Identity)
    downlink: Channel = field(default_factory=Identity)
    aggregate: AggregationRule = field(default_factory=WeightedMean)
    privacy: Privacy = field(default_factory=NoPrivacy)
    w0: dict[str, np.ndarray] | None = None
    frozen: bool = False
    debug: bool = False
    subset: SubsetView | None = None
    clients_at_once: int | None = None
    nonfinite_clients: dict[int, str] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def regularizer_numbers(self) -> dict[str, np.ndarray]:
        """Return the regularizer's numbers that differ from client to client, each (M,)."""
        values = self.problem.regularizer.per_client or {}
        return {name: np.asarray(each, self.precision) for name, each in values.items()}

    @property
    def _device_numbers(self) -> dict[str, jax.Array]:
        return {name: jnp.asarray(values) for name, values in self.regularizer_numbers.items()}

    @cached_property
    def arrays(self) -> tuple[DeviceRows | None, dict[str, jax.Array]]:
        """Put the training rows, with decomposed losses where useful, and the evaluation's arrays on the device.

        The rows are None where they stay on disk and are needed.
        """
        is_subset = self.subset is not None
        losses = precompute_losses(
            self.problem, self.algorithm, self.data, self.schedule, is_subset=is_subset, dtype=self.precision
        )
        extra = self.evaluation.arrays(self.precision, self.algorithm.has_personal_models)
        return rows_to_device(self.data, losses, self.subset, self.precision), extra

    @property
    def fetches_rows(self) -> bool:
        """Return whether training rows stay on disk, so that the rows of each segment of rounds are fetched."""
        return self.evaluates_blocks and self.arrays[0] is None

    @property
    def evaluates_blocks(self) -> bool:
        """Return whether rows stay on disk, so that metrics are sums over blocks of rows."""
        return self.data.train.streamed

    @cached_property
    def shapes(self) -> MessageShapes:
        """Trace the shapes of messages, which do not depend on the numbers of a run.

        Raises UserError for an algorithm that reads ``data.place`` and does not say so.
        """
        shapes = trace_message_shapes(
            self.algorithm,
            self.problem,
            self.data,
            self.schedule,
            dtype=self.precision,
            frozen=self.frozen,
            shape_of=self.shape_of,
        )
        if "place" in shapes.accessed and not self.algorithm.divides_cohort:
            raise UserError(f"{type(self.algorithm).__name__} reads LocalData.place, which has a meaning only where "
                            "all clients of a round take part: give its class divides_cohort = True")  # fmt: skip
        return shapes

    @cached_property
    def state_shapes(self) -> dict[Any, PyTree]:
        """Return the shapes of the state of a run that have been traced, by the structure of the run's numbers."""
        return {}

    def shape_of(self, function: Callable, *arguments: Any) -> Any:
        """Return the shapes of the arrays that a function returns, or with ``debug`` the arrays."""
        if not self.debug:
            return jax.eval_shape(function, *arguments)
        with jax.disable_jit():
            return function(*arguments)

    def bind(self, numbers: Numbers) -> tuple[Algorithm, Problem]:
        """Return the algorithm and the problem with these numbers."""
        reg = {name: value for name, value in numbers.get("reg", {}).items() if name not in self.regularizer_numbers}
        problem = self.problem.with_numbers(reg, numbers.get("mirror"))
        if "curvature" in numbers:  # the bounds of a subset of the data
            problem = replace(problem, curvature=(numbers["curvature"]["least"], numbers["curvature"]["most"]))
        return replace(self.algorithm, **numbers.get("algo", {})), problem

    @property
    def channels(self) -> Channels:
        return Channels(self.uplink, self.downlink)

    @cached_property
    def needs_server_key(self) -> bool:
        """Return whether the algorithm or a channel may read a random key of the server."""
        return self.channels.needs_server_key or "server_key" in self.shapes.accessed

    def draw_rounds(self, seed: int, start: int, count: int) -> Rounds:
        """Draw the rounds start, ..., start + count - 1 of a run of this seed, counted from 0."""
        schedule = self.schedule.with_seed(seed)
        server_keys = schedule.draw_server_keys(start, count) if self.needs_server_key else None
        links = self.topology.draw_links(self.links, seed, np.arange(start, start + count))
        return schedule.draw_rounds(start, count)._replace(server_keys=server_keys, links=links)

    def initial_keys(self, seeds: Sequence[int]) -> np.ndarray | None:
        """Return the bits of the random keys of initial states of these seeds, (G, 2); None where none is read."""
        if "server_key" not in self.shapes.accessed:
            return None
        return np.stack([self.schedule.with_seed(seed).draw_initial_key() for seed in seeds])

    def noise_keys(self, seeds: Sequence[int]) -> np.ndarray | None:
        """Return the bits of the keys of the noise of runs with these seeds, (G, 2); None without noise.

        Secret keys are other ones at each call.
        """
        if not self.privacy.acts:
            return None
        if self.privacy.has_secret_key:
            return np.frombuffer(secrets.token_bytes(8 * len(seeds)), np.uint32).reshape(-1, 2)
        return np.stack([self.schedule.with_seed(seed).draw_noise_key() for seed in seeds])

    def stack_numbers(self, points: Sequence[Numbers]) -> Any:
        """Stack the numbers of all runs in arrays with a leading axis G; a share of liars becomes their number."""
        faults, n_clients = self.schedule.faults, self.data.n_clients
        if faults.has_liars:
            with_counts = []
            for point in points:
                of_faults = point.get("faults", {})
                n_liars = float(replace(faults, **of_faults).count_liars(n_clients))
                with_counts.append(point | {"faults": of_faults | {"liars": n_liars}})
            points = with_counts
        return jax.tree.map(lambda *v: jax.device_put(np.asarray(v, self.precision)), *points)

    def initial_duals(self, seeds: Sequence[int]) -> Vector:
        """Return the initial dual points of runs of these seeds, stacked."""
        objective, shapes = self.problem.objective, self.problem.shapes
        starts = [objective.initial_parameters(shapes, np.random.default_rng([seed, START])) for seed in seeds]
        stacked = {}
        for name in shapes:
            values = np.stack([start[name] for start in starts]).astype(self.precision)
            stacked[name] = jax.device_put(values)
        return Vector(stacked)

    def initial_state(self, numbers: Any, z0: Vector, keys: Any = None, noise_keys: Any = None) -> PyTree:
        """Compute the state of each run before the first round.

        "clients" holds each client's state, the uplink's memory and the topology's memory there, if any, with a
        leading axis M after the axis of runs. Generated clients all begin with one state, so that M is 1 for them.
        "memory" is that of the channels at the receivers, and last the clip of the next round where privacy adapts it,
        "server" the state of the topology. ``keys``: (G, 2) bits.
        ``noise_keys``, (G, 2), stay as they are.
        """
        n_states, sent = self.data.train.n_initial_states, self.shapes.through_uplink(self.topology)
        n_receivers = self.topology.count_receivers(self.links)

        def stack(count, tree):
            return jax.tree.map(lambda v: jnp.broadcast_to(v, (count, *jnp.shape(v))), tree) if count else tree

        def init(numbers, z0, key):
            (algorithm, problem), channels = self.bind(numbers), self.channels.with_numbers(numbers)
            w0 = {name: jnp.asarray(value, z0.dtype) for name, value in (self.w0 or {}).items()}
            start = Vector(w0) if w0 else problem.initial_point(z0)
            if w0 and not self.frozen:
                start = problem.nearest_in_domain(start)
            server, client = to_arrays(algorithm.init(replace(problem, key_bits=key), start))
            memories = channels.client_memory(sent) + self.schedule.faults.client_memory(sent)
            clients = (client, memories, *self.topology.client_memory(server))
            memory = channels.server_memory(self.shapes.uploads, self.shapes.broadcasts)
            if self.privacy.adapts_clip:
                clip = replace(self.privacy, **numbers.get("privacy", {})).clip  # type: ignore[attr-defined]
                memory = (*memory, jnp.asarray(clip, self.precision))
            return {
                "server": self.topology.initial_state(server, self.links, self.shapes.uploads),
                "memory": stack(n_receivers, memory),
                "clients": stack(n_states, clients),
                "diverged": jnp.zeros((), jnp.int32),
            }

        state = vmap_runs(init, (0, 0, 0), numbers, z0, keys)
        return state if noise_keys is None else state | {"noise_key": noise_keys}

    def split_sums(self, numbers: Any, state: PyTree, x: jax.Array, y: jax.Array, extra: dict[str, jax.Array]):
        """Compute for each run the sums of losses and scores over the rows of each split; x and y are "train"."""

        def sum_run(numbers, server):
            algorithm, problem = self.bind(numbers)
            server = self.topology.server_state(server, self.links)
            w = algorithm.output(problem.for_side("server"), server)
            return self.evaluation.split_sums(problem, w, x, y, extra)

        return vmap_runs(sum_run, (0, 0), numbers, state["server"])

    def evaluate(self, numbers: Any, state: PyTree, x: Any, y: Any, extra: dict[str, jax.Array]):
        """Evaluate each run: metrics, predictions for ``Evaluation.add_ranking``, solution, and personal models.

        Where rows stay on disk or are sharded by host, x and y are None, and the state has the "sums" over the rows of
        each split.
        """

        def evaluate_run(numbers, server, clients, sums, clip):
            algorithm, problem = self.bind(numbers)
            nodes = self.topology.node_states(server)
            server = self.topology.server_state(server, self.links)
            w = algorithm.output(problem.for_side("server"), server)
            metrics = self.evaluation.measure(problem, w, x, y, extra, sums=sums)
            if clip is not None:
                metrics[CLIP] = clip
            if algorithm.declared_metrics:  # computed from copies, since a function may change its arguments
                declared = algorithm.metrics(problem.for_side("server"), copy_tree(server), copy_tree(clients[0]))
                declared = {name: jnp.asarray(value, self.precision) for name, value in declared.items()}
                metrics = join_metrics(metrics, declared, f"metrics() of {type(algorithm).__name__}")
            if nodes is not None:
                models = jax.vmap(partial(algorithm.output, problem.for_side("server")))(nodes)
                weights = self.links.node_weights
                of_nodes = self.evaluation.measure_nodes(problem, models, w, weights=weights, rows=(x, y, extra))
                metrics = join_metrics(metrics, of_nodes, f"metrics() of {type(algorithm).__name__}")
            if not algorithm.has_personal_models or self.data.train.stays_at_sites:
                return metrics, dict(w), None

            client_numbers = self._device_numbers
            models = personal_models(algorithm, problem, server, clients[0], client_numbers)
            metrics |= self.evaluation.measure_personal(problem, models, client_numbers, rows=(x, y), extra=extra)
            return metrics, dict(w), dict(models)

        clips = state["memory"][-1] if self.privacy.adapts_clip else None
        arguments = (state["server"], state["clients"], state.get("sums"), clips)
        axes = (0, 0, 0, *(None if values is None else 0 for values in arguments[2:]))
        return vmap_runs(evaluate_run, axes, numbers, *arguments)

    def advance(
        self,
        numbers: Any,
        state: PyTree,
        rows: DeviceRows,
        rounds: Rounds,
        start: Any,
        devices: Devices = SINGLE_DEVICE,
    ) -> tuple[PyTree, jax.Array]:
        """Compute the runs after ``rounds``, and the work of each client and, last, the server, (G, M + 1, 3).

        Work of generated clients is counted by position in the cohort. ``rounds`` have a leading axis G where seeds
        differ; ``start`` is the number of the first round. One of several ``devices`` computes its part.
        """
        shared = rounds.cohort.ndim == 2
        n_runs = state["diverged"].shape[0]
        in_order = self.full_participation and not (self.debug or devices.shard_clients)
        whole, compute_chunks = self.layout.plan(rows, n_runs, shared, in_order)
        computed_rounds = self.algorithm.computed_rounds  # all runs skip the rounds after these

        def advance_run(numbers, state, rounds):
            def compute_round(carry, draws):
                state, number, work = carry
                index = draws.cohort if draws.state_index is None else draws.state_index
                client_states = state["clients"]
                if not self.full_participation:
                    client_states = jax.tree.map(lambda v: v[index], client_states)
                compute_cohort = self._looped(draws.cohort, number) if self.debug else compute_chunks
                compute_cohort = devices.map_clients(compute_cohort, draws.assignment)
                cohort_round = self.build_round(numbers, rows, draws, compute_cohort, whole)
                if self.privacy.acts:
                    edge_rounds = self.topology.edge_rounds
                    of_edges = number if edge_rounds is None else number * edge_rounds + jnp.arange(edge_rounds)
                    numbered = cohort_round.draws._replace(number=of_edges)
                    cohort_round = replace(cohort_round, noise_key=state["noise_key"], draws=numbered)
                if self.privacy.adapts_clip:
                    privacy: Any = replace(cohort_round.privacy, clip=state["memory"][-1])  # type: ignore[call-arg]
                    cohort_round = replace(cohort_round, privacy=privacy)
                round_start = RoundState(state["server"], state["memory"], client_states)
                outcome = self.topology.run_round(cohort_round, round_start)
                all_positions = self.schedule.generated_clients or self.full_participation
                work = work.at[slice(-1) if all_positions else draws.cohort].add(outcome.client_work)
                state = commit(state, outcome.state, index, number, self.full_participation)
                return (state, number + 1, work.at[-1].add(outcome.server_work)), None

            def compute_or_skip(carry, draws):
                if computed_rounds is None:
                    return compute_round(carry, draws)
                state, number, work = carry
                skipped = (state, number + 1, work), None
                return lax.cond(number < computed_rounds, compute_round, lambda *_: skipped, carry, draws)

            no_work = jnp.zeros((len(self.schedule.work_sizes) + 1, 3), jnp.int32)
            (state, _, work), _ = lax.scan(compute_or_skip, (state, start, no_work), rounds)
            return state, devices.sum_work(work)

        axes = (0, 0, None if shared else 0)
        return vmap_runs(advance_run, axes, numbers, state, rounds, sequential=n_runs == 1)

    def build_round(
        self, numbers: Any, rows: DeviceRows, draws: Any, compute_cohort: CohortFunction, whole: PyTree = None
    ) -> Round:
        """Return the parts of a round of one run, from its ``draws``; ``whole`` is the data of all clients, or None."""
        algorithm, problem = self.bind(numbers)
        weights = draws.weights.astype(self.precision)  # before a division, lest float64 keep seven digits
        share = draws.cohort_share.astype(self.precision)
        faults = replace(self.schedule.faults, **numbers.get("faults", {}))
        faults_of_cohort = None if draws.faults is None else faults.find_in_cohort(draws.faults)
        if faults_of_cohort is not None and faults_of_cohort.present is not None:
            total = weights.sum()  # the weight of those that are absent goes to the others
            weights = jnp.where(faults_of_cohort.present, weights, 0)
            share = share * (weights.sum() / total)
        if self.privacy.fixes_divisor(self.schedule.participation):
            share = jnp.asarray(self.schedule.expected_share, self.precision)
        client_numbers = self._device_numbers
        if not self.full_participation:
            index = draws.cohort if draws.state_index is None else draws.state_index
            client_numbers = jax.tree.map(lambda v: v[index], client_numbers)
        client_rows = None
        if whole is None and self.needs_whole_data:
            client_rows = draws.whole_rows
            if client_rows is None:
                client_rows = whole_row_indices(self.schedule, rows, jnp.asarray(draws.cohort))
        return Round(
            algorithm=algorithm,
            problem=problem,
            server_problem=replace(problem.for_side("server"), share=share),
            channels=self.channels.with_numbers(numbers),
            aggregate=replace(self.aggregate, **numbers.get("aggregate", {})),
            privacy=replace(self.privacy, **numbers.get("privacy", {})),
            faults=faults,
            faults_of_cohort=faults_of_cohort,
            n_classes=len(self.data.classes),
            links=self.links,
            schedule=self.schedule,
            clients=jnp.asarray(draws.cohort),
            draws=RoundDraws(draws.rows, draws.keys, draws.shared_uniforms, draws.server_keys, draws.links),
            row_extras=rows.row_extras,
            regularizer_numbers=client_numbers,
            whole=whole,
            data_index=self.data.train.host_index(draws.cohort, in_order=self.full_participation),
            client_rows=None if client_rows is None else jnp.asarray(client_rows),
            weights=weights,
            compute_cohort=compute_cohort,
            frozen=self.frozen,
            rows_of_client=partial(self.data.train.client_rows, rows.x, rows.y),
        )

    @cached_property
    def needs_whole_data(self) -> bool:
        """Return whether clients use their whole data, in steps or besides their minibatches."""
        return "whole" in self.shapes.accessed

    @property
    def full_participation(self) -> bool:
        """Return whether every cohort is all clients in order."""
        return self.schedule.cohort_size == self.data.n_clients

    @cached_property
    def layout(self) -> CohortLayout:
        """Return how the clients of a cohort are computed together."""
        return CohortLayout(
            schedule=self.schedule,
            train=self.data.train,
            max_client_rows=self.schedule.sizes if self.subset is None else self.subset.max_client_rows,
            n_parameters=sum(math.prod(shape) for shape in self.problem.shapes.values()),
            precision=self.precision,
            needs_whole_data=self.needs_whole_data,
            clients_at_once=self.clients_at_once,
        )

    def _looped(self, cohort: jax.Array, number: Any) -> CohortFunction:
        """Return the function that loops over the clients of a cohort in the round ``number``, counted from 0."""
        names, round_number = self.data.clients or range(self.data.n_clients), int(number) + 1

        def record(client: str) -> None:
            self.nonfinite_clients.setdefault(round_number, client)

        return looped([names[m] for m in cohort], round_number, record)
