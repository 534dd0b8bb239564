"""The reference optimum of F + psi, its zeros or its rank, and the smallest strength at which 0 is optimal.

Results on rows in one place are cached on disk. Of rows that stay at sites, they follow from the sites' sums: a step of
accelerated proximal gradient needs one message, the sums of gradients at a point, and its length follows from the
sites' bounds on the curvature.
"""

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.config import code_identifier, identity_fields
from fcorun.base.errors import UserError
from fcorun.base.system.files import Keyed, cache_dir, check_interrupted, write_atomically
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.site_rows import SiteRows
from fcorun.engine.engine import RESULTS_VERSION
from fcorun.engine.remote.certificate import NULL, REFERENCE, CertificateRequests
from fcorun.experiment.build import build_problem
from fcorun.experiment.classifiers import name_separating_features
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.objectives.intercepts import MAX_INTERCEPT_STEPS
from fcorun.methods.problem import solver
from fcorun.methods.problem.duality_gap import dual_scale, duality_gap
from fcorun.methods.problem.problem import Batch, Problem, Vector
from fcorun.methods.problem.solver import gather_rows, make_batch
from fcorun.methods.regularizers.nuclear import Nuclear, NuclearBall
from fcorun.methods.regularizers.regularizer import Regularizer

TOLERANCE = 1e-9
MAX_ITERATIONS = 100_000


def compute_optimum(experiment: PreparedExperiment, data: FederatedData) -> dict:
    """Compute the optimum of F + psi, or read it from the cache.

    Only a certified optimum is cached, and none of rows that stay at sites.

    Returns "objective", "certificate", "kind", "certified" and "iterations", and of a certified optimum of rows in one
    place "pattern", its nonzero entries or rank. The pattern is None if psi
    promotes none, or if more iterations change it.
    """
    if isinstance(data.train, SiteRows):
        with jax.enable_x64(True):
            return minimize_over_sites(build_problem(experiment, data), data.train, TOLERANCE)
    path = cache_path(experiment, "optimum")
    cached = read_cached(path)
    if isinstance(cached, dict) and "pattern" in cached:
        return cached
    with jax.enable_x64(True):
        batch = gather_rows(data, experiment.settings.client_weighting)
        problem = build_problem(experiment, data)
        compiled = solver.compile_once(Keyed(experiment.problem_key, problem), batch.x.shape[1])
        (last,) = deque(solver.minimize(problem, batch, TOLERANCE, MAX_ITERATIONS, compiled=compiled), maxlen=1)
        pattern = None
        if last.certified:
            reg, names = problem.regularizer, problem.regularized
            pattern = find_pattern(reg, names, {name: np.asarray(last.w[name]) for name in names})
        if pattern is not None:  # the solver goes on: does that change the pattern?
            tolerance, iterations = 1e-3 * TOLERANCE, last.iteration + 4 * solver.STEPS_PER_CERTIFICATE
            iterates = solver.minimize(problem, batch, tolerance, iterations, start=last.w, compiled=compiled)
            (refined,) = deque(iterates, maxlen=1)
            if find_pattern(reg, names, {name: np.asarray(refined.w[name]) for name in names}) != pattern:
                pattern = None
    optimum = {
        "objective": last.objective,
        "certificate": last.certificate,
        "kind": last.certificate_kind,
        "certified": last.certified,
        "iterations": last.iteration,
        "pattern": pattern,
    }
    if last.certified:
        write_cached(path, optimum)
    return optimum


def _to_text(value: object) -> str:
    """Return a value that JSON does not have as text; ``str`` would leave out entries of a long array."""
    return f"{value.dtype} {value.tolist()}" if isinstance(value, np.ndarray) else str(value)


def cache_path(experiment: PreparedExperiment, kind: str, without: tuple[str, ...] = ()) -> Path:
    """Return the file of a cached result, named by the hash of the problem; ``without`` these fields of psi."""
    reg_fields = {name: value for name, value in identity_fields(experiment.reg).items() if name not in without}
    content = [
        kind,
        experiment.fingerprint,
        code_identifier(experiment.objective),
        repr(experiment.objective),
        code_identifier(experiment.reg),
        sorted(reg_fields.items(), key=str),
        experiment.settings.client_weighting,
        solver.VERSION,
        RESULTS_VERSION,
        TOLERANCE,
    ]
    digest = hashlib.sha256(json.dumps(content, default=_to_text).encode()).hexdigest()
    return cache_dir("optima") / f"{digest[:32]}.json"


