"""What is built of an experiment: its data, its problem, numbers for what is "auto", and its engine."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from fcorun.algorithms.base import Algorithm, Known
from fcorun.config import AUTO, numbers
from fcorun.datasets.base import Dataset, FederatedData
from fcorun.engine.arrays import Among
from fcorun.engine.engine import Engine
from fcorun.engine.evaluate import Evaluation, row_weights
from fcorun.engine.federation import Federation
from fcorun.engine.schedule import Schedule
from fcorun.errors import UserError, first_line, nearest
from fcorun.experiment.experiment import Experiment
from fcorun.experiment.fit import check_data
from fcorun.experiment.on_disk import check_on_disk, needing_bounds, part_here
from fcorun.experiment.prepare import unmeasured
from fcorun.experiment.psi import across_clients, by_number, on_graph, on_groups, remarks_on_features
from fcorun.problem.problem import Problem
from fcorun.problem.quadratic import curvature, pooled_curvature
from fcorun.regularizers.none import NoRegularizer
from fcorun.system.cache import Keyed
from fcorun.system.interruption import interruptible_at_once
from fcorun.system.machine import SMALLER, check_memory, host_memory


def load(experiment: Experiment) -> FederatedData:
    """The data, checked; kept for the next experiment on the same. Raises UserError."""
    with interruptible_at_once():
        key, memory = f"{experiment.fingerprint} {experiment.data}", experiment.settings.memory
        data = _load_once(Keyed(key, (experiment.data, memory)), *part_here(experiment))
    check_data(experiment, data)
    if data.on_disk:
        check_on_disk(experiment, data, schedule_of(experiment, data), problem_of(experiment, data))
    on_graph(experiment.reg, data, experiment.names["reg"])
    told = remarks_on_features(experiment.reg, experiment.objective, data, experiment.names["reg"])
    return replace(data, remarks=(*data.remarks, *told)) if told else data


def check_measured(experiments: Iterable[Experiment], metric: str | None) -> None:
    """Refuse a metric that none of these experiments will measure, as far as their data tell. Raises UserError."""
    reasons: list[str] = []
    for experiment in experiments if metric and metric not in ("objective", "suboptimality") else ():
        try:
            reason = unmeasured(str(metric), experiment, load(experiment))
        except Exception:  # who cannot be loaded says so when it is to run
            continue
        if not reason:
            return
        reasons.append(reason)
    if reasons:
        raise UserError(f"metric={metric} would not be measured: {'; '.join(dict.fromkeys(reasons))}; choose another")


def problem_of(experiment: Experiment, data: FederatedData) -> Problem:
    """The problem on these data. Raises UserError where psi or the mirror map cannot act on a parameter."""
    names = experiment.names
    shapes = experiment.objective.shapes(data.shape or data.x.shape[1:], len(data.classes))
    weights = row_weights(data, experiment.settings.client_weighting)
    regularizer = across_clients(on_graph(experiment.reg, data, names["reg"]), weights, data.offsets)
    regularizer = on_groups(regularizer, experiment.objective, data)
    regularizer = by_number(regularizer, experiment.objective, data)
    problem = Problem(experiment.objective, regularizer, experiment.mirror, shapes, data.scale)
    for name in problem.regularized:
        if name not in shapes:
            raise UserError(f"reg.apply_to: objective={names['objective']} has no parameter '{name}'; "
                            f"{nearest(name, shapes)}")  # fmt: skip
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
    return replace(experiment, objective=experiment.objective.bound(targets))


def resolved(experiment: Experiment, data: FederatedData) -> tuple[Experiment, dict | None]:
    """The experiment with numbers for what is "auto" in the algorithm, and the bounds that they come from.

    Raises UserError where there are none, or where the losses do not bend as the algorithm needs.
    """
    algo = experiment.algo
    if not isinstance(algo, Algorithm):
        return experiment, None
    told, known = {}, Known(math.nan, math.nan)
    if needing_bounds(experiment):
        known = known_of(experiment, data)
        least, most = known.least, known.most
        if most == 0:
            raise UserError(f"algo={experiment.names['algo']}: the losses are flat, for all features are 0: give its "
                            "steps, instead of auto")  # fmt: skip
        told = {"least": least, "most": most, "condition": most / least if least > 0 else None}
    elif not algo.automatic:
        return experiment, None
    found = algo.resolved(known)
    changed = {f"algo.{k}": v for k, v in numbers(found).items() if k in algo.automatic}
    return replace(experiment, algo=found), {**told, **changed}


def known_of(experiment: Experiment, data: FederatedData) -> Known:
    """What is known of a run's losses and rounds, from which "auto" is worked out."""
    schedule, weighting = schedule_of(experiment, data), experiment.settings.client_weighting
    least, most = curvature_of(experiment, data)
    edge_rounds = experiment.topology.edge_rounds
    work = partial(pooled_curvature, experiment.objective, data, weighting)
    reg, sides = experiment.reg, experiment.algo.traits.sides
    return Known(
        least=least,
        most=most,
        steps=int(schedule.steps.max()) * (edge_rounds or 1),
        whole=None if schedule.repeats else curvature_of(experiment, data, whole=True)[1],
        partial=edge_rounds is not None or schedule.cohort_size < data.members,
        rows=None if schedule.repeats else schedule.sure_rows,
        averaged=reg.applied_by == "client" and "client" in sides and not isinstance(reg, NoRegularizer),
        pooled=partial(_once, (*_key(experiment), weighting), work),
    )


