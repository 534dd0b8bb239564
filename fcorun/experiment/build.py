"""The parts of an experiment: its data, its problem, numbers for fields that are "auto", its clients, its engine."""

import math
from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np

from fcorun.base.cohorts import fixed_cohort_size, read_participation, read_turn_share
from fcorun.base.config import AUTO, code_identifier, numeric_fields
from fcorun.base.errors import UserError, abbreviate, suggest_name
from fcorun.base.metrics import PERSONAL_PREFIX, QUANTILE_SUFFIXES, RANKING_METRICS
from fcorun.base.system.files import cached_by_key, interruptible_at_once
from fcorun.base.system.machine import current_hosts, use_precision
from fcorun.data.datasets.dataset import FederatedData, load_dataset
from fcorun.data.rows.site_rows import SiteRows
from fcorun.data.tables.data_warnings import (
    warn_class_like_target,
    warn_clients_without_events,
    warn_uninformative_features,
)
from fcorun.data.tables.scaling import explain_own_scale
from fcorun.data.tasks import find_task
from fcorun.engine.device_rows import SubsetView
from fcorun.engine.engine import Engine, message_bytes
from fcorun.engine.evaluate import Evaluation, why_unranked
from fcorun.engine.federation import Federation
from fcorun.engine.promises import check_promises
from fcorun.engine.schedule import ClientTimes, Schedule
from fcorun.experiment.classifiers import check_threshold
from fcorun.experiment.dense_rows import check_dense_rows
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.linear_fits import check_rows_of_linear_fit
from fcorun.experiment.requirements import (
    check_cohorts,
    check_generated_clients,
    check_hessian,
    check_nodes,
    check_rows_on_disk,
    check_schedule,
    choose_shard,
    warn_undetermined_levels,
)
from fcorun.methods.algorithms.algorithm import Algorithm, ProblemConstants
from fcorun.methods.clocks.clock import NoClock
from fcorun.methods.objectives.cox import Cox
from fcorun.methods.objectives.least_squares import LeastSquares
from fcorun.methods.objectives.objective import LinearModel, Objective
from fcorun.methods.problem.curvature import bound_pooled_smoothness, curvature_bounds
from fcorun.methods.problem.duality_gap import has_duality_gap, has_one_output
from fcorun.methods.problem.problem import Problem
from fcorun.methods.regularizers.regularizer import NoRegularizer, Regularizer, is_array


def load_data(experiment: PreparedExperiment) -> FederatedData:
    """Load and check the data of an experiment. The next experiment on the same data reuses them. Raises UserError."""
    with interruptible_at_once():
        shard = choose_shard(experiment) if current_hosts() else (0, 1)
        data = load_dataset(experiment.data, experiment.fingerprint, experiment.settings.memory, *shard)
    check_data(experiment, data)
    check_dense_rows(experiment, data.train.why_not_dense)
    check_threshold(experiment, data, experiment.settings.threshold)
    if data.train.streamed:
        check_rows_on_disk(experiment, data, build_schedule(experiment, data), build_problem(experiment, data))
    warnings = []
    if experiment.reg.depends_on_data:
        attach_graph(experiment.reg, data, experiment.names["reg"])
    takes_number = isinstance(experiment.objective, LeastSquares) and data.target_task.is_quantity
    if takes_number and not experiment.data.has_explicit_task:  # any other objective was chosen for numbers
        warnings += warn_class_like_target(data.train.y)
    if not data.train.stays_at_sites:
        warnings += experiment.objective.remark_on_targets(data.train.y)
        warnings += experiment.objective.remark_on_offset(data.train.offset, data.train.y)
    if data.held_out_clients and data.features.standardized_by == "per_client":
        warnings.append(explain_own_scale(f"the rows of {abbreviate(data.held_out_clients)}"))
    if isinstance(experiment.reg, NoRegularizer):
        warnings += warn_undetermined_levels(experiment, data)
    if data.target_task.has_events and not data.train.stays_at_sites:
        warnings += warn_clients_without_events(data.train, data.client_names)
        warnings += warn_uninformative_features(data.is_informative, data.features.names)
    return replace(data, warnings=(*data.warnings, *warnings)) if warnings else data


