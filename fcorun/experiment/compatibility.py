"""Checks that the plug-ins, the settings and the data of an experiment fit each other."""

import re
from dataclasses import replace
from typing import Any

import numpy as np

from fcorun.algorithms.base import Algorithm, Baseline
from fcorun.config import Settings, check_value, type_hints
from fcorun.datasets.base import FederatedData
from fcorun.errors import UserError, suggest_name
from fcorun.experiment.bind_regularizer import resolve_factors
from fcorun.experiment.convergence import RELATIVE_CHANGE
from fcorun.experiment.experiment import Experiment
from fcorun.metrics import PERSONAL_PREFIX, TEST_METRIC_REFUSAL, TEST_PREFIX
from fcorun.mirror_maps.euclidean import Euclidean
from fcorun.objectives.base import LinearModel, Objective
from fcorun.regularizers.base import Regularizer


def full_batch_settings(settings: Settings, algo: str) -> Settings:
    """Return the settings of an algorithm whose clients take all their data at once and count their own steps.

    Raises UserError if ``local_steps`` or ``local_epochs`` is set.
    """
    if settings.local_steps is not None or settings.local_epochs != 1:
        raise UserError(f"algo={algo} takes all data of a client and counts its own steps: leave local_epochs and "
                        "local_steps out, and see the keys of algo")  # fmt: skip
    return replace(settings, batch_size=None)


def are_convex(*plugins: Objective | Regularizer) -> bool:
    """Return whether the objective and the regularizer both declare that they are convex."""
    return all(_declared_convexity(plugin) for plugin in plugins)


def _declared_convexity(plugin: Objective | Regularizer) -> bool | None:
    """Return the ``convex`` that the plug-in's class itself declares, not a base class; None if it declares none."""
    return vars(type(plugin)).get("convex")


def check_optimum(plugins: dict[str, Any], names: dict[str, str], settings: Settings) -> None:
    """Refuse a baseline, a reference or a relative strength where the problem has no certified optimum.

    Raises UserError.
    """
    is_baseline = isinstance(plugins["algo"], Baseline)
    has_relative_strength = plugins["reg"].relative_or_none is not None
    if is_baseline:
        option, convex_sections = f"algo={names['algo']}", ("objective", "reg")
    elif settings.reference:
        option, convex_sections = "reference=true", ("objective", "reg")
    elif has_relative_strength:
        option, convex_sections = "reg.relative", ("objective",)
    else:
        return
    for section in convex_sections:
        convex = _declared_convexity(plugins[section])
        if not convex:
            problem = "is not convex; leave it out"
            if convex is None:
                problem = "does not say whether it is convex: leave it out, or give its class convex = True, if it is"
            raise UserError(f"{option} needs one optimum, and {section}={names[section]} {problem}")
    if not plugins["mirror"].domain_contains(plugins["reg"]) and not has_relative_strength:
        raise UserError(
            f"{option} would be of another problem: mirror={names['mirror']} holds w >= 0, and reg={names['reg']} does "
            "not; choose reg=nonneg, l1_nonneg or simplex"
        )


def check_start(plugins: dict[str, Any], names: dict[str, str], settings: Settings) -> None:
    """Refuse a topology that the algorithm does not support, and ``start`` or ``frozen`` without effect.

    Raises UserError.
    """
    algo = plugins["algo"]
    is_tree, hierarchy = plugins["topology"].edge_rounds is not None, algo.traits.hierarchy
    if isinstance(algo, Baseline):
        unused = {"start": settings.start, "frozen": settings.frozen, "topology": is_tree}
        for key, given in unused.items():
            if given:
                raise UserError(
                    f"algo={names['algo']} solves the problem on all rows in one place, from any start: leave {key} out"
                )
    if is_tree and not hierarchy:
        raise UserError(f"algo={names['algo']} knows no edges: leave topology={names['topology']} out, or choose "
                        "an algo that takes topology=tree: fcorun list algo shows which do")  # fmt: skip
    if hierarchy == "only" and not is_tree:
        raise UserError(f"algo={names['algo']} works with edges: give topology=tree")
    if settings.frozen and not settings.start:
        raise UserError("frozen=true trains no server's model: give start=FOLDER, a record that has one")
    if settings.frozen and not algo.has_personal_models:
        raise UserError(f"frozen=true leaves nothing to do for algo={names['algo']}, which has no personal models; "
                        "choose an algo that has: fcorun list algo shows which have")  # fmt: skip
    if settings.frozen and is_tree:
        raise UserError("frozen=true leaves nothing to the edges: leave topology out")


