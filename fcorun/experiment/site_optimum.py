"""The certified optimum of a problem whose rows stay at sites, by accelerated proximal gradient on the sites' sums.

A step needs one message, the sums of gradients at a point; its length follows from the sites' bounds on the curvature.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from fcorun.base.system.files import check_interrupted
from fcorun.data.rows.site_rows import SiteRows
from fcorun.engine.remote.certificate import REFERENCE, CertificateRequests
from fcorun.methods.problem.duality_gap import MAX_INTERCEPT_STEPS, dual_scale, duality_gap
from fcorun.methods.problem.problem import Problem, Vector

MAX_STEPS, STEPS_PER_CERTIFICATE = 1000, 25
MAX_CERTIFICATES = MAX_STEPS // STEPS_PER_CERTIFICATE + 1
MAX_GRADIENTS = MAX_STEPS + 2 * MAX_CERTIFICATES  # a certificate is of a model, and of the one with its best intercept
MAX_LOSSES = MAX_INTERCEPT_STEPS * MAX_CERTIFICATES


def minimize_over_sites(problem: Problem, rows: SiteRows, tolerance: float) -> dict[str, Any]:
    """Return the optimum as ``compute_optimum`` does. Call under enable_x64.

    The method and the stopping rule are those of ``fcorun.methods.problem.solver``, with a fixed length of steps.
    """
    requests = CertificateRequests(rows, problem, 1, REFERENCE)
    curvature = rows.pooled_smoothness()
    w = problem.prox(problem.zeros(jnp.float64), 0.0)
    v, momentum, scale = w, 1.0, 0.0
    for step in range(MAX_STEPS + 1):
        check_interrupted()
        if step % STEPS_PER_CERTIFICATE == 0:
            objective, gap = _certify(problem, requests, w)
            scale = scale or abs(objective)
            certified = abs(gap) <= tolerance * scale
            if certified or not np.isfinite(objective) or step == MAX_STEPS:
                break
        new = problem.prox(v - _gradient(problem, requests, v) / curvature, 1 / curvature)
        restart = (v - new).dot(new - w) > 0
        momentum = 1.0 if restart else momentum
        next_momentum = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        v = new + (new - w) * (0.0 if restart else (momentum - 1) / next_momentum)
        w, momentum = new, next_momentum
    return {
        "objective": objective,
        "certificate": gap,
        "kind": "duality gap",
        "certified": bool(certified),
        "iterations": step,
    }


def _gradient(problem: Problem, requests: CertificateRequests, w: Vector) -> Vector:
    """Return the gradient of F at w."""
    sums = requests.residuals(_as_batch(w))
    gradient = {"weights": sums.gradient[0] + problem.objective.ridge * w["weights"]}
    if "bias" in w:
        gradient["bias"] = sums.losses.slope[0]
    return Vector(gradient)


def _certify(problem: Problem, requests: CertificateRequests, w: Vector) -> tuple[float, float]:
    """Return the objective at w with the best intercept, and its duality gap."""
    models, sums = requests.residuals_at_best_intercept(_as_batch(w))
    w = Vector({name: jnp.asarray(value[0]) for name, value in models.items()})
    objective = sums.losses.loss[0] + problem.ridge(w) + problem.psi(w)
    of_run = type(sums)(type(sums.losses)(*(value[0] for value in sums.losses)), sums.gradient[0])
    scale = jnp.asarray(dual_scale(problem, of_run.gradient), jnp.float64)
    conjugates = requests.conjugates(models, scale[None])[0]
    return float(objective), float(duality_gap(problem, objective, of_run, scale, conjugates))


def _as_batch(w: Vector) -> dict[str, Any]:
    """Return a model as a batch of one run."""
    return {name: value[None] for name, value in w.items()}