def check_targets(experiment: PreparedExperiment, y: np.ndarray, held_out_y: np.ndarray) -> None:
    """Raise UserError for training targets y (N,) or held-out targets that the objective does not take."""
    try:
        experiment.objective.check_targets(y, held_out_y)
    except ValueError as error:
        raise UserError(f"`objective={experiment.names['objective']}`: {error}") from error


def check_ordered_classes(experiment: PreparedExperiment, data: FederatedData) -> None:
    """Raise UserError for a class without training rows: the cuts on its two sides would pass each other.

    A client with a model of its own, or whose rows are fitted alone, needs rows of every class.
    """
    counts = np.zeros((data.n_clients, len(data.classes)), int)
    weight = np.ones(len(data.train.y)) if data.train.weight is None else data.train.weight
    assert data.train.client is not None
    np.add.at(counts, (data.train.client[weight > 0], data.train.y[weight > 0].astype(int)), 1)
    objective = f"`objective={experiment.names['objective']}`"
    for k in np.flatnonzero(counts.sum(axis=0) == 0)[:1]:
        raise UserError(f"class '{data.classes[k]}' has no training row that counts, and {objective} needs rows of "
                        "each class: hold out other rows (`data.validation`, `data.split_seed`), or leave out rows of "
                        "this class")  # fmt: skip
    if experiment.algo.has_personal_models or experiment.algo.traits.local_fits:
        for m, k in np.argwhere(counts == 0)[:1]:
            raise UserError(f"client '{data.client_names[m]}' has no training row of class '{data.classes[k]}', and "
                            f"`algo={experiment.names['algo']}` with {objective} needs rows of each class at each "
                            "client: give an algorithm with one model for all, or leave out this client")  # fmt: skip


