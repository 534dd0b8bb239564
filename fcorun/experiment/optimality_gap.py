"""How far from the optimum a run has ended: said of runs whose rates were worked out for them."""

from dataclasses import dataclass
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.algorithms.base import Algorithm
from fcorun.datasets.base import FederatedData
from fcorun.experiment.advice import advise
from fcorun.experiment.build import build_problem
from fcorun.experiment.compatibility import are_convex
from fcorun.experiment.convergence import NEAR_OPTIMUM
from fcorun.experiment.experiment import Experiment
from fcorun.experiment.reference import gather_rows
from fcorun.objectives.least_squares import LeastSquares
from fcorun.problem import solver
from fcorun.problem.problem import Batch, Problem
from fcorun.problem.vector import Vector
from fcorun.regularizers.none import NoRegularizer
from fcorun.system.cache import Keyed

SURE = 0.03  # of the distance: how well it is to be known
WORK, MOST = 2e9, 2000  # numbers read, and iterations, at most, of the solver that goes on from where a run has ended
SOLVED, SOLVABLE = "closed form", 2**24  # least squares without psi, with so many numbers at most


@dataclass(frozen=True)
class OptimalityGap:
    """How far the objective of a run's end is above the optimum's.

    Attributes:
        kind, value: the certificate: the objective less the best lower bound; or, without one, the norm of the
            prox-gradient map where the solver came to, which went on from there.
        above: the share of the lowest objective known by which it is above that; None where that is about 0.
        left: the share of what was to be gained from the start that is left; None where there was nothing.
        sure: whether the lowest objective known is the optimum's, but for a little of what lies between.
        near: whether it is at most a hundredth above the optimum's, or of what was gained where that is about 0; None:
            nothing bounds the optimum from below, and nothing much lower was found.
        certified: whether the solver came to rest.
    """

    kind: str
    value: float
    above: float | None
    left: float | None
    sure: bool
    near: bool | None
    certified: bool

    def describe(self, experiment: Experiment, data: FederatedData, *, falling: bool = False) -> str:
        """What a user should know, and may do about it, or nothing; ``falling``: the objective was still."""
        if self.near or (self.near is None and self.certified):
            return ""
        if self.near is None:
            return (f"how far the objective is from the optimum is not known ({self.kind} {self.value:.3g}): "
                    "reference=true works it out")  # fmt: skip
        least = "" if self.sure else "at least "
        if self.above is not None:
            told = f"the objective ended {least}{_percent(self.above)} above the optimum"
        else:
            told = f"{least}{_percent(self.left or 0)} of what was to be gained is left"
        return f"{told}: {advise(experiment, data, falling)}"


def _percent(share: float) -> str:
    return f"{float(f'{100 * share:.2g}'):g} %"


def can_assess_gap(experiment: Experiment, bounds: dict | None) -> bool:
    """Whether there is an optimum that the run was to come to with steps that ``bounds`` say were worked out."""
    algo, reg = experiment.algo, experiment.reg
    automatic = bounds is not None and "least" in bounds and any(name.startswith("algo.") for name in bounds)
    if not automatic or not isinstance(algo, Algorithm) or algo.has_personal_models or experiment.settings.frozen:
        return False
    minimised = bool(algo.traits.psi_sides) or isinstance(reg, NoRegularizer)
    return minimised and are_convex(experiment.objective, reg) and experiment.mirror.domain_contains(reg)


def explain_unassessed_gap(experiment: Experiment, data: FederatedData) -> str:
    """Return what to say of a run whose distance from an optimum is neither judged nor measured; empty where there is
    no optimum to measure it from."""
    algo, names = experiment.algo, experiment.names
    if not isinstance(algo, Algorithm) or algo.has_personal_models or experiment.settings.frozen:
        return ""
    measured = experiment.settings.reference or data.generated is not None or data.on_disk
    if (
        measured
        or not are_convex(experiment.objective, experiment.reg)
        or not experiment.mirror.domain_contains(experiment.reg)
    ):
        return ""
    if experiment.ignores_regularizer:
        return (f"algo={names['algo']} leaves psi out, so that it ends above the least objective with "
                f"reg={names['reg']}: reference=true measures how far; algo=feddr minimises it")  # fmt: skip
    return "how near the optimum it ended is not known, for its rates were given: reference=true measures it"


