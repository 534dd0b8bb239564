"""The checks of a plan: what cannot be computed over sites is refused, in one sentence."""

from collections.abc import Mapping
from copy import copy

import jax
import jax.numpy as jnp

from fcorun.base.config import AUTO, identity_fields
from fcorun.base.errors import UserError
from fcorun.base.metrics import PERSONAL_PREFIX, QUANTILE_SUFFIXES
from fcorun.data.datasets.sites import Sites
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.prepare import replace_plugins
from fcorun.experiment.requirements import describe_client_losses
from fcorun.experiment.threshold_rule import DEFAULT_THRESHOLD, ThresholdRule
from fcorun.methods.algorithms.algorithm import Algorithm
from fcorun.methods.clocks.clock import NoClock
from fcorun.methods.communication.aggregation import WeightedMean
from fcorun.methods.communication.contracts import Identity, Star
from fcorun.methods.objectives.objective import is_linear_model
from fcorun.methods.problem.duality_gap import explain_missing_conjugate, has_one_output
from fcorun.methods.problem.problem import Problem

_FRAME = "a plan for sites: {}"
_FEATURES = 2  # the number of features of a model whose shapes tell its outputs
ONE_OUTPUT = "a linear model of one output with psi on its weights"


def refuse(refusals: Mapping[str, bool], frame: str) -> None:
    """Raise UserError with the first sentence that applies, in the place of {} in ``frame``."""
    for sentence, applies in refusals.items():
        if applies:
            raise UserError(frame.format(sentence))


def _refuse_communication(experiment: PreparedExperiment) -> None:
    """Raise UserError for messages that sites and their server do not exchange."""
    names = experiment.names
    clients_per_round = experiment.settings.clients_per_round
    refusals = {
        f"topology={names['topology']}: sites talk to one server: give topology=star": not (
            isinstance(experiment.topology, Star)
        ),
        f"aggregate={names['aggregate']} takes single uploads, and sites send sums over their clients: leave aggregate "
        "out": not isinstance(experiment.aggregate, WeightedMean),
        f"algo={names['algo']} takes single uploads, and sites send sums over their clients: choose another": (
            experiment.algo.has_server_all
        ),
        f"algo={names['algo']} divides a round by places of clients, which sites do not know: choose another": (
            experiment.algo.divides_cohort
        ),
        f"clock={names['clock']} simulates the times of clients, and those of sites are real: leave clock out": not (
            isinstance(experiment.clock, NoClock)
        ),
        f"faults={names['faults']} are simulated, and those of sites real: leave faults out": experiment.faults.acts,
        f"privacy={names['privacy']} adds noise where all rows lie in one place, and what sites would have to promise "
        "is not written yet: leave privacy out": experiment.privacy.acts,
        f"clients_per_round={clients_per_round} lets clients take part by a probability or in turn, and sites answer "
        "in cohorts of a fixed size, drawn anew: give a number or null": isinstance(clients_per_round, str),
    }
    refuse(refusals, _FRAME)


def check_experiment(experiment: PreparedExperiment) -> None:
    """Raise UserError for an experiment that cannot be computed at sites."""
    names = experiment.names
    settings = experiment.settings
    algo = experiment.algo
    objective = experiment.objective
    data = experiment.data
    refusals = {
        f"data={names['data']} has its rows in one place: give data=sites": not isinstance(data, Sites),
        f"algo={names['algo']} solves the problem on all rows in one place: choose an algorithm with rounds": not (
            isinstance(algo, Algorithm)
        ),
    }
    refuse(refusals, _FRAME)
    assert isinstance(data, Sites)
    assert isinstance(algo, Algorithm)
    _refuse_communication(experiment)
    has_relative = experiment.reg.relative_or_none is not None
    chooses_threshold = ThresholdRule.parse(settings.threshold).needs_rows
    has_two_probabilities = data.target_task.has_two_classes and hasattr(objective, "probabilities")
    refusals = {
        "save_personal=false: each site keeps the personal models of its clients in its own folder: leave it out": (
            not settings.save_personal and algo.has_personal_models
        ),
        "stop: sites send sums over clients, which have no quantiles: give a metric without _q10 or _q90": any(
            name.startswith(PERSONAL_PREFIX) and name.endswith(tuple(QUANTILE_SUFFIXES)) for name in settings.stop or {}
        ),
        f"algo={names['algo']} declares metrics of clients' states, which stay at their sites: choose another": bool(
            algo.declared_metrics and not algo.metrics_of_server
        ),
        f"reference=true takes sums of {ONE_OUTPUT}, and a bound on its curvature, which objective="
        f"{names['objective']} with reg={names['reg']} has not here: leave it out": (
            settings.reference
            and not (
                has_one_residual(experiment)
                and not explain_missing_conjugate(objective, experiment.reg)
                and objective.has_curvature_bound
            )
        ),
        f"objective={names['objective']} is for {' and '.join(objective.tasks)} targets, and data.task is "
        f"{data.task}: give another objective, or data.event where targets are times to events": (
            data.task not in objective.tasks
        ),
        f"{describe_client_losses(experiment)}, which a minibatch does not have: give batch_size=null": (
            objective.has_client_losses and settings.batch_size is not None
        ),
        "start=FOLDER is a record that sites do not have: leave it out": bool(settings.start),
        "reg.per_client gives clients numbers by their order, which sites do not know: leave it out": bool(
            experiment.reg.per_client
        ),
        f"objective={names['objective']} takes numbers from all targets where it is auto: give numbers": (
            AUTO in map(str, identity_fields(objective).values())
        ),
        "client_metrics=true tells losses of single clients: leave it out": settings.client_metrics,
        f"gap=true takes sums of {ONE_OUTPUT}, which objective={names['objective']} is not here: leave gap out": (
            settings.gap and not has_one_residual(experiment)
        ),
        f"reg.relative takes sums of {ONE_OUTPUT}, which objective={names['objective']} is not here: give "
        "reg.strength": has_relative and not has_one_residual(experiment),
        "reg.relative fits the features that reg.factors leave free, on all rows in one place: give reg.strength": (
            has_relative and experiment.reg.has_free_features
        ),
        f"threshold={settings.threshold} divides two classes by their probabilities: leave it out, or give "
        "data.task=binary and objective=logistic": (
            settings.threshold != DEFAULT_THRESHOLD and not has_two_probabilities
        ),
        f"threshold={settings.threshold} is chosen by the scores of the shared model, and algo={names['algo']} has "
        "personal models: give a number": chooses_threshold and algo.has_personal_models,
        f"threshold={settings.threshold} is chosen on validation rows, and none are held out: give data.validation=0.2"
        ", or a number": chooses_threshold and data.validation in (0, []) and data.split is None,
        f"clients_at_once={settings.clients_at_once} is for the memory of one machine, and a plan is for all sites: "
        "leave it out": settings.clients_at_once != AUTO,
        "debug=true computes clients one by one in one process: leave it out": settings.debug,
    }
    refuse(refusals, _FRAME)


