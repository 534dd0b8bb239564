"""The plans that go on without sites that are away, and those that must wait for all sites."""

from copy import copy

import jax
import jax.numpy as jnp

from fcorun.base.errors import UserError
from fcorun.data.datasets.sites import Sites
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.algorithms.algorithm import Algorithm
from fcorun.methods.communication.contracts import Identity
from fcorun.methods.problem.problem import Problem

_N_FEATURES, _CLASSES = (
    2,
    {"regression": 0, "binary": 2, "multiclass": 3, "survival": 0},
)  # of a model like that of the plan


def check_away(experiment: PreparedExperiment, secure: bool, selects: bool) -> None:
    """Raise UserError for a plan with ``data.away=skip`` that needs the answers of the same sites more than once.

    Args:
        secure: whether sums are masked.
        selects: whether the plan is a selection.
    """
    algo, data, name = experiment.algo, experiment.data, experiment.names["algo"]
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
            has_client_states(experiment)
        ),
        "uplink and downlink, whose encodings follow the rounds before, need all of them: leave both out": not (
            isinstance(experiment.uplink, Identity) and isinstance(experiment.downlink, Identity)
        ),
        "reference=true compares with the optimum on the rows of all sites: leave it out (gap=true is measured where "
        "all sites answer)": experiment.settings.reference,
    }
    for sentence, applies in refusals.items():
        if applies:
            raise UserError(f"data.away=skip: {sentence}, or wait for all sites, data.away=wait")


def has_client_states(experiment: PreparedExperiment) -> bool:
    """Return whether clients have states between rounds."""
    objective, data = experiment.objective, experiment.data
    assert isinstance(experiment.algo, Algorithm)
    assert isinstance(data, Sites)
    algorithm = copy(experiment.algo)
    for name in algorithm.auto_fields:
        object.__setattr__(algorithm, name, 1.0)  # any number: replace() would check that it suits the other fields
    shapes = objective.shapes((_N_FEATURES,), _CLASSES[data.task])
    problem = Problem(objective, experiment.reg, experiment.mirror, shapes, key_bits=(0, 0))
    _, client = jax.eval_shape(lambda: algorithm.init(problem, problem.zeros(jnp.float32)))
    return bool(jax.tree.leaves(client))
