"""The distance of a run's end from a stationary point: the KKT residual, expressed as a movement of the coefficients.

An objective that hardly falls may hide coefficients that are far from the optimum's. A point is optimal if steps of
proximal gradient on all rows leave it in place. Accelerated steps, which fit any regularizer, are taken from the end
of the run, and the largest change of a coefficient is reported.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.system.files import Keyed
from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.advice import advise
from fcorun.experiment.build import build_problem
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.optimality_gap import compile_solver
from fcorun.experiment.requirements import are_convex
from fcorun.methods.algorithms.algorithm import Algorithm
from fcorun.methods.objectives.objective import is_linear_model
from fcorun.methods.problem import solver
from fcorun.methods.problem.problem import Vector
from fcorun.methods.problem.solver import gather_rows
from fcorun.methods.regularizers.none import NoRegularizer

STEPS = solver.STEPS_PER_CERTIFICATE
SMALL_MOVEMENT = 0.02  # relative to the largest coefficient: a smaller movement counts as standing still
_MAX_ENTRIES_SINGLE_RUN = 2e6  # entries of the features for which a single run takes the steps, about half a second
_MAX_ENTRIES_OF_EACH_RUN = 2e5  # entries for which each of many runs takes them, about a tenth of a second


def can_measure_movement(experiment: PreparedExperiment, data: FederatedData, *, single_run: bool) -> bool:
    """Return whether the run minimizes a convex F + psi of a linear model on rows in memory with few enough entries."""
    algo, reg = experiment.algo, experiment.reg
    if not isinstance(algo, Algorithm) or algo.has_personal_models or experiment.settings.frozen:
        return False
    minimizes_psi = bool(algo.traits.psi_sides) or isinstance(reg, NoRegularizer)
    if not (minimizes_psi and are_convex(experiment.objective, reg) and experiment.mirror.domain_contains(reg)):
        return False
    if not is_linear_model(type(experiment.objective)):
        return False
    if data.train.why_not_in_memory:
        return False
    max_size = _MAX_ENTRIES_SINGLE_RUN if single_run else _MAX_ENTRIES_OF_EACH_RUN
    return data.train.x.size * max(len(data.classes), 1) <= max_size


def measure_movement(experiment: PreparedExperiment, data: FederatedData, solution: dict[str, np.ndarray]) -> float:
    """Measure by how much 50 accelerated proximal gradient steps move a coefficient at most, as a share of the largest.

    Coefficients of features are compared in units of the features' sizes. The movement of the intercept is divided by
    the intercept or by the largest coefficient, whichever is larger. Returns 0 where the objective is not finite.
    """
    with jax.enable_x64(True):
        problem = build_problem(experiment, data)
        batch = gather_rows(data, experiment.settings.client_weighting)
        start = Vector({name: jnp.asarray(value, jnp.float64) for name, value in solution.items()})
        compiled = compile_solver(Keyed(experiment.batch_key, problem), batch.x.shape[1])
        *_, last = solver.minimize(problem, batch, 1e-9, STEPS, start=start, compiled=compiled)
        feature_sizes = np.sqrt(np.asarray(batch.weight @ jnp.square(problem.features(batch.x, jnp.float64))))
        before, after = _scale_weights(start, feature_sizes), _scale_weights(last.w, feature_sizes)
        if not np.isfinite(last.objective):
            return 0.0
    largest_weight = max(float(np.abs(before["weights"]).max()), float(np.abs(after["weights"]).max()))
    movement = 0.0
    for name, values in before.items():
        largest = max(largest_weight, float(np.abs(values).max()), float(np.abs(after[name]).max()))
        if largest > 0:
            movement = max(movement, float(np.abs(after[name] - values).max()) / largest)
    return movement


def describe_movement(experiment: PreparedExperiment, data: FederatedData, movement: float, *, falling: bool) -> str:
    """Return a sentence on a ``movement`` of the coefficients, with advice; empty for a small one.

    Args:
        falling: whether the objective was still falling when the run ended.
    """
    if movement <= SMALL_MOVEMENT:
        return ""
    return (f"the objective has nearly stopped falling, but the coefficients have not reached the optimum: {STEPS} "
            f"more steps of a solver on all rows change one of them by {float(f'{100 * movement:.2g}'):g} % of the "
            f"largest: {advise(experiment, data, falling)}")  # fmt: skip


def _scale_weights(w: Vector, feature_sizes: np.ndarray) -> dict[str, np.ndarray]:
    """Return the parameters as arrays, with the weights of features multiplied by the features' sizes."""
    arrays = {name: np.asarray(values) for name, values in w.items()}
    arrays["weights"] = arrays["weights"].reshape(len(feature_sizes), -1) * feature_sizes[:, None]
    return arrays