def check_data(experiment: PreparedExperiment, data: FederatedData) -> None:
    """Refuse data that do not fit the objective, psi, the algorithm, the topology or the settings of the experiment.

    Raises UserError.
    """
    names = experiment.names
    tasks = [find_task(name) for name in experiment.objective.tasks]
    if data.target_task not in tasks:
        own_tasks = f"`objective={names['objective']}` is for {' and '.join(task.name for task in tasks)} targets"
        if data.target_task.has_events:
            raise UserError(f"{own_tasks}, and `data.event` or `data.task=survival` gives times to events: give "
                            "`objective=cox`")  # fmt: skip
        if any(task.has_events for task in tasks) and hasattr(experiment.data, "event"):
            raise UserError(f"`objective={names['objective']}` takes times to events: name their column by "
                            "`data.target`, and give `data.event`, a column of 1 for events and 0 for censored "
                            "rows")  # fmt: skip
        or_task = " or `data.task`" if hasattr(experiment.data, "task") else ""
        raise UserError(
            f"{own_tasks}, and `data={names['data']}` has {data.task} ones; choose another objective{or_task}"
        )
    if len(data.classes) == 2 and not any(task.has_two_classes for task in tasks):
        raise UserError(f"`objective={names['objective']}` is for three classes or more, and the target has two "
                        "classes: give `objective=logistic`")  # fmt: skip
    if experiment.objective.client_intercepts and len(data.classes) > 2:
        raise UserError(f"`objective.client_intercepts=true` is for numbers, counts and two classes, and the target "
                        f"has {len(data.classes)} classes: leave it out")  # fmt: skip
    if len(data.train.y) and not data.train.stays_at_sites:  # a site checks its rows by itself
        held_out = [rows.y for rows in (data.validation, data.test) if rows is not None]
        check_targets(experiment, data.train.y, np.concatenate([data.train.y[:0], *held_out]))
        if data.target_task.has_order:
            check_ordered_classes(experiment, data)
    if data.train.offset is not None and (not isinstance(experiment.objective, LinearModel) or len(data.classes) > 2):
        raise UserError(f"`data.offset` is added to a linear predictor, of which `objective={names['objective']}` has "
                        "none, or predicts one number for each class or cut: leave it out")  # fmt: skip
    if experiment.reg.depends_on_data:
        resolve_factors(experiment.reg, experiment.objective, data)
    if experiment.settings.gap and not has_duality_gap(build_problem(experiment, data), data.train.x.shape[1]):
        raise UserError("`gap=true` measures the duality gap of a linear model of one output with psi on its weights, "
                        f"not of `objective={names['objective']}` with `data={names['data']}`: leave gap "
                        "out")  # fmt: skip
    settings = experiment.settings
    one_output = has_one_output(build_problem(experiment, data), data.train.x.shape[1])
    if settings.relax is not None or settings.imputations:
        check_rows_of_linear_fit(settings, data, one_output)
    if experiment.algo.needs_one_output and not one_output:
        raise UserError(f"`algo={names['algo']}` is for linear models of numbers or two classes with psi on the "
                        f"weights alone, not for `objective={names['objective']}` with `data={names['data']}`: choose "
                        "another `algo`")  # fmt: skip
    schedule = build_schedule(experiment, data)
    check_schedule(experiment, schedule)
    experiment.faults.check_task(data.target_task, names)
    if experiment.algo.traits.hessian or experiment.algo.traits.local_fits:
        check_hessian(experiment, data)
    if experiment.topology.has_nodes:
        check_nodes(experiment, data)
    if data.train.n_generated_clients:
        check_generated_clients(experiment, data.train.n_generated_clients)
    chosen_client = getattr(experiment.algo, "client", 0) if experiment.algo.picks_client else 0
    if isinstance(experiment.algo, Algorithm) and chosen_client >= data.n_clients:
        raise UserError(f"`algo.client={chosen_client}` must be less than the number of clients, {data.n_clients}")
    if isinstance(experiment.algo, Algorithm):
        check_cohorts(experiment, data, schedule, lambda: connect_clients(experiment, data))


def check_metric_measured(experiments: Iterable[PreparedExperiment], metric: str | None) -> None:
    """Refuse a metric that none of these experiments will measure, as far as their data tell. Raises UserError."""
    if not metric or metric in ("objective", "suboptimality"):
        return
    reasons: list[str] = []
    for experiment in experiments:
        try:
            reason = explain_unmeasured(metric, experiment, load_data(experiment))
        except Exception:  # data that cannot be loaded are reported when the experiment is to run
            continue
        if not reason:
            return
        reasons.append(reason)
    if reasons:
        raise UserError(f"`metric={metric}` would not be measured: {'; '.join(dict.fromkeys(reasons))}; choose another")


def explain_unmeasured(metric: str, experiment: PreparedExperiment, data: FederatedData) -> str:
    """Return why runs of an experiment on these data will not measure a metric; empty if they may."""
    name, names = metric.removeprefix(PERSONAL_PREFIX), experiment.names
    if metric.startswith(PERSONAL_PREFIX) and metric.endswith(tuple(QUANTILE_SUFFIXES)) and data.train.stays_at_sites:
        return "sites send sums over clients, which have no quantiles"
    if name.startswith("val_") and data.validation is None:
        return f"`data={names['data']}` have no validation rows"
    if metric in experiment.algorithm_metrics or metric in {each.name for each in experiment.topology.declared_metrics}:
        return ""
    if metric == "gap" and not experiment.settings.gap:
        return "`gap=true` is not set"
    if not (metric.startswith(PERSONAL_PREFIX) or experiment.has_shared_model):
        return f"`algo={names['algo']}` makes no model for all clients"
    objective_metrics = {each.name for each in experiment.objective.metrics}
    classifies = bool(data.classes) and type(experiment.objective).scores is not Objective.scores
    if "accuracy" in name and not (classifies or name.partition("_")[2] in objective_metrics):
        return f"`objective={names['objective']}` has no accuracy"
    if name in RANKING_METRICS and name.removeprefix("val_") not in objective_metrics:
        reason = why_unranked(data)
        if reason:
            return f"of `data={names['data']}` nothing is ranked, since {reason}"
    if name.startswith(("support_", "recovery_")) and not (data.truth or data.client_truths):
        return f"`data={names['data']}` have no true model to compare with"
    return ""


