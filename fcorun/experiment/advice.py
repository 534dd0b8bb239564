"""Advice for a run that has ended above the optimum: the settings that would bring it closer."""

from collections.abc import Iterator
from dataclasses import fields

import numpy as np

from fcorun.base.config import AUTO, is_of_fcorun
from fcorun.base.errors import word
from fcorun.data.datasets.dataset import FederatedData
from fcorun.engine.schedule import Schedule
from fcorun.experiment.build import build_schedule, connect_clients
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods import algorithms
from fcorun.methods.algorithms.algorithm import Algorithm, Method, RunConditions
from fcorun.methods.algorithms.gossip import GossipAlgorithm
from fcorun.methods.regularizers.regularizer import Constraint, NoRegularizer

_SCALE_RATIO = 3  # features whose sizes differ by more than this factor slow a run down
_MORE_ROUNDS = "more rounds may help"


def advise(experiment: PreparedExperiment, data: FederatedData, falling: bool) -> str:
    """Return a clause that names what keeps a run from the optimum and the settings that would help.

    Args:
        falling: whether the objective was still falling when the run ended.
    """
    schedule = build_schedule(experiment, data)
    steps_advice = _advise_on_uneven_steps(experiment, schedule)
    scale_advice = _advise_on_feature_scales(experiment, data)
    if not steps_advice:
        rounds_advice = _advise_on_limit_point(experiment, data, schedule, falling)
    else:  # with equal steps the run would have another limit point
        rounds_advice = _MORE_ROUNDS if falling or scale_advice else ""
    return ", and ".join(filter(None, (steps_advice, scale_advice, rounds_advice)))


def advise_on_divergence(experiment: PreparedExperiment) -> str:
    """Return a clause that names the settings that may keep a run from diverging, of those that it has."""
    rates = list_rates(experiment.algo)
    if rates:
        return word(f"try a smaller {' or '.join(rates)}")
    cause = "no rate of this algorithm is known by its name (..._lr): look for very large values in the data"
    if is_of_fcorun(experiment.algo):
        cause = "this algorithm has no rate: look for very large values in the data"
        if experiment.algo.traits.local_fits:
            cause += " and for clients whose fits leave no residuals"
    return cause


def list_rates(algo: Method) -> list[str]:
    """Return the settings that are rates of an algorithm, such as algo.client_lr."""
    rates = []
    for field in fields(algo):
        is_step_size = field.name == "step" and field.default == AUTO  # that of Newton's method is a share of its step
        if field.name.endswith("_lr") or is_step_size:
            rates.append(f"`algo.{field.name}`")
    return rates


def _advise_on_uneven_steps(experiment: PreparedExperiment, schedule: Schedule) -> str:
    """Return advice where clients take unequal numbers of steps; empty where that moves no limit point.

    Clients with more steps weigh more in the mean: objective inconsistency, Wang et al. (FedNova, NeurIPS 2020).
    """
    traits = experiment.algo.traits
    if not schedule.uneven_steps or traits.deterministic or traits.robust_to_uneven_steps:
        return ""
    cause = "clients take unequal numbers of steps, which moves the point that the run converges to: "
    if schedule.has_deadline:
        return word(f"{cause}leave `clock.deadline` out")
    steps = int(np.median(schedule.steps))
    return word(f"{cause}give `local_epochs=null local_steps={steps}`")


def _advise_on_feature_scales(experiment: PreparedExperiment, data: FederatedData) -> str:
    """Return advice where features that are not standardized differ in scale; empty where they do not.

    The scales of features at sites are not known.
    """
    if getattr(experiment.data, "standardize", "") != "none" or data.train.stays_at_sites:
        return ""
    sizes = np.append(np.sqrt(np.mean(np.square(data.train.x, dtype=np.float64), axis=0)), 1.0)
    if sizes.max() <= _SCALE_RATIO * sizes[sizes > 0].min():
        return ""
    if _is_smooth(experiment) and not experiment.objective.ridge:
        return word("`data.standardize=pooled` makes steps longer")
    return word("`data.standardize=pooled` makes another problem, which takes fewer rounds")