def assess_gap(
    experiment: Experiment, data: FederatedData, w: dict[str, np.ndarray], ends: tuple[float, float], least: float
) -> OptimalityGap:
    """The verdict on a run of this experiment that ended at w.

    ``ends`` are its first objective and its last, which is finite; F bends no less than ``least``.
    """
    with jax.enable_x64(True):
        problem, batch = build_problem(experiment, data), gather_rows(data, experiment.settings.client_weighting)
        solved = _solved(problem, batch)
        if solved is not None:
            best = min(solved, ends[1])
            return _verdict(ends, best, solved, (SOLVED, ends[1] - solved, True))
        start = Vector({name: jnp.asarray(value, jnp.float64) for name, value in w.items()})
        made = compile_solver(Keyed(experiment.batch_key, problem), batch.x.shape[1])
        return _searched(problem, batch, ends, least, {"start": start, "compiled": made})


def _verdict(ends: tuple[float, float], best: float, lower: float, found: tuple[str, float, bool]) -> OptimalityGap:
    """What the lowest objective known and the best lower bound (-inf: none) say; ``found``: what it goes by."""
    first, last = ends
    kind, value, certified = found
    gain = first - best if np.isfinite(first) else 0.0
    tiny = abs(best) <= NEAR_OPTIMUM * gain
    scale = gain if tiny else abs(best)
    sure = bool(np.isfinite(lower) and best - lower <= SURE * (last - lower))
    near = (
        True if last - lower <= NEAR_OPTIMUM * scale else False if sure or last - best > NEAR_OPTIMUM * scale else None
    )
    return OptimalityGap(
        kind=kind,
        value=last - lower if np.isfinite(lower) else value,
        above=None if tiny else (last - best) / abs(best) if best else 0.0,
        left=(last - best) / gain if gain > 0 else None,
        sure=sure,
        near=near,
        certified=certified,
    )


def _searched(problem: Problem, batch: Batch, ends: tuple[float, float], least: float, given: dict) -> OptimalityGap:
    """The verdict by a solver that goes on from where the run has ended, with what it is ``given``."""
    gapped = solver.has_duality_gap(problem, batch.x.shape[1])
    start = given["start"]
    outputs = start["weights"].size // batch.x.shape[1] if "weights" in start else 1
    most = int(min(MOST, max(WORK / (batch.x.size * outputs), solver.STEPS_PER_CERTIFICATE)))
    best, lower, verdict = ends[1], -np.inf, None
    for now in solver.minimize(problem, batch, 1e-9 if gapped else 1e-6, most, **given):
        best = min(best, now.objective)
        if gapped:
            lower = max(lower, now.objective - now.certificate)
        elif least > 0 and isinstance(problem.regularizer, NoRegularizer):  # F >= F(w) - ||g||^2 / 2l
            lower = max(lower, now.objective - float(problem.gradient(now.w, batch).norm()) ** 2 / (2 * least))
        verdict = _verdict(ends, best, lower, (now.certificate_kind, now.certificate, now.certified))
        if verdict.near or verdict.sure:
            break
    assert verdict is not None
    return verdict


def _solved(problem: Problem, batch: Batch) -> float | None:
    """The optimum of least squares without psi, whatever the units of its features; None for other problems."""
    plain = isinstance(problem.regularizer, NoRegularizer) and not problem.objective.ridge
    if not (plain and isinstance(problem.objective, LeastSquares) and batch.x.size <= SOLVABLE):
        return None
    root = np.sqrt(np.asarray(batch.weight))
    x = root[:, None] * problem.objective.design(np.asarray(problem.features(batch.x, jnp.float64)))
    y = root * (np.asarray(batch.y) - (0.0 if batch.offset is None else np.asarray(batch.offset)))
    length = np.linalg.norm(x, axis=0)
    x = x / np.where(length > 0, length, 1)
    rest = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    return float(rest @ rest)


@lru_cache(maxsize=1)
def compile_solver(problem: Keyed[Problem], features: int) -> solver.SolverPrograms:
    """Return the solver's programs for a problem whose examples have so many features, compiled once for one key."""
    return solver.compile_programs(problem.value, features)