def build_problem(experiment: PreparedExperiment, data: FederatedData) -> Problem:
    """Return the problem F + psi on these data.

    Raises UserError if the regularizer or the mirror map cannot act on a parameter.
    """
    names = experiment.names
    shapes = experiment.objective.shapes(data.features.shape or data.train.x.shape[1:], len(data.classes))
    regularizer = experiment.reg
    if regularizer.depends_on_data:
        weights = data.train.objective_weights(experiment.settings.client_weighting)
        regularizer = attach_graph(regularizer, data, names["reg"])
        regularizer = aggregate_client_values(regularizer, weights, data.train.offsets)
        regularizer = attach_groups(regularizer, experiment.objective, data)
        regularizer = resolve_factors(regularizer, experiment.objective, data)
    levels: tuple[int, ...] = ()
    references: tuple[int, ...] = ()
    encoding = data.features.encoding
    if encoding is not None and ("bias" in shapes or isinstance(experiment.objective, Cox)):  # which take a shift
        number = {name: index for index, name in enumerate(data.features.names)}
        levels = tuple(number[name] for name in encoding.level_features if name in number)
        first_levels = dict.fromkeys(encoding.reference_of_feature.values())
        references = tuple(number[name] for name in first_levels if name in number)
    problem = Problem(experiment.objective, regularizer, experiment.mirror, shapes, data.features.scale,
                      n_clients=data.n_clients, levels=levels, references=references)  # fmt: skip
    for name in problem.regularized:
        if name not in shapes:
            raise UserError(f"`reg.apply_to`: `objective={names['objective']}` has no parameter '{name}'; "
                            f"{suggest_name(name, shapes)}")  # fmt: skip
        try:
            if shapes[name] == () and (hasattr(regularizer, "check") or regularizer.ordered):
                raise ValueError("psi acts on vectors and matrices; leave it out of `reg.apply_to`")
            for plugin in (regularizer, experiment.mirror):
                getattr(plugin, "check", lambda shape: None)(shapes[name])
        except ValueError as error:
            size = " x ".join(map(str, shapes[name])) or "a number"
            raise UserError(f"`reg={names['reg']}` cannot act on '{name}', {size}: {error}") from error
    return problem


def bind_objective(experiment: PreparedExperiment, data: FederatedData) -> PreparedExperiment:
    """Return the experiment with numbers for the objective's fields that are "auto", from the training targets."""
    targets = data.train.y if data.train.offset is None else data.train.y - data.train.offset
    return experiment.with_resolved(objective=experiment.objective.resolve_auto(targets))


def resolve_auto(experiment: PreparedExperiment, data: FederatedData) -> tuple[PreparedExperiment, dict | None]:
    """Return the experiment with numbers for fields of privacy and the algorithm that are not given, and why.

    The values are the curvature bounds "least" (mu), "most" (L) and "condition" (L / mu) where they were computed, and
    each resolved field as "algo.FIELD"; None if there are neither. Raises UserError if no number follows from the
    bounds, or if the losses lack the strong convexity that the algorithm needs.
    """
    algo = experiment.algo
    if not isinstance(algo, Algorithm):
        return experiment, None
    if experiment.privacy.acts:
        experiment = experiment.with_resolved(privacy=experiment.resolved_privacy)
    constants = ProblemConstants(math.nan, math.nan)
    resolved_values: dict[str, Any] = {}
    if experiment.needs_curvature_bounds:
        constants = compute_problem_constants(experiment, data)
        mu, smoothness = constants.strong_convexity, constants.smoothness
        if smoothness == 0:
            alternatives = " and ".join(algo.curvature_alternatives) or "another `algo`"
            raise UserError(f"`algo={experiment.names['algo']}`: the losses are flat, for all features are 0: give "
                            f"{alternatives}")  # fmt: skip
        resolved_values = {"least": mu, "most": smoothness, "condition": smoothness / mu if mu > 0 else None}
    elif not algo.auto_fields:
        return experiment, None
    resolved = algo.resolve_auto(constants)
    for name, value in numeric_fields(resolved).items():
        if name in algo.auto_fields:
            resolved_values[f"algo.{name}"] = value
    return experiment.with_resolved(algo=resolved), resolved_values