def at_any_strength(experiment: PreparedExperiment) -> PreparedExperiment:
    """Return the experiment of a selection without a strength relative to the largest one, which its path replaces."""
    if experiment.reg.relative_or_none is None:
        return experiment
    return replace_plugins(experiment, experiment.settings, reg=experiment.reg.with_value("strength", 1.0))


def has_one_residual(experiment: PreparedExperiment) -> bool:
    """Return whether the model is linear, of one output, with psi on its weights, so that rows have one residual."""
    objective = experiment.objective
    data = experiment.data
    if not isinstance(data, Sites) or not is_linear_model(type(objective)):
        return False
    shapes = objective.shapes((_FEATURES,), data.target_task.typical_classes)
    return has_one_output(Problem(objective, experiment.reg, experiment.mirror, shapes), _FEATURES)


def check_away(experiment: PreparedExperiment, secure: bool, selects: bool) -> None:
    """Raise UserError for a plan with ``data.away=skip`` that needs the answers of the same sites more than once.

    Args:
        secure: whether sums are masked.
        selects: whether the plan is a selection.
    """
    algo = experiment.algo
    data = experiment.data
    name = experiment.names["algo"]
    assert isinstance(algo, Algorithm)
    assert isinstance(data, Sites)
    if data.away_rule is None:
        return
    refusals = {
        "the difference of secure sums over different sites is the numbers of a site: plan without --secure": secure,
        "a selection compares fits on the same rows: plan a single run": selects,
        f"algo={name} needs all clients in every round: choose an algorithm that takes cohorts of some clients": (
            not algo.traits.partial or algo.computed_rounds is not None
        ),
        f"algo={name} has two exchanges in a round, which need the same sites: choose an algorithm with one": (
            algo.has_two_exchanges
        ),
        f"algo={name} has states of clients, which fall behind at a site that is away: choose an algorithm without": (
            _has_client_states(experiment)
        ),
        "uplink and downlink, whose encodings follow the rounds before, need all of them: leave both out": not (
            isinstance(experiment.uplink, Identity) and isinstance(experiment.downlink, Identity)
        ),
        "reference=true compares with the optimum on the rows of all sites: leave it out (gap=true is measured where "
        "all sites answer)": experiment.settings.reference,
    }
    refuse(refusals, "data.away=skip: {}, or wait for all sites, data.away=wait")


def _has_client_states(experiment: PreparedExperiment) -> bool:
    """Return whether clients have states between rounds."""
    objective = experiment.objective
    data = experiment.data
    assert isinstance(experiment.algo, Algorithm)
    assert isinstance(data, Sites)
    algorithm = copy(experiment.algo)
    for name in algorithm.auto_fields:
        object.__setattr__(algorithm, name, 1.0)  # any number: replace() would check that it suits the other fields
    shapes = objective.shapes((_FEATURES,), data.target_task.typical_classes)
    problem = Problem(objective, experiment.reg, experiment.mirror, shapes, key_bits=(0, 0))
    _, client = jax.eval_shape(lambda: algorithm.init(problem, problem.zeros(jnp.float32)))
    return bool(jax.tree.leaves(client))
