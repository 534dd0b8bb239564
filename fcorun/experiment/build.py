"""What is built of an experiment: its data, its problem, numbers for what is "auto", and its engine."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from fcorun.algorithms.base import Algorithm, ProblemConstants
from fcorun.config import AUTO, numeric_fields
from fcorun.datasets.base import Dataset, FederatedData
from fcorun.engine.arrays import SubsetView
from fcorun.engine.engine import Engine
from fcorun.engine.evaluate import Evaluation, objective_weights
from fcorun.engine.federation import Federation
from fcorun.engine.schedule import Schedule
from fcorun.errors import UserError, first_line, suggest_name
from fcorun.experiment.bind_regularizer import (
    aggregate_client_values,
    attach_graph,
    attach_groups,
    resolve_factors,
    warn_of_feature_order,
)
from fcorun.experiment.compatibility import check_data
from fcorun.experiment.experiment import Experiment
from fcorun.experiment.prepare import explain_unmeasured
from fcorun.experiment.row_requirements import check_rows_on_disk, choose_shard, needs_curvature_bounds
from fcorun.problem.problem import Problem
from fcorun.problem.quadratic import bound_pooled_smoothness, curvature_bounds
from fcorun.regularizers.none import NoRegularizer
from fcorun.system.cache import Keyed
from fcorun.system.interruption import interruptible_at_once
from fcorun.system.machine import REDUCE_HINT, check_memory, free_host_memory


def load_data(experiment: Experiment) -> FederatedData:
    """The data, checked; kept for the next experiment on the same. Raises UserError."""
    with interruptible_at_once():
        key, memory = f"{experiment.fingerprint} {experiment.data}", experiment.settings.memory
        data = _load_once(Keyed(key, (experiment.data, memory)), *choose_shard(experiment))
    check_data(experiment, data)
    if data.on_disk:
        check_rows_on_disk(experiment, data, build_schedule(experiment, data), build_problem(experiment, data))
    attach_graph(experiment.reg, data, experiment.names["reg"])
    told = warn_of_feature_order(experiment.reg, experiment.objective, data, experiment.names["reg"])
    return replace(data, warnings=(*data.warnings, *told)) if told else data


def check_metric_measured(experiments: Iterable[Experiment], metric: str | None) -> None:
    """Refuse a metric that none of these experiments will measure, as far as their data tell. Raises UserError."""
    reasons: list[str] = []
    for experiment in experiments if metric and metric not in ("objective", "suboptimality") else ():
        try:
            reason = explain_unmeasured(str(metric), experiment, load_data(experiment))
        except Exception:  # who cannot be loaded says so when it is to run
            continue
        if not reason:
            return
        reasons.append(reason)
    if reasons:
        raise UserError(f"metric={metric} would not be measured: {'; '.join(dict.fromkeys(reasons))}; choose another")


def build_problem(experiment: Experiment, data: FederatedData) -> Problem:
    """The problem on these data. Raises UserError where psi or the mirror map cannot act on a parameter."""
    names = experiment.names
    shapes = experiment.objective.shapes(data.shape or data.x.shape[1:], len(data.classes))
    weights = objective_weights(data, experiment.settings.client_weighting)
    regularizer = aggregate_client_values(attach_graph(experiment.reg, data, names["reg"]), weights, data.offsets)
    regularizer = attach_groups(regularizer, experiment.objective, data)
    regularizer = resolve_factors(regularizer, experiment.objective, data)
    problem = Problem(experiment.objective, regularizer, experiment.mirror, shapes, data.scale)
    for name in problem.regularized:
        if name not in shapes:
            raise UserError(f"reg.apply_to: objective={names['objective']} has no parameter '{name}'; "
                            f"{suggest_name(name, shapes)}")  # fmt: skip
        try:
            if shapes[name] == () and hasattr(regularizer, "check"):
                raise ValueError("psi acts on vectors and matrices; leave it out of reg.apply_to")
            for plugin in (regularizer, experiment.mirror):
                getattr(plugin, "check", lambda shape: None)(shapes[name])
        except ValueError as error:
            size = " x ".join(map(str, shapes[name])) or "a number"
            raise UserError(f"reg={names['reg']} cannot act on '{name}', {size}: {error}") from error
    return problem


def bind_objective(experiment: Experiment, data: FederatedData) -> Experiment:
    """Return the experiment with numbers for what is "auto" in its objective, from the training targets."""
    targets = data.y if data.offset is None else data.y - data.offset
    return replace(experiment, objective=experiment.objective.resolve_auto(targets))


def resolve_auto(experiment: Experiment, data: FederatedData) -> tuple[Experiment, dict | None]:
    """The experiment with numbers for what is "auto" in the algorithm, and the bounds that they come from.

    Raises UserError where there are none, or where the losses do not bend as the algorithm needs.
    """
    algo = experiment.algo
    if not isinstance(algo, Algorithm):
        return experiment, None
    told, known = {}, ProblemConstants(math.nan, math.nan)
    if needs_curvature_bounds(experiment):
        known = compute_problem_constants(experiment, data)
        least, most = known.strong_convexity, known.smoothness
        if most == 0:
            raise UserError(f"algo={experiment.names['algo']}: the losses are flat, for all features are 0: give its "
                            "steps, instead of auto")  # fmt: skip
        told = {"least": least, "most": most, "condition": most / least if least > 0 else None}
    elif not algo.auto_fields:
        return experiment, None
    found = algo.resolve_auto(known)
    changed = {f"algo.{k}": v for k, v in numeric_fields(found).items() if k in algo.auto_fields}
    return replace(experiment, algo=found), {**told, **changed}


def compute_problem_constants(experiment: Experiment, data: FederatedData) -> ProblemConstants:
    """What is known of a run's losses and rounds, from which "auto" is worked out."""
    schedule, weighting = build_schedule(experiment, data), experiment.settings.client_weighting
    least, most = compute_curvature_bounds(experiment, data)
    edge_rounds = experiment.topology.edge_rounds
    work = partial(bound_pooled_smoothness, experiment.objective, data, weighting)
    reg, sides = experiment.reg, experiment.algo.traits.psi_sides
    return ProblemConstants(
        strong_convexity=least,
        smoothness=most,
        local_steps=int(schedule.steps.max()) * (edge_rounds or 1),
        full_batch_smoothness=None
        if schedule.full_batch_steps
        else compute_curvature_bounds(experiment, data, full_batch=True)[1],
        partial_participation=edge_rounds is not None or schedule.cohort_size < data.n_clients,
        effective_rows=None if schedule.full_batch_steps else schedule.effective_batch_rows,
        psi_on_clients_only=reg.applied_by == "client" and "client" in sides and not isinstance(reg, NoRegularizer),
        pooled_smoothness=partial(_once, (*_key(experiment), weighting), work),
    )