def compute_problem_constants(experiment: PreparedExperiment, data: FederatedData) -> ProblemConstants:
    """Compute the constants of a run's losses and rounds from which fields that are "auto" are resolved."""
    schedule = build_schedule(experiment, data)
    weighting = experiment.settings.client_weighting
    mu, smoothness = compute_curvature_bounds(experiment, data)
    full_batch_smoothness, effective_rows = None, None
    if not schedule.full_batch_steps:
        full_batch_smoothness = compute_curvature_bounds(experiment, data, full_batch=True)[1]
        effective_rows = schedule.effective_batch_rows
    edge_rounds = experiment.topology.edge_rounds
    reg, psi_sides = experiment.reg, experiment.algo.traits.psi_sides
    psi_on_clients = reg.applied_by == "client" and "client" in psi_sides and not isinstance(reg, NoRegularizer)
    smoothness_key = (*_loss_key(experiment), weighting)
    pooled_smoothness = partial(_pooled_smoothness, smoothness_key, experiment.objective, data, weighting)
    if isinstance(data.train, SiteRows):
        pooled_smoothness = data.train.pooled_smoothness
    shapes = experiment.objective.shapes(data.features.shape or data.train.x.shape[1:], len(data.classes))
    variance, contraction_error = experiment.uplink.upload_errors(shapes)
    return ProblemConstants(
        strong_convexity=mu,
        smoothness=smoothness,
        local_steps=int(schedule.steps.max()) * (edge_rounds or 1),
        full_batch_smoothness=full_batch_smoothness,
        partial_participation=experiment.topology.connects_clients or not schedule.takes_all_clients,
        effective_rows=effective_rows,
        psi_on_clients_only=psi_on_clients,
        pooled_smoothness=pooled_smoothness,
        largest_share=float(schedule.averaging_weights.max() / schedule.averaging_weights.sum()),
        upload_variance=variance,
        upload_contraction_error=contraction_error,
        smallest_mixing_eigenvalue=experiment.topology.smallest_eigenvalue(connect_clients(experiment, data)),
    )


def compute_curvature_bounds(
    experiment: PreparedExperiment, data: FederatedData, full_batch: bool = False
) -> tuple[float, float]:
    """Return bounds (mu, L) on the curvature of every loss that a local step takes.

    With ``full_batch``, or where minibatches hold all rows of every client, these losses are the clients' losses;
    else they are the losses of minibatches.
    """
    batch_size = experiment.settings.batch_size
    full_batch = full_batch or batch_size is None or batch_size >= data.train.sizes.max()
    if isinstance(data.train, SiteRows):
        return data.train.curvature_bounds(full_batch)
    return _curvature_bounds((*_loss_key(experiment), full_batch), experiment.objective, data, full_batch)


