"""The strengths, or radii, of a path."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.algorithms.base import Algorithm
from fcorun.datasets.base import FederatedData
from fcorun.errors import UserError
from fcorun.experiment import reference
from fcorun.experiment.build import build_problem
from fcorun.experiment.compatibility import are_convex
from fcorun.experiment.experiment import Experiment
from fcorun.problem import solver
from fcorun.regularizers.base import Regularizer
from fcorun.regularizers.none import NoRegularizer

MIN_RATIO = 1e-3  # of the least to the largest, as in scikit-learn's lasso_path
_FREE, _ITERATIONS = 1e-4, 2000  # how well the solution without constraint is known, which ends a path of radii


@dataclass(frozen=True)
class RegularizationPath:
    """The values of a number of the regularizer, from the simplest solution on: strengths fall, radii grow.

    Attributes:
        number: "strength" or "radius".
        values: (P,).
        said: how the range was chosen.
    """

    param_name: str
    values: np.ndarray
    range_description: str


def find_path_parameter(experiment: Experiment) -> str:
    """The number of the regularizer that a path varies. Raises UserError where there is none, or nothing would come
    of it."""
    reg, names, algo = experiment.reg, experiment.names, experiment.algo
    number = next((name for name in ("strength", "radius") if hasattr(reg, name)), None)
    if number is None:
        raise UserError(f"reg={names['reg']} has no strength and no radius to choose: take a penalty such as l1, or a "
                        "ball such as l1_ball")  # fmt: skip
    if isinstance(algo, Algorithm) and not algo.traits.psi_sides:
        raise UserError(f"algo={names['algo']} leaves psi out, so that all strengths would give the same: choose an "
                        "algo that applies psi, such as feddualavg or fedmid")  # fmt: skip
    if number in (reg.per_client or {}):
        raise UserError(f"reg.per_client.{number} gives each client a {number} of its own, and one is chosen for all: "
                        "leave it out")  # fmt: skip
    return number


def build_path(
    experiment: Experiment,
    data: FederatedData,
    points: int,
    value_range: list[float] | None,
    min_ratio: float = MIN_RATIO,
) -> RegularizationPath:
    """The path of ``points`` values, evenly spaced in logarithm, between ``limits``, least and largest, or by default:

    Strengths fall from the smallest one at which 0 is optimal on all training rows to ``ratio`` times it. Radii grow
    from ``ratio`` times the radius of a ball that holds the solution without constraint up to it. Raises UserError
    where there are no such limits.
    """
    number = find_path_parameter(experiment)
    if value_range is not None:
        if len(value_range) != 2 or not 0 < value_range[0] < value_range[1]:
            raise UserError(
                f"range={value_range} must be two positive numbers, the least {number} and the largest: give "
                "range=[0.001,1]"
            )
        low, high, said = *value_range, "as given"
    else:
        high, said = _largest(experiment, data, number)
        low, said = min_ratio * high, f"{said}, and {min_ratio:g} of it"
    values = np.geomspace(low, high, points)
    return RegularizationPath(number, values[::-1] if number == "strength" else values, said)


def _largest(experiment: Experiment, data: FederatedData, number: str) -> tuple[float, str]:
    reg, name = experiment.reg, experiment.names["reg"]
    give = f"give range=[LOW,HIGH], the least {number} and the largest"
    if number == "strength" and not hasattr(reg, "strength_max"):
        raise UserError(f"reg={name} does not say at which strength its solution is 0, where a path begins: {give}")
    if not are_convex(experiment.objective):
        raise UserError(f"objective={experiment.names['objective']} is not convex, so that no {number} of reg={name} "
                        f"is known to begin or end a path: {give}")  # fmt: skip
    if number == "strength":
        unit, own = replace(experiment, reg=reg.with_value(number, 1.0)), experiment.algo.has_personal_models
        found = (reference.compute_client_strength_max if own else reference.compute_strength_max)(unit, data, give)
        if found <= 0:
            raise UserError(f"0 is optimal with reg={name} of any strength: the features say nothing of the target")
        whose = ", for each client alone" if own else ""
        return found, f"the smallest strength at which all penalised coefficients are 0, on all training rows{whose}"
    return _free_radius(experiment, data), "about the radius of the solution without constraint on all training rows"


def _free_radius(experiment: Experiment, data: FederatedData) -> float:
    """The radius of the ball that holds the solution without constraint, as far as the solver comes."""
    with jax.enable_x64(True):
        problem = build_problem(experiment, data)
        free = replace(problem, regularizer=NoRegularizer(apply_to=list(problem.regularized)))
        batch = reference.gather_rows(data, experiment.settings.client_weighting)
        for now in solver.minimize(free, batch, _FREE, _ITERATIONS):  # noqa: B007
            pass
        return max(_radius(experiment.reg, now.w[name]) for name in problem.regularized)


def _radius(reg: Regularizer, w: jax.Array) -> float:
    """The smallest radius of a ball in which w lies, by bisection."""

    def outside(radius: float) -> bool:
        ball = reg.with_value("radius", radius)
        return float(ball.violation(w)) > 1e-9 * float(jnp.linalg.norm(w.ravel()))  # type: ignore[attr-defined]

    if not float(jnp.abs(w).max()) > 0:
        raise UserError("the solution without constraint is 0: the features say nothing of the target")
    low = high = float(jnp.abs(w).max())
    while outside(high):
        high *= 2
    while not outside(low):
        low /= 2
    while high / low > 1.001:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if outside(middle) else (low, middle)
    return high