def check_compatibility(plugins: dict[str, Any], names: dict[str, str]) -> None:
    """Refuse plug-ins that cannot work with each other. Raises UserError."""
    algo, reg, mirror = plugins["algo"], plugins["reg"], plugins["mirror"]
    traits = algo.traits
    if not traits.mirrored and not isinstance(mirror, Euclidean):
        raise UserError(f"algo={names['algo']} knows no mirror maps: leave mirror={names['mirror']} out")
    _check_curvature(plugins, names)
    for piece in traits.needs:
        if not hasattr(reg, piece):
            raise UserError(
                f"algo={names['algo']} needs the {piece} of the regularizer, which reg={names['reg']} does "
                "not have; choose another algo or another reg"
            )
    if not mirror.supports(reg):
        supported = ", ".join(sorted(_to_snake_case(cls.__name__) for cls in mirror.retrieve_functions))
        raise UserError(
            f"mirror={names['mirror']} has no way to retrieve with reg={names['reg']}; it knows none, {supported}: "
            "choose one of them, or mirror=euclidean, which takes any"
        )
    if reg.apply_to == []:
        raise UserError("reg.apply_to=[] leaves psi nothing to act on: name parameters, or give reg=none")
    psi_sides = () if isinstance(algo, Baseline) else traits.psi_sides
    if reg.applied_by != "both" and psi_sides and reg.applied_by not in psi_sides:
        raise UserError(f"reg.applied_by={reg.applied_by}: algo={names['algo']} applies psi on the {psi_sides[0]} "
                        "only; give both")  # fmt: skip
    if reg.applied_by != "both" and len(psi_sides) == 2 and traits.exact:
        raise UserError(f"reg.applied_by={reg.applied_by}: algo={names['algo']} goes wrong unless clients and server "
                        "apply psi; give both")  # fmt: skip
    _check_factors(reg, names["reg"], "" if isinstance(mirror, Euclidean) else names["mirror"])
    for name, values in (reg.per_client or {}).items():
        if name not in reg.across_clients:
            allowed = ", ".join(reg.across_clients) or "none"
            raise UserError(
                f"reg.per_client: '{name}' of reg={names['reg']} cannot differ between clients; {allowed} can"
            )
        for value in values:
            check_value(value, type_hints(type(reg))[name], f"reg.per_client.{name}")
    if reg.relative_or_none is not None and not hasattr(reg, "strength_max"):
        raise UserError(f"reg.relative needs a largest useful strength, which reg={names['reg']} does not have; "
                        "give reg.strength")  # fmt: skip


def _to_snake_case(class_name: str) -> str:
    """Return a class's name as conf/ spells it: L1Box, l1_box."""
    return re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", class_name).lower()


def _check_curvature(plugins: dict[str, Any], names: dict[str, str]) -> None:
    """Refuse steps that are "auto" where the losses have no curvature bounds to resolve them from. Raises UserError."""
    objective, mirror = plugins["objective"], plugins["mirror"]
    alternatives = " and ".join(plugins["algo"].curvature_alternatives)
    if not alternatives:
        return
    if not objective.has_curvature_bound:
        without, ceiling = "", ""
        if hasattr(objective, "ceiling"):
            without = " without a ceiling"
            ceiling = ", or objective.ceiling, the largest mean (for gamma: ratio to the mean) that you expect"
        raise UserError(f"algo={names['algo']} needs bounds on the curvature of the losses, which "
                        f"objective={names['objective']} does not have{without}; "
                        f"give {alternatives}{ceiling}")  # fmt: skip
    if not isinstance(mirror, Euclidean):
        raise UserError(f"algo={names['algo']} works out its rates for mirror=euclidean: with "
                        f"mirror={names['mirror']}, give {alternatives}")  # fmt: skip


def _check_factors(reg: Regularizer, name: str, mirror: str) -> None:
    """Refuse ``factors`` without a sum over features or with a mirror map, and strengths that are given twice.

    Args:
        name: of the regularizer.
        mirror: the name of the mirror map; empty for the Euclidean one.
    """
    if reg.per_client and reg.relative_or_none is not None:
        raise UserError("reg.relative and reg.per_client exclude each other: set one of them to null")
    if reg.factors and not vars(type(reg)).get("separable"):
        raise UserError(f"reg.factors weighs the penalties of single features, of which reg={name} is no sum: "
                        "choose l1, elastic_net, l2 or group_lasso")  # fmt: skip
    if reg.factors and mirror:
        raise UserError(f"reg.factors goes with mirror=euclidean, and mirror={mirror} knows no factors: leave "
                        "one of them out")  # fmt: skip