def build_schedule(
    experiment: PreparedExperiment, data: FederatedData, subset_view: SubsetView | None = None
) -> Schedule:
    """Return the schedule of a run: the cohort of each round, its clients' local steps and minibatches, and times.

    Raises UserError for a file of times that lacks a client, and for faults that do not fit the clients.
    """
    settings, times = experiment.settings, None
    names = data.client_names
    if data.train.n_generated_clients and (experiment.faults.acts or not isinstance(experiment.clock, NoClock)):
        names = [str(number) for number in range(data.n_clients)]  # few have stored rows
    if not isinstance(experiment.clock, NoClock):
        times = ClientTimes(experiment.clock.speeds(names), experiment.clock.deadline)
    return Schedule(
        offsets=data.train.offsets,
        generated_clients=data.train.n_generated_clients,
        seed=settings.seed,
        clients_per_round=fixed_cohort_size(settings.clients_per_round, data.n_clients),
        in_turn=read_turn_share(settings.clients_per_round) is not None,
        participation=read_participation(settings.clients_per_round),
        batch_size=settings.batch_size,
        local_epochs=settings.local_epochs,
        local_steps=settings.local_steps,
        client_weighting=settings.client_weighting,
        edge_rounds=experiment.topology.edge_rounds,
        names=data.clients,
        client_weights=None if data.train.weight is None else data.train.client_weights,
        device_starts=data.train.device_starts,
        row_positions=None if subset_view is None else subset_view.train_rows,
        times=times,
        message_bytes=None if experiment.topology.waits_for_cohort else (0, 0),  # known when messages are traced
        faults=experiment.faults,
        absences=experiment.faults.find_absences(names, settings.rounds),
    )


def connect_clients(experiment: PreparedExperiment, data: FederatedData) -> Any:
    """Return the links between the clients of the data. Raises UserError for a topology that does not fit them."""
    by_rows = experiment.settings.client_weighting == "examples"
    weights = data.train.client_weights if by_rows else np.ones(data.n_clients)
    return experiment.topology.connect(data.client_names, weights)


# The engine.


def build_engine(experiment: PreparedExperiment, data: FederatedData, subset_view: SubsetView | None = None) -> Engine:
    """Return the engine for the runs that share this experiment's ``batch_key``.

    With ``subset_view``, the data are some rows of a larger data set that stays on the device. Raises UserError.
    """
    assert isinstance(experiment.algo, Algorithm)
    settings, problem = experiment.settings, build_problem(experiment, data)
    if experiment.algo.curvature_alternatives:
        problem = replace(problem, curvature=compute_curvature_bounds(experiment, data))
    schedule = build_schedule(experiment, data, subset_view)
    check_schedule(experiment, schedule)
    federation = Federation(
        problem=replace(problem, cohort_size=schedule.cohort_size),
        algorithm=experiment.algo,
        data=data,
        schedule=schedule,
        evaluation=build_evaluation(experiment, data, subset_view),
        precision=settings.precision,
        topology=experiment.topology,
        links=connect_clients(experiment, data),
        uplink=experiment.uplink,
        downlink=experiment.downlink,
        aggregate=experiment.aggregate,
        privacy=experiment.privacy,
        w0=experiment.warm_start.solution_for(problem, data) if experiment.warm_start else None,
        frozen=settings.frozen,
        debug=settings.debug,
        subset=subset_view,
        clients_at_once=None if settings.clients_at_once == AUTO else settings.clients_at_once,
    )
    check_promises(federation, experiment.resolved_privacy, settings.rounds, experiment.names)
    if not experiment.topology.waits_for_cohort:  # then arrivals depend on the bytes of messages
        with use_precision(federation.precision):
            sizes = message_bytes(federation, federation.algorithm, federation.uplink)
        sent = (sizes.broadcasts[0], sizes.uploads[0])
        federation = replace(federation, schedule=replace(federation.schedule, message_bytes=sent, arrivals_by_seed={}))
    return Engine(federation, settings.rounds, settings.eval_every)


def build_evaluation(
    experiment: PreparedExperiment, data: FederatedData, subset_view: SubsetView | None = None
) -> Evaluation:
    """Return the metrics of a run on these data."""
    settings = experiment.settings
    return Evaluation(
        data,
        settings.client_weighting,
        settings.cutoff,
        subset_view,
        settings.gap,
        by_client=experiment.objective.has_client_losses,
        client_metrics=settings.client_metrics and subset_view is None,  # fits of a selection have no records
    )