def compute_curvature_bounds(
    experiment: Experiment, data: FederatedData, full_batch: bool = False
) -> tuple[float, float]:
    """Bounds on the curvature of each client's loss, or unless ``whole`` of minibatches where they are smaller."""
    batch = experiment.settings.batch_size
    full_batch = full_batch or batch is None or batch >= data.sizes.max()
    return _once((*_key(experiment), full_batch), partial(curvature_bounds, experiment.objective, data, full_batch))


def build_schedule(experiment: Experiment, data: FederatedData, subset_view: SubsetView | None = None) -> Schedule:
    """Who takes part in which round of a run, with how many local steps."""
    settings = experiment.settings
    return Schedule(
        offsets=data.offsets,
        generated_clients=0 if data.generated is None else data.generated.n_clients,
        seed=settings.seed,
        clients_per_round=settings.clients_per_round,
        batch_size=settings.batch_size,
        local_epochs=settings.local_epochs,
        local_steps=settings.local_steps,
        client_weighting=settings.client_weighting,
        edge_rounds=experiment.topology.edge_rounds,
        names=data.clients,
        client_weights=None if data.weight is None else data.client_weights,
        host_first_row=None
        if data.host_bounds is None or data.on_disk
        else data.offsets[data.host_bounds][data.host_of_client],
        row_positions=None if subset_view is None else subset_view.train_rows,
    )


def build_engine(experiment: Experiment, data: FederatedData, subset_view: SubsetView | None = None) -> Engine:
    """The engine for runs like this one, on data whose rows may be ``among`` others."""
    assert isinstance(experiment.algo, Algorithm)
    settings, problem = experiment.settings, build_problem(experiment, data)
    if experiment.algo.curvature_alternatives:
        problem = replace(problem, curvature=compute_curvature_bounds(experiment, data))
    federation = Federation(
        problem=problem,
        algorithm=experiment.algo,
        data=data,
        schedule=build_schedule(experiment, data, subset_view),
        evaluation=Evaluation(data, settings.client_weighting, settings.cutoff, subset_view),
        precision=settings.precision,
        edge_of=experiment.topology.assign_edges(data),
        w0=experiment.warm_start.solution_for(problem, data) if experiment.warm_start else None,
        frozen=settings.frozen,
        debug=settings.debug,
        subset=subset_view,
        clients_at_once=None if settings.clients_at_once == AUTO else settings.clients_at_once,
    )
    return Engine(federation, settings.rounds, settings.eval_every)


@lru_cache(maxsize=2)
def _load_once(asked: Keyed[tuple[Dataset, float | None]], part: int, of: int) -> FederatedData:
    """The data of a data set, where they fit into the memory."""
    data, memory = asked.value
    needed, what = data.memory_needed()
    check_memory(needed / of, free_host_memory(), memory, what)
    try:
        return (data.load() if of == 1 else data.load_shard(part, of)).validate()
    except MemoryError as error:
        raise UserError(f"the data do not fit into memory ({first_line(error)}); {REDUCE_HINT}") from error


def _key(experiment: Experiment) -> tuple[str, str]:
    return experiment.fingerprint, repr(experiment.objective)


def _once(key: tuple, work: Callable[[], Any]) -> Any:
    """What ``work()`` returns, worked out once for each key."""
    if key not in _BOUNDS:
        with interruptible_at_once():
            _BOUNDS[key] = work()
    return _BOUNDS[key]


_BOUNDS: dict[tuple, Any] = {}