def check_data(experiment: Experiment, data: FederatedData) -> None:
    """Refuse data that do not fit the objective, and cohorts that do not fit the data or the algorithm.

    Raises UserError.
    """
    names, tasks = experiment.names, experiment.objective.tasks
    if data.task not in tasks:
        raise UserError(
            f"objective={names['objective']} is for {' and '.join(tasks)} targets, and "
            f"data={names['data']} has {data.task} ones; choose another objective"
            + (" or data.task" if hasattr(experiment.data, "task") else "")
        )
    try:
        held_out = [targets for targets in (data.y_val, data.y_test) if targets is not None]
        experiment.objective.check_targets(data.y, np.concatenate([data.y[:0], *held_out]))
    except ValueError as error:
        raise UserError(f"objective={names['objective']}: {error}") from error
    if data.offset is not None and (not isinstance(experiment.objective, LinearModel) or len(data.classes) > 2):
        raise UserError(f"data.offset is added to a linear predictor, of which objective={names['objective']} has "
                        "none or one a class: leave it out")  # fmt: skip
    resolve_factors(experiment.reg, experiment.objective, data)
    if data.generated is not None:
        _check_generated_clients(experiment, data.generated.n_clients)
    cohort_size = experiment.settings.clients_per_round
    if cohort_size is None or not isinstance(experiment.algo, Algorithm):
        return
    if cohort_size > data.n_clients:
        raise UserError(
            f"clients_per_round={cohort_size} is more than the {data.n_clients} clients of "
            f"data={names['data']}; lower it, or set it to null for all of them"
        )
    if cohort_size < data.n_clients and not experiment.algo.traits.partial:
        raise UserError(
            f"algo={names['algo']} needs all clients in every round; give clients_per_round=null, or an "
            "algo that takes a part of them"
        )


def _check_generated_clients(experiment: Experiment, n_clients: int) -> None:
    """Refuse what needs all rows, or numbers for each client, where rows are generated and not stored.

    Raises UserError.
    """
    names, algo = experiment.names, experiment.algo
    alternatives = " and ".join(getattr(algo, "curvature_alternatives", []))
    obstacles = {
        f"algo={names['algo']} takes the rows of all clients": isinstance(algo, Baseline),
        f"auto of algo={names['algo']} takes bounds on all clients' losses (give {alternatives})": bool(alternatives),
        "reference=true solves the problem on all rows": experiment.settings.reference,
        f"topology={names['topology']} gives each client an edge": experiment.topology.edge_rounds is not None,
        "reg.per_client gives each client numbers": bool(experiment.reg.per_client),
    }
    for obstacle, applies in obstacles.items():
        if applies:
            raise UserError(f"data={names['data']} makes the rows of {n_clients:,} clients when a round needs them and "
                            f"stores none, but {obstacle}; choose a smaller data set")  # fmt: skip


def check_stop(experiment: Experiment) -> None:
    """Refuse targets of ``stop`` that are unknown, or that this run does not measure. Raises UserError."""
    stop, names = experiment.settings.stop, experiment.names
    if stop is None or isinstance(experiment.algo, Baseline):  # a baseline ends by its certificate
        return
    if not stop:
        raise UserError("stop={} names no target: give stop={suboptimality:1e-6}, or null")
    reasons = {}  # why this run does not measure a metric, by its name
    if not experiment.settings.reference:
        reasons["suboptimality"] = "give reference=true"
    if not hasattr(experiment.reg, "violation"):
        reasons["violation"] = f"reg={names['reg']} is no constraint"
    for name, target in stop.items():
        if name.removeprefix(PERSONAL_PREFIX).startswith(TEST_PREFIX):
            raise UserError(f"stop.{name} is refused: {TEST_METRIC_REFUSAL}")
        if name != RELATIVE_CHANGE and name not in experiment.metrics.comparable:
            raise UserError(
                f"stop: '{name}' is not a choice: "
                f"{suggest_name(name, [RELATIVE_CHANGE, *experiment.metrics.comparable])}"
            )
        if name == RELATIVE_CHANGE and target < 0:
            raise UserError(f"stop.change={target:g} must be non-negative")
        if name.startswith(PERSONAL_PREFIX):
            if not experiment.algo.has_personal_models:
                reasons[name] = f"algo={names['algo']} has no personal models"
        elif name != RELATIVE_CHANGE and not experiment.has_shared_model:
            reasons[name] = f"algo={names['algo']} makes no model for all clients"
        if name in reasons:
            raise UserError(f"stop: this run does not measure {name}: {reasons[name]}")