def _loss_key(experiment: PreparedExperiment) -> tuple[str, str, str]:
    """Return a key of the clients' losses: the data, and the objective with its code."""
    return experiment.fingerprint, code_identifier(experiment.objective), repr(experiment.objective)


@cached_by_key
def _curvature_bounds(key: tuple, objective: Objective, data: FederatedData, full_batch: bool) -> tuple[float, float]:
    with interruptible_at_once():
        return curvature_bounds(objective, data, full_batch)


@cached_by_key
def _pooled_smoothness(key: tuple, objective: Objective, data: FederatedData, weighting: str) -> float:
    with interruptible_at_once():
        return bound_pooled_smoothness(objective, data, weighting)


# The regularizer psi bound to the data of a run: numbers of clients, factors and groups of features, voxel graphs.


def aggregate_client_values(reg: Regularizer, row_weight: np.ndarray, offsets: np.ndarray) -> Regularizer:
    """Return the regularizer of the whole problem, with one number for each field that differs between clients.

    That number is the mean (weighted as clients are in F), the least or the largest of the clients' values. Raises
    UserError unless there is one value for each client.
    """
    if not reg.per_client:
        return reg
    client_weight = np.add.reduceat(row_weight, offsets[:-1])
    aggregates = {"mean": lambda values: float(client_weight @ values / client_weight.sum()), "min": min, "max": max}
    numbers = {}
    for name, values in reg.per_client.items():
        if len(values) != len(client_weight):
            raise UserError(
                f"`reg.per_client.{name}` has {len(values)} values for {len(client_weight)} clients; give one each"
            )
        aggregate = aggregates[reg.across_clients[name]]
        numbers[name] = float(aggregate(np.asarray(values)))
    return replace(reg, **numbers)


def resolve_factors(reg: Regularizer, objective: Objective, data: FederatedData) -> Regularizer:
    """Return the regularizer with its ``factors`` by the indices of these data's features.

    The name of a column of text stands for all of its levels, and the name of a group for its members. Raises
    UserError for other names.
    """
    if is_array(reg.factors) or not reg.factors:
        return reg
    if not _weighs_features(reg, objective, data):
        raise UserError("`reg.factors` weighs features, one weight each or one a class: leave it out where examples "
                        "are matrices, and where psi acts on other parameters")  # fmt: skip
    groups = getattr(reg, "groups", None) or {}
    factors = {}
    for name, factor in reg.factors.items():
        members, option = [name], "reg.factors"
        if name in groups and name not in _feature_and_column_names(data):
            members, option = groups[name], f"reg.groups.{name}"
        for member in members:
            for index in _feature_indices(member, data, option):
                if str(index) in factors:
                    raise UserError(f"`reg.factors` names feature {index} twice, once as '{name}': give it one factor")
                factors[str(index)] = factor
    if len(factors) == data.train.x.shape[1] and not any(factors.values()):
        raise UserError("`reg.factors` leaves no feature penalized: give `reg=none` instead")
    return replace(reg, factors=factors)