def curvature_of(experiment: Experiment, data: FederatedData, whole: bool = False) -> tuple[float, float]:
    """Bounds on the curvature of each client's loss, or unless ``whole`` of minibatches where they are smaller."""
    batch = experiment.settings.batch_size
    whole = whole or batch is None or batch >= data.sizes.max()
    return _once((*_key(experiment), whole), partial(curvature, experiment.objective, data, whole))


def schedule_of(experiment: Experiment, data: FederatedData, among: Among | None = None) -> Schedule:
    """Who takes part in which round of a run, with how many local steps."""
    settings = experiment.settings
    return Schedule(
        offsets=data.offsets,
        made=0 if data.population is None else data.population.clients,
        seed=settings.seed,
        clients_per_round=settings.clients_per_round,
        batch_size=settings.batch_size,
        local_epochs=settings.local_epochs,
        local_steps=settings.local_steps,
        client_weighting=settings.client_weighting,
        edge_rounds=experiment.topology.edge_rounds,
        names=data.clients,
        masses=None if data.weight is None else data.masses,
        begins=None if data.cut is None or data.on_disk else data.offsets[data.cut][data.owner],
        places=None if among is None else among.places,
    )


def engine_for(experiment: Experiment, data: FederatedData, among: Among | None = None) -> Engine:
    """The engine for runs like this one, on data whose rows may be ``among`` others."""
    assert isinstance(experiment.algo, Algorithm)
    settings, problem = experiment.settings, problem_of(experiment, data)
    if experiment.algo.needs_curvature:
        problem = replace(problem, curvature=curvature_of(experiment, data))
    federation = Federation(
        problem=problem,
        algorithm=experiment.algo,
        data=data,
        schedule=schedule_of(experiment, data, among),
        evaluation=Evaluation(data, settings.client_weighting, settings.cutoff, among),
        precision=settings.precision,
        edge_of=experiment.topology.edge_of(data),
        w0=experiment.start.solution_for(problem, data) if experiment.start else None,
        frozen=settings.frozen,
        debug=settings.debug,
        among=among,
        clients_at_once=None if settings.clients_at_once == AUTO else settings.clients_at_once,
    )
    return Engine(federation, settings.rounds, settings.eval_every)


@lru_cache(maxsize=2)
def _load_once(asked: Keyed[tuple[Dataset, float | None]], part: int, of: int) -> FederatedData:
    """The data of a data set, where they fit into the memory."""
    data, memory = asked.value
    needed, what = data.needs()
    check_memory(needed / of, host_memory(), memory, what)
    try:
        return (data.load() if of == 1 else data.load_part(part, of)).validate()
    except MemoryError as error:
        raise UserError(f"the data do not fit into memory ({first_line(error)}); {SMALLER}") from error


def _key(experiment: Experiment) -> tuple[str, str]:
    return experiment.fingerprint, repr(experiment.objective)


def _once(key: tuple, work: Callable[[], Any]) -> Any:
    """What ``work()`` returns, worked out once for each key."""
    if key not in _BOUNDS:
        with interruptible_at_once():
            _BOUNDS[key] = work()
    return _BOUNDS[key]


_BOUNDS: dict[tuple, Any] = {}