def _is_smooth(experiment: PreparedExperiment) -> bool:
    """Return whether the problem has no regularizer, so that its objective is smooth."""
    return isinstance(experiment.reg, NoRegularizer)


def _advise_on_limit_point(
    experiment: PreparedExperiment, data: FederatedData, schedule: Schedule, falling: bool
) -> str:
    """Return a clause on whether the algorithm can reach the optimum, and on algorithms that do."""
    topology = experiment.topology
    mean_of_all = not topology.connects_clients  # whether each exchange takes one mean over all clients
    if topology.connects_clients:  # as on a complete graph of equal clients
        mean_of_all = topology.describe(connect_clients(experiment, data)).get("spectral_gap", 0) > 1 - 1e-9
    algo, name = experiment.algo, experiment.names["algo"]
    assert isinstance(algo, Algorithm)
    traits = algo.traits
    has_penalty = not (_is_smooth(experiment) or isinstance(experiment.reg, Constraint))
    if algo.tends_to_minimum_of_psi and has_penalty and experiment.reg.strength_or_none != 0:
        return word(f"{name} converges to a minimizer of `reg={experiment.names['reg']}` alone, 0 for a norm")
    if algo.computed_rounds is not None and experiment.settings.rounds >= algo.computed_rounds:
        can_iterate = hasattr(algo, "iterations") and _trait_holds(experiment, traits.exact)
        advice = word(": a larger `algo.iterations` may help") if can_iterate else ""
        return f"{name} sends nothing after round {algo.computed_rounds}, so that more rounds change nothing{advice}"
    full_batch = schedule.full_batch_steps is not None or traits.deterministic
    full_participation = schedule.cohort_size == len(schedule.sizes) and mean_of_all
    exact = _trait_holds(experiment, traits.exact)
    if experiment.topology.has_nodes and traits.hierarchy != "graph":
        exact = exact and mean_of_all
    one_full_step = schedule.full_batch_steps == 1 and full_participation
    exact_with_one_step = one_full_step and _trait_holds(experiment, traits.exact_with_one_step)
    if falling or exact_with_one_step or ((exact or algo.is_sublinear) and full_batch):
        return _MORE_ROUNDS
    alternatives = suggest_algorithms(experiment, schedule)
    advice = word(f"; `algo={' or '.join(alternatives)}` does") if alternatives else ""
    subject = f"with minibatches {name}" if exact else name
    if not exact and not is_of_fcorun(algo):
        return f"{_MORE_ROUNDS}, but {name} does not declare that it reaches the optimum (traits.exact){advice}"
    return f"{subject} does not reach the optimum in any number of rounds{advice}"


def _trait_holds(experiment: PreparedExperiment, problems: str) -> bool:
    """Return whether a trait that holds for "smooth" or "composite" problems (empty: none) holds for this one."""
    psi_everywhere = experiment.reg.applied_by == "both" or len(experiment.algo.traits.psi_sides) == 1
    if problems == "composite" and psi_everywhere:
        return True
    return problems != "" and _is_smooth(experiment)


def suggest_algorithms(experiment: PreparedExperiment, schedule: Schedule) -> list[str]:
    """Return the names of other algorithms that say that they reach the optimum of a run like this one."""
    has_nodes = experiment.topology.has_nodes
    if experiment.topology.connects_clients and not has_nodes:
        return []
    conditions = RunConditions(
        smooth=_is_smooth(experiment),
        full_batch=bool(schedule.full_batch_steps),
        full_participation=schedule.cohort_size == len(schedule.sizes),
        psi_applied_by=experiment.reg.applied_by,
    )
    for name in dir(algorithms):
        getattr(algorithms, name)  # imports all algorithms of fcorun; a user's are subclasses once they are imported
    kinds = [kind for kind in _all_subclasses(Algorithm) if issubclass(kind, GossipAlgorithm) == has_nodes]
    if experiment.topology.redraws_links:
        kinds = [kind for kind in kinds if not getattr(kind, "needs_fixed_graph", False)]
    names = sorted({kind.suggest_for(conditions) for kind in kinds})
    return [name for name in names if name not in ("", experiment.names["algo"])]


def _all_subclasses(cls: type[Algorithm]) -> Iterator[type[Algorithm]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _all_subclasses(subclass)
