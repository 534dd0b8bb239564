"""Whether the parts of an experiment fit each other."""

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
    """The settings of an algorithm whose clients take all their data at once, and steps of its own."""
    if settings.local_steps is not None or settings.local_epochs != 1:
        raise UserError(f"algo={algo} takes all data of a client and counts its own steps: leave local_epochs and "
                        "local_steps out, and see the keys of algo")  # fmt: skip
    return replace(settings, batch_size=None)


def _spelled(cls: type) -> str:
    """A class's name as conf/ spells it: L1Box, l1_box."""
    return re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()


def are_convex(*parts: Objective | Regularizer) -> bool:
    """Whether objective and regularizer both say that they are convex."""
    return all(map(_said, parts))


def _said(part: Objective | Regularizer) -> bool | None:
    """Whether it is convex, as its class itself says; None: it does not."""
    return vars(type(part)).get("convex")


def check_optimum(plugins: dict[str, Any], names: dict[str, str], settings: Settings) -> None:
    """Refuse what is measured against, or solved to, an optimum that the problem does not have."""
    baseline = isinstance(plugins["algo"], Baseline)
    relative = plugins["reg"].relative_or_none is not None
    if not (settings.reference or baseline or relative):
        return
    asked = f"algo={names['algo']}" if baseline else "reference=true" if settings.reference else "reg.relative"
    for section in ("objective", "reg") if baseline or settings.reference else ("objective",):
        if not _said(plugins[section]):
            told = "is not convex; leave it out"
            if _said(plugins[section]) is None:
                told = "does not say whether it is convex: leave it out, or give its class convex = True, if it is"
            raise UserError(f"{asked} needs one optimum, and {section}={names[section]} {told}")
    if not plugins["mirror"].domain_contains(plugins["reg"]) and not relative:
        raise UserError(
            f"{asked} would be of another problem: mirror={names['mirror']} holds w >= 0, and reg={names['reg']} does "
            "not; choose reg=nonneg, l1_nonneg or simplex"
        )


def check_start(plugins: dict[str, Any], names: dict[str, str], settings: Settings) -> None:
    """Refuse a topology that the algorithm does not know, and starts that nothing would come of."""
    algo = plugins["algo"]
    tree, trees = plugins["topology"].edge_rounds is not None, algo.traits.hierarchy
    if isinstance(algo, Baseline) and (settings.start or settings.frozen or tree):
        key = "start" if settings.start else "frozen" if settings.frozen else "topology"
        raise UserError(f"algo={names['algo']} is solved in one place, wherever one starts: leave {key} out")
    if tree and not trees:
        raise UserError(f"algo={names['algo']} knows no edges: leave topology={names['topology']} out, or choose "
                        "an algo for trees, such as fedavg, feddualavg or pfedmac_sh")  # fmt: skip
    if trees == "only" and not tree:
        raise UserError(f"algo={names['algo']} works with edges: give topology=tree")
    if settings.frozen and not settings.start:
        raise UserError("frozen=true keeps the server's model as it was: give start=FOLDER, a record that has one")
    if settings.frozen and not algo.has_personal_models:
        raise UserError(f"frozen=true leaves nothing to do for algo={names['algo']}, whose clients have no models of "
                        "their own; choose apfl, ditto, local, pfedme or another one that has")  # fmt: skip
    if settings.frozen and tree:
        raise UserError("frozen=true leaves nothing to the edges: leave topology out")


def check_compatibility(plugins: dict[str, Any], names: dict[str, str]) -> None:
    """Refuse plug-ins that cannot work with each other."""
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
        known = ", ".join(sorted(_spelled(cls) for cls in mirror.retrieve_functions))
        raise UserError(
            f"mirror={names['mirror']} has no way to retrieve with reg={names['reg']}; it knows none, {known}: choose "
            "one of them, or mirror=euclidean, which takes any"
        )
    if reg.apply_to == []:
        raise UserError("reg.apply_to=[] leaves psi nothing to act on: name parameters, or give reg=none")
    sides = () if isinstance(algo, Baseline) else traits.psi_sides
    if reg.applied_by != "both" and sides and reg.applied_by not in sides:
        raise UserError(f"reg.applied_by={reg.applied_by}: algo={names['algo']} applies psi on the {sides[0]} only; "
                        "give both")  # fmt: skip
    if reg.applied_by != "both" and len(sides) == 2 and traits.exact:
        raise UserError(f"reg.applied_by={reg.applied_by}: algo={names['algo']} goes wrong unless clients and server "
                        "apply psi; give both")  # fmt: skip
    _check_factors(reg, names["reg"], "" if isinstance(mirror, Euclidean) else names["mirror"])
    for name, values in (reg.per_client or {}).items():
        if name in reg.across_clients:
            for value in values:
                check_value(value, type_hints(type(reg))[name], f"reg.per_client.{name}")
        else:
            known = ", ".join(reg.across_clients) or "none"
            raise UserError(
                f"reg.per_client: '{name}' of reg={names['reg']} cannot differ between clients; {known} can"
            )
    if reg.relative_or_none is not None and not hasattr(reg, "strength_max"):
        raise UserError(f"reg.relative needs a largest useful strength, which reg={names['reg']} does not have; "
                        "give reg.strength")  # fmt: skip