def read_cached(path: Path) -> Any:
    """Return a cached result, None if there is none or its file is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_cached(path: Path, result: Any) -> None:
    """Cache a result. On a full disk the result is not cached, and the next run computes it again."""
    with suppress(OSError):
        write_atomically(path, json.dumps(result))


# Identification: whether a solution has the zeros, or the rank, of the reference optimum.
#
# Zeros are exact. Methods whose last operation on w is a prox have exact zeros, means of models have not. The rank
# counts singular values above rounding.

Pattern = Mapping[str, int | list[int]]  # by parameter: the rank, or the indices of nonzero entries


def find_pattern(reg: Regularizer, names: Iterable[str], solution: Mapping[str, np.ndarray]) -> Pattern | None:
    """Return the pattern of a solution in the parameters ``names``; None if psi promotes neither zeros nor low rank."""
    if isinstance(reg, (Nuclear, NuclearBall)):
        return {name: int(np.linalg.matrix_rank(solution[name])) for name in names}
    if reg.sparse:
        return {name: np.flatnonzero(solution[name]).tolist() for name in names}
    return None


def count_errors(pattern: Pattern, solution: Mapping[str, np.ndarray]) -> int:
    """Count the entries that are zero in only one of a solution and the optimum, or the difference of their ranks."""
    errors = 0
    for name, expected in pattern.items():
        if isinstance(expected, int):
            errors += abs(int(np.linalg.matrix_rank(solution[name])) - expected)
        else:
            errors += len(np.setxor1d(np.flatnonzero(solution[name]), expected))
    return errors


def identification_metrics(pattern: Pattern, solution: Mapping[str, np.ndarray], rows: list, round_: int) -> dict:
    """Return the errors of a solution's pattern, and the round since when there have been none.

    ``rows`` are the run's earlier rows of metrics.csv. The round is NaN if the pattern has errors, so that the last
    evaluation of a run has the round from which on the pattern was the optimum's to the end.
    """
    errors = count_errors(pattern, solution)
    since = float("nan")
    if not errors:
        earlier = rows[-1].get("identified_round", since) if rows else since
        since = float(round_) if np.isnan(earlier) else earlier
    return {"pattern_errors": float(errors), "identified_round": since}


# The certified optimum of a problem whose rows stay at sites.

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


# The smallest strength at which 0 is optimal, lambda_max, and strengths relative to it.


def resolve_strength(experiment: PreparedExperiment, data: FederatedData) -> Regularizer:
    """Return the regularizer, with ``relative`` (if set) turned into a strength."""
    reg = experiment.reg
    if reg.relative_or_none is None:
        return reg
    return replace(reg, strength=reg.relative * compute_strength_max(experiment, data), relative=None)  # type: ignore


def compute_strength_max(
    experiment: PreparedExperiment,
    data: FederatedData,
    advice: str = "leave `reg.relative` out",
    *,
    of_each_client: bool = False,
) -> float:
    """Compute the smallest strength at which 0 is optimal, or read it from the cache.

    Of rows that stay at sites, the strength is not cached: the data may have changed. Raises UserError, which ends with
    ``advice``, if no strength makes 0 optimal.

    Args:
        of_each_client: return a strength at which 0 is optimal for every client on its own rows.
    """
    kind = "strength of each client" if of_each_client else "strength"
    path = cache_path(experiment, kind, without=("strength", "relative"))
    cached = read_cached(path)
    if isinstance(cached, float) and not data.train.stays_at_sites:
        return cached
    with jax.enable_x64(True):
        problem = build_problem(experiment, data)
        if isinstance(data.train, SiteRows):
            null_model = {name: jnp.zeros((1, *shape)) for name, shape in problem.shapes.items()}
            _, sums = CertificateRequests(data.train, problem, 1, NULL).residuals_at_best_intercept(null_model)
            strength = float(problem.regularizer.strength_max(sums.gradient[0]))  # type: ignore[attr-defined]
        elif of_each_client:
            client_strength_max = solver.make_strength_max(problem, data.train.x.shape[1])
            strength = max(client_strength_max(batch) for batch in _client_batches(data))
        else:
            try:
                strength = solver.strength_max(problem, gather_rows(data, experiment.settings.client_weighting))
            except solver.UnfittedFeatures as error:
                names = name_separating_features(experiment, data, problem.regularizer)
                raise UserError(f"{error}; {names}" if names else str(error)) from error
    if not np.isfinite(strength):
        raise UserError(f"no strength makes 0 optimal with `reg={experiment.names['reg']}` as it is set: {advice}")
    if not data.train.stays_at_sites:
        write_cached(path, strength)
    return strength


def _client_batches(data: FederatedData) -> Iterator[Batch]:
    """Yield the rows of each client, padded to a power of two so that few shapes are compiled.

    The padding repeats the client's last row with weight 0.
    """
    row_weights = np.ones(len(data.train)) if data.train.relative_weight is None else data.train.relative_weight
    for start, stop in pairwise(data.train.offsets.tolist()):
        positions = np.arange(start, start + 2 ** (stop - start - 1).bit_length())
        rows = np.minimum(positions, stop - 1)
        weight = np.where(positions < stop, row_weights[rows], 0)
        yield make_batch(data, rows, weight / weight.sum())