def attach_groups(reg: Regularizer, objective: Objective, data: FederatedData) -> Regularizer:
    """Return the regularizer with groups of these data's features; unchanged if it has no groups.

    The groups are those that ``groups`` names and, for a table, each other column with its levels. Raises UserError
    for groups that hold other things than features.
    """
    if not hasattr(reg, "on_groups"):
        return reg
    named_groups = getattr(reg, "groups", None)
    weighs_features = _weighs_features(reg, objective, data)
    if named_groups is None and (
        not weighs_features or data.features.encoding is None or getattr(reg, "group_size", None)
    ):
        return reg
    if not weighs_features:
        raise UserError("`reg.groups` puts features together, with one weight each or one a class: leave it out where "
                        "examples are matrices, and where psi acts on other parameters")  # fmt: skip
    group_of = np.full(data.train.x.shape[1], -1)
    group_names: list[str] = []
    for name, members in (named_groups or {}).items():
        if not members:
            raise UserError(f"`reg.groups.{name}` names no feature: name some, or leave it out")
        for member in members:
            for index in _feature_indices(member, data, f"reg.groups.{name}"):
                if group_of[index] >= 0:
                    feature = data.features.names[index] if data.features.names else index
                    first_group = [*group_names, name][group_of[index]]
                    raise UserError(f"`reg.groups` names feature '{feature}' twice, in '{first_group}'"
                                    f" and in '{name}': name it once")  # fmt: skip
                group_of[index] = len(group_names)
        group_names.append(name)
    columns = _features_of_columns(data) or {str(index): [index] for index in range(len(group_of))}
    for name, indices in columns.items():
        ungrouped = [index for index in indices if group_of[index] < 0]
        if ungrouped:
            group_of[ungrouped] = len(group_names)
            group_names.append(name)
    return reg.on_groups(group_of, group_names)  # type: ignore[attr-defined]


def _weighs_features(reg: Regularizer, objective: Objective, data: FederatedData) -> bool:
    """Return whether psi acts on the weights of a linear model, one for each feature or for each feature and class."""
    applied_to = tuple(objective.regularized if reg.apply_to is None else reg.apply_to)
    return not data.features.shape and applied_to == ("weights",) and isinstance(objective, LinearModel)


def _features_of_columns(data: FederatedData) -> dict[str, list[int]]:
    """Return the indices of the features that each column of a table was encoded to."""
    if data.features.encoding is None:
        return {}
    index_of = {feature: index for index, feature in enumerate(data.features.names)}
    return {
        column.name: [index_of[feature] for feature in column.features] for column in data.features.encoding.columns
    }


def _feature_and_column_names(data: FederatedData) -> list[str]:
    """Return the names of the features and of the columns, each once."""
    return list(dict.fromkeys([*data.features.names, *_features_of_columns(data)]))


def _feature_indices(name: str, data: FederatedData, option: str) -> list[int]:
    """Return the indices of the features that a name of ``option`` stands for.

    They are one, the levels of a text column, or the terms of a spline. Raises UserError for a name of no feature.
    """
    n_features, columns = data.train.x.shape[1], _features_of_columns(data)
    curves = data.features.encoding.curve_of_feature if data.features.encoding else {}
    if name in data.features.names and curves.get(name) != name:  # whose first term has the name of the column
        return [data.features.names.index(name)]
    if name in columns:
        return columns[name]
    if name.isdecimal() and int(name) < n_features:
        return [int(name)]
    names = _feature_and_column_names(data)
    candidates = names if len(names) <= 30 else get_close_matches(name, names, 10, 0)
    suggestion = suggest_name(name, candidates) if candidates else f"they have numbers from 0 to {n_features - 1}"
    raise UserError(f"{option}: there is no feature '{name}'; {suggestion}")


def attach_graph(reg: Regularizer, data: FederatedData, name: str) -> Regularizer:
    """Return the regularizer on the graph of the data's voxels; unchanged if it uses no graph.

    Raises UserError for a regularizer of ordered features on voxels, and for one of voxels on other data.
    """
    if data.features.voxel_grid is not None and reg.ordered:
        raise UserError(f"`reg={name}` goes along the order of the features, and voxels of images have none: choose "
                        "`reg=graph_net`, which knows which voxels are neighbours")  # fmt: skip
    if not hasattr(reg, "on_graph") or reg.ordered:
        return reg
    if data.features.voxel_grid is None:
        raise UserError(f"`reg={name}` goes by the voxels of images, which these data are not: give "
                        "`reg.graph=chain` if the features have an order, else `reg=elastic_net`")  # fmt: skip
    return reg.on_graph(data.features.voxel_grid.neighbours())  # type: ignore[attr-defined]