def _check_curvature(plugins: dict[str, Any], names: dict[str, str]) -> None:
    """Refuse what works its steps out from bounds that nobody knows."""
    objective, mirror = plugins["objective"], plugins["mirror"]
    if not (wanted := " and ".join(plugins["algo"].curvature_alternatives)):
        return
    if not objective.has_curvature_bound:
        without, ceiling = "", ""
        if hasattr(objective, "ceiling"):
            without = " without a ceiling"
            ceiling = ", or objective.ceiling, the largest mean (for gamma: ratio to the mean) that you expect"
        raise UserError(f"algo={names['algo']} needs bounds on the curvature of the losses, which "
                        f"objective={names['objective']} does not have{without}; give {wanted}{ceiling}")  # fmt: skip
    if not isinstance(mirror, Euclidean):
        raise UserError(f"algo={names['algo']} works out its rates for mirror=euclidean: with "
                        f"mirror={names['mirror']}, give {wanted}")  # fmt: skip


def _check_factors(reg: Regularizer, name: str, mirror: str) -> None:
    """Refuse factors of a regularizer, of this name, that is no sum over features, and those with a mirror map; and
    strengths that are given twice."""
    if reg.per_client and reg.relative_or_none is not None:
        raise UserError("reg.relative and reg.per_client exclude each other: set one of them to null")
    if reg.factors and not vars(type(reg)).get("separable"):
        raise UserError(f"reg.factors weighs the penalties of single features, of which reg={name} is no sum: "
                        "choose l1, elastic_net, l2 or group_lasso")  # fmt: skip
    if reg.factors and mirror:
        raise UserError(f"reg.factors goes with mirror=euclidean, and mirror={mirror} knows no factors: leave "
                        "one of them out")  # fmt: skip


def check_data(experiment: Experiment, data: FederatedData) -> None:
    """Refuse data that the objective is not for, and cohorts that they do not have or the algorithm does not take."""
    names, tasks, asked = experiment.names, experiment.objective.tasks, experiment.settings.clients_per_round
    if data.task not in tasks:
        raise UserError(
            f"objective={names['objective']} is for {' and '.join(tasks)} targets, and "
            f"data={names['data']} has {data.task} ones; choose another objective"
            + (" or data.task" if hasattr(experiment.data, "task") else "")
        )
    try:
        held = [part for part in (data.y_val, data.y_test) if part is not None]
        experiment.objective.check_targets(data.y, np.concatenate([data.y[:0], *held]))
    except ValueError as error:
        raise UserError(f"objective={names['objective']}: {error}") from error
    if data.offset is not None and (not isinstance(experiment.objective, LinearModel) or len(data.classes) > 2):
        raise UserError(f"data.offset is added to a linear predictor, of which objective={names['objective']} has "
                        "none or one a class: leave it out")  # fmt: skip
    resolve_factors(experiment.reg, experiment.objective, data)
    if data.generated is not None:
        _check_population(experiment, data.generated.n_clients)
    if asked is None or not isinstance(experiment.algo, Algorithm):
        return
    if asked > data.n_clients:
        raise UserError(
            f"clients_per_round={asked} is more than the {data.n_clients} clients of "
            f"data={names['data']}; lower it, or set it to null for all of them"
        )
    if asked < data.n_clients and not experiment.algo.traits.partial:
        raise UserError(
            f"algo={names['algo']} needs all clients in every round; give clients_per_round=null, or an "
            "algo that takes a part of them"
        )


def _check_population(experiment: Experiment, clients: int) -> None:
    """Refuse what needs all rows, or numbers for each client, where rows are made and forgotten."""
    names, algo = experiment.names, experiment.algo
    wanted = " and ".join(getattr(algo, "curvature_alternatives", []))
    needs = {
        f"algo={names['algo']} takes the rows of all clients": isinstance(algo, Baseline),
        f"auto of algo={names['algo']} takes bounds on all clients' losses (give {wanted})": bool(wanted),
        "reference=true solves the problem on all rows": experiment.settings.reference,
        f"topology={names['topology']} gives each client an edge": experiment.topology.edge_rounds is not None,
        "reg.per_client gives each client numbers": bool(experiment.reg.per_client),
    }
    if found := [need for need, there in needs.items() if there]:
        raise UserError(f"data={names['data']} makes the rows of {clients:,} clients when a round needs them and "
                        f"stores none, but {found[0]}; choose a smaller data set")  # fmt: skip


def check_stop(experiment: Experiment) -> None:
    """Refuse targets of ``stop`` that no run, or not this one, comes to."""
    stop, names = experiment.settings.stop, experiment.names
    if stop is None or isinstance(experiment.algo, Baseline):  # which ends by its certificate
        return
    if not stop:
        raise UserError("stop={} names no target: give stop={suboptimality:1e-6}, or null")
    lacks = {
        "suboptimality": (experiment.settings.reference, "give reference=true"),
        "violation": (hasattr(experiment.reg, "violation"), f"reg={names['reg']} is no constraint"),
    }
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
            lacks[name] = (
                experiment.algo.has_personal_models,
                f"clients of algo={names['algo']} have no models of their own",
            )
        elif name != RELATIVE_CHANGE and not experiment.has_shared_model:
            lacks[name] = (False, f"algo={names['algo']} makes no model for all clients")
        has, why = lacks.get(name, (True, ""))
        if not has:
            raise UserError(f"stop: this run does not measure {name}: {why}")
