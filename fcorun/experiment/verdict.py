"""How far from the optimum a run has ended: said of runs whose rates were worked out for them."""

from dataclasses import dataclass
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.algorithms.base import Algorithm
from fcorun.datasets.base import FederatedData
from fcorun.experiment.build import problem_of
from fcorun.experiment.experiment import Experiment
from fcorun.experiment.fit import convex
from fcorun.experiment.reference import gathered
from fcorun.problem import solver
from fcorun.problem.problem import Batch, Problem
from fcorun.problem.vector import Vector
from fcorun.regularizers.none import NoRegularizer

NEAR = 0.01  # of the optimum's objective: what counts as being there
SURE = 0.03  # of the distance: how well it is to be known
WORK, MOST = 2e9, 2000  # numbers read, and iterations, at most, of the solver that goes on from where a run has ended


@dataclass(frozen=True)
class Verdict:
    """How far the objective of a run's end is above the optimum's.

    Attributes:
        kind, value: the certificate: the objective less the best lower bound; or the norm of the prox-gradient map
            where the solver came to, which went on from there.
        above: the share of the lowest objective known by which it is above that.
        sure: whether the lowest objective known is the optimum's, but for a little of what lies between.
        near: whether it is certainly at most a hundredth above the optimum's.
    """

    kind: str
    value: float
    above: float
    sure: bool
    near: bool

    def sentence(self, experiment: Experiment) -> str:
        """What a user should know, and may do about it, or nothing."""
        if self.near:
            return ""
        if not self.sure and self.above <= NEAR:
            return (f"how far the objective is from the optimum is not known ({self.kind} {self.value:.3g}): "
                    "reference=true works it out")  # fmt: skip
        share = float(f"{100 * self.above:.2g}")
        told = f"{'' if self.sure else 'at least '}{share:g} % above the optimum"
        return f"the objective ended {told}: {_cure(experiment)}"


def _cure(experiment: Experiment) -> str:
    if getattr(experiment.data, "standardize", "") == "none":
        return "data.standardize=pooled makes steps longer, and more rounds may help"
    if experiment.algo.traits.exact == "composite":
        return "more rounds may help"
    return "more rounds may help, or an algo that ends there, such as fedcomposite or feddr"


def wanted(experiment: Experiment, bounds: dict | None) -> bool:
    """Whether there is an optimum that the run was to come to with steps that ``bounds`` say were worked out."""
    algo, reg = experiment.algo, experiment.reg
    automatic = bounds is not None and "least" in bounds and any(name.startswith("algo.") for name in bounds)
    if not automatic or not isinstance(algo, Algorithm) or algo.personalises or experiment.settings.frozen:
        return False
    minimised = bool(algo.traits.sides) or isinstance(reg, NoRegularizer)
    return minimised and convex(experiment.objective, reg) and experiment.mirror.covers(reg)


def judge(experiment: Experiment, data: FederatedData, w: dict[str, np.ndarray], objective: float) -> Verdict:
    """The verdict on a run of this experiment that ended at w with this objective, which is finite."""
    with jax.enable_x64(True):
        problem, batch = problem_of(experiment, data), gathered(data, experiment.settings.client_weighting)
        start = Vector({name: jnp.asarray(value, jnp.float64) for name, value in w.items()})
        made = _made(_Template(experiment.batch_key, problem, batch.x.shape[1]))
        return _judged(problem, batch, start, objective, made)


def _judged(problem: Problem, batch: Batch, start: Vector, objective: float, made: solver.Programs) -> Verdict:
    gapped = solver.has_gap(problem, batch.x.shape[1])
    outputs = start["weights"].size // batch.x.shape[1] if "weights" in start else 1
    most = int(min(MOST, max(WORK / (batch.x.size * outputs), solver.CHUNK)))
    best, lower, sure, near = objective, -np.inf, False, False
    tolerance = 1e-9 if gapped else 1e-6
    for now in solver.minimize(problem, batch, tolerance, most, start=start, made=made):
        best = min(best, now.objective)
        if gapped:
            lower = max(lower, now.objective - now.certificate)
        elif now.certified:
            lower = best
        near = bool(objective - lower <= NEAR * abs(best))
        sure = bool(np.isfinite(lower) and best - lower <= SURE * (objective - lower))
        if near or sure:
            break
    above = (objective - best) / abs(best) if best else 0.0
    return Verdict(now.kind, objective - lower if gapped else now.certificate, above, sure, near)


class _Template:
    """A problem under a key, so that lru_cache compares keys."""

    def __init__(self, key: str, problem: Problem, features: int):
        self.key, self.problem, self.features = key, problem, features

    def __hash__(self):
        return hash(self.key)

    def __eq__(self, other):
        return self.key == other.key


@lru_cache(maxsize=1)
def _made(template: _Template) -> solver.Programs:
    return solver.programs(template.problem, template.features)
