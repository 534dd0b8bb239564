"""How far from stationary a run has ended: the KKT residual, told as a movement of the coefficients.

An objective that hardly falls may hide coefficients that are far from the optimum's. A point is optimal where steps of
proximal gradient on all rows leave it where it is. So some accelerated ones, which fit any psi, are taken from there.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.algorithms.base import Algorithm
from fcorun.datasets.base import FederatedData
from fcorun.experiment.advice import advise
from fcorun.experiment.build import build_problem
from fcorun.experiment.compatibility import are_convex
from fcorun.experiment.experiment import Experiment
from fcorun.experiment.optimality_gap import compile_solver
from fcorun.experiment.reference import gather_rows
from fcorun.objectives.base import is_linear_model
from fcorun.problem import solver
from fcorun.problem.vector import Vector
from fcorun.regularizers.none import NoRegularizer
from fcorun.system.cache import Keyed

STEPS = solver.STEPS_PER_CERTIFICATE
SMALL_MOVEMENT = 0.02  # of the largest coefficient: what is called leaving it where it is
_ALONE, _OF_MANY = 2e6, 2e5  # numbers of the rows, at most: of a run by itself, of one of many; half a second, a tenth


def can_measure_movement(experiment: Experiment, data: FederatedData, *, single_run: bool) -> bool:
    """Return whether the run minimises a convex F + psi of a linear model, on rows few enough to be gone through."""
    algo, reg = experiment.algo, experiment.reg
    if not isinstance(algo, Algorithm) or algo.has_personal_models or experiment.settings.frozen:
        return False
    minimised = bool(algo.traits.psi_sides) or isinstance(reg, NoRegularizer)
    if not (minimised and are_convex(experiment.objective, reg) and experiment.mirror.domain_contains(reg)):
        return False
    if (
        not is_linear_model(type(experiment.objective))
        or data.on_disk
        or data.host_bounds is not None
        or data.generated is not None
    ):
        return False
    return data.x.size * max(len(data.classes), 1) <= (_ALONE if single_run else _OF_MANY)


def measure_movement(experiment: Experiment, data: FederatedData, solution: dict[str, np.ndarray]) -> float:
    """Return by how much steps of proximal gradient move a coefficient at most, as a share of the largest one.

    Coefficients of features are compared in units of the features' sizes. The intercept, which may be much larger, is
    compared with itself.
    """
    with jax.enable_x64(True):
        problem, batch = build_problem(experiment, data), gather_rows(data, experiment.settings.client_weighting)
        start = Vector({name: jnp.asarray(value, jnp.float64) for name, value in solution.items()})
        made = compile_solver(Keyed(experiment.batch_key, problem), batch.x.shape[1])
        *_, end = solver.minimize(problem, batch, 1e-9, STEPS, start=start, compiled=made)
        sizes = np.sqrt(np.asarray(batch.weight @ jnp.square(problem.features(batch.x, jnp.float64))))
        before, after = (_sized(w, sizes) for w in (start, end.w))
        if not np.isfinite(end.objective):
            return 0.0
    found, weights = 0.0, max(float(np.abs(each).max()) for each in (before["weights"], after["weights"]))
    for name, values in before.items():
        largest = max(weights, float(np.abs(values).max()), float(np.abs(after[name]).max()))
        found = max(found, float(np.abs(after[name] - values).max()) / largest if largest > 0 else 0.0)
    return found


def describe_movement(experiment: Experiment, data: FederatedData, moved: float, *, falling: bool) -> str:
    """Return what a user should know of a run whose coefficients ``moved``, and what may help; empty for little."""
    if moved <= SMALL_MOVEMENT:
        return ""
    return (f"the objective has nearly stopped falling, but the coefficients have not reached the optimum: {STEPS} "
            f"more steps of a solver on all rows change one of them by {float(f'{100 * moved:.2g}'):g} % of the "
            f"largest: {advise(experiment, data, falling)}")  # fmt: skip


def _sized(w: Vector, sizes: np.ndarray) -> dict[str, np.ndarray]:
    """Return the parameters as arrays, the weights of features times the features' sizes."""
    found = {name: np.asarray(values) for name, values in w.items()}
    found["weights"] = found["weights"].reshape(len(sizes), -1) * sizes[:, None]
    return found
