"""The certified optimum of a problem, and the gap between it and the objective at the end of a run."""

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.algorithms.base import Algorithm
from fcorun.config import code_identifier, field_marks, identity_fields
from fcorun.datasets.base import FederatedData
from fcorun.engine.evaluate import objective_weights
from fcorun.engine.remote.certificate import NULL, CertificateRequests
from fcorun.errors import UserError
from fcorun.experiment.advice import advise, suggest_algorithms
from fcorun.experiment.build import build_problem, build_schedule
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.identification import Pattern, find_pattern
from fcorun.experiment.requirements import are_convex
from fcorun.experiment.site_optimum import minimize_over_sites
from fcorun.metrics import IGNORES_PSI, NEAR_OPTIMUM
from fcorun.objectives.least_squares import LeastSquares
from fcorun.problem import solver, strength_max
from fcorun.problem.problem import Batch, Problem, Vector
from fcorun.problem.solver import has_duality_gap
from fcorun.regularizers.base import Regularizer
from fcorun.regularizers.none import NoRegularizer
from fcorun.rows.site_rows import SiteRows
from fcorun.system.files import Keyed, cache_dir, write_atomically

# All rows as one batch, and the certified optimum: the reference of suboptimality, computed once and cached on disk.

TOLERANCE, MAX_ITERATIONS = 1e-9, 100_000


def gather_rows(data: FederatedData, client_weighting: str, rows: slice = slice(None)) -> Batch:
    """Return rows of all clients as one batch with their weights in F. Call under enable_x64: reals become float64."""
    return _make_batch(data, rows, _normalise(objective_weights(data, client_weighting)[rows]))


def gather_site_rows(data: FederatedData, client_weighting: str) -> Batch:
    """Return the rows of a site as one batch, whose weights in F sum to the site's share. Call under enable_x64."""
    return _make_batch(data, slice(None), objective_weights(data, client_weighting))


def _normalise(weight: np.ndarray) -> np.ndarray:
    return weight / weight.sum()


def _make_batch(data: FederatedData, rows: slice | np.ndarray, weight: np.ndarray) -> Batch:
    """Return the batch of these rows with ``weight``."""
    x, y = data.train.x[rows], data.train.y[rows]
    x = x.astype(np.float64) if x.dtype.kind == "f" else x
    y = y.astype(np.int32 if data.task == "multiclass" else np.float64)
    offset = None if data.train.offset is None else jnp.asarray(data.train.offset[rows], jnp.float64)
    assert data.train.client is not None
    client = jnp.asarray(data.train.client[rows], jnp.int32)
    return Batch(jnp.asarray(x), jnp.asarray(y), jnp.asarray(weight), offset=offset, client=client)


def compute_optimum(experiment: PreparedExperiment, data: FederatedData) -> dict:
    """Compute the optimum of F + psi, or read it from the cache. That of rows that stay at sites is not cached.

    Returns "objective", "certificate", "kind", "certified" and "iterations", and of a certified optimum of rows in one
    place "pattern", its nonzero entries or rank (``fcorun.experiment.identification``). The pattern is None if psi
    promotes none, or if more iterations change it.
    """
    if isinstance(data.train, SiteRows):
        with jax.enable_x64(True):
            return minimize_over_sites(build_problem(experiment, data), data.train, TOLERANCE)
    path = _cache_path(experiment, "optimum")
    try:
        cached = json.loads(path.read_text(encoding="utf-8"))
        if "pattern" in cached:
            return cached
    except (OSError, ValueError):
        pass
    with jax.enable_x64(True):
        batch = gather_rows(data, experiment.settings.client_weighting)
        problem = build_problem(experiment, data)
        compiled = solver.compile_programs(problem, batch.x.shape[1])
        (last,) = deque(solver.minimize(problem, batch, TOLERANCE, MAX_ITERATIONS, compiled=compiled), maxlen=1)
        pattern = _find_settled_pattern(problem, batch, last, compiled) if last.certified else None
    optimum = {
        "objective": last.objective,
        "certificate": last.certificate,
        "kind": last.certificate_kind,
        "certified": last.certified,
        "iterations": last.iteration,
        "pattern": pattern,
    }
    if last.certified:
        write_atomically(path, json.dumps(optimum))
    return optimum


def _find_settled_pattern(
    problem: Problem, batch: Batch, last: solver.Iterate, compiled: solver.SolverPrograms
) -> Pattern | None:
    """Return the pattern of a certified optimum; None if psi promotes none, or if the solver, going on, changes it."""
    reg, names = problem.regularizer, problem.regularized
    pattern = find_pattern(reg, names, {name: np.asarray(last.w[name]) for name in names})
    if pattern is None:
        return None
    tolerance, iterations = 1e-3 * TOLERANCE, last.iteration + 4 * solver.STEPS_PER_CERTIFICATE
    iterates = solver.minimize(problem, batch, tolerance, iterations, start=last.w, compiled=compiled)
    (refined,) = deque(iterates, maxlen=1)
    refined_pattern = find_pattern(reg, names, {name: np.asarray(refined.w[name]) for name in names})
    return pattern if refined_pattern == pattern else None


# The smallest strength at which 0 is optimal (lambda_max), and strengths relative to it.


def resolve_strength(experiment: PreparedExperiment, data: FederatedData) -> Regularizer:
    """Return the regularizer, with ``relative`` (if set) turned into a strength."""
    reg = experiment.reg
    if reg.relative_or_none is None:
        return reg
    return replace(reg, strength=reg.relative * compute_strength_max(experiment, data), relative=None)  # type: ignore


def compute_strength_max(
    experiment: PreparedExperiment, data: FederatedData, advice: str = "leave reg.relative out"
) -> float:
    """Compute the smallest strength at which 0 is optimal, or read it from the cache.

    Of rows that stay at sites, the strength follows from their sums, and is not cached: the data may have changed.
    Raises UserError, which ends with ``advice``, if no strength makes 0 optimal.
    """
    if isinstance(data.train, SiteRows):
        with jax.enable_x64(True):
            strength = _strength_max_of_sites(build_problem(experiment, data), data.train)
        return _check_strength(strength, experiment, advice)

    def compute(problem: Problem) -> float:
        return strength_max.strength_max(problem, gather_rows(data, experiment.settings.client_weighting))

    return _cached_strength("strength", experiment, data, compute, advice)


def _strength_max_of_sites(problem: Problem, rows: SiteRows) -> float:
    """Return the smallest strength at which 0 is optimal, from the sites' sums at the model without features."""
    null_model = {name: jnp.zeros((1, *shape)) for name, shape in problem.shapes.items()}
    _, sums = CertificateRequests(rows, problem, 1, NULL).residuals_at_best_intercept(null_model)
    return float(problem.regularizer.strength_max(sums.gradient[0]))  # type: ignore[attr-defined]


def compute_client_strength_max(experiment: PreparedExperiment, data: FederatedData, advice: str) -> float:
    """Compute the smallest strength at which 0 is optimal for each client on its own rows, or read it from the cache.

    Raises UserError as ``compute_strength_max``.
    """

    def compute(problem: Problem) -> float:
        client_strength_max = strength_max.make_strength_max(problem, data.train.x.shape[1])
        return max(client_strength_max(batch) for batch in _client_batches(data))

    return _cached_strength("strength of each client", experiment, data, compute, advice)


def _client_batches(data: FederatedData) -> Iterator[Batch]:
    """Yield the rows of each client, padded to a power of two so that few shapes are compiled.

    The padding repeats the client's last row with weight 0.
    """
    row_weights = np.ones(len(data.train)) if data.train.relative_weight is None else data.train.relative_weight
    for start, stop in pairwise(data.train.offsets.tolist()):
        positions = np.arange(start, start + 2 ** (stop - start - 1).bit_length())
        rows = np.minimum(positions, stop - 1)
        yield _make_batch(data, rows, _normalise(np.where(positions < stop, row_weights[rows], 0)))


def _cached_strength(
    kind: str, experiment: PreparedExperiment, data: FederatedData, compute: Callable[[Problem], float], advice: str
) -> float:
    """Return ``compute(problem)``, called under enable_x64, or its result from the cache.

    Raises UserError, which ends with ``advice``, if the result is not finite.
    """
    path = _cache_path(experiment, kind, without=("strength", "relative"))
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    with jax.enable_x64(True):
        strength = _check_strength(compute(build_problem(experiment, data)), experiment, advice)
    write_atomically(path, json.dumps(strength))
    return strength


def _check_strength(strength: float, experiment: PreparedExperiment, advice: str) -> float:
    if not np.isfinite(strength):
        raise UserError(f"no strength makes 0 optimal with reg={experiment.names['reg']} as it is set: {advice}")
    return strength


def _cache_path(experiment: PreparedExperiment, kind: str, without: tuple[str, ...] = ()) -> Path:
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
        TOLERANCE,
    ]
    digest = hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()
    return cache_dir("optima") / f"{digest[:32]}.json"


# The gap between the objective at the end of a run and the optimum, for runs whose rates fcorun resolved.

_TIGHT = 0.03  # bounds on the optimum are tight if they differ by at most this share of the gap
_MAX_NUMBERS_READ = 2e9  # by the solver that continues from the end of a run
_MAX_CONTINUED_ITERATIONS = 2000  # of that solver
_CLOSED_FORM = "closed form"  # the kind of certificate of least squares without a regularizer
_MAX_CLOSED_FORM_SIZE = 2**24  # entries of the largest matrix of features solved in closed form


@dataclass(frozen=True)
class OptimalityGap:
    """The gap between the objective at the end of a run and the optimum.

    The best known objective is the lowest one that the run, or the solver continuing from its end, has reached.

    Attributes:
        kind, value: the certificate: the final objective minus the best lower bound on the optimum; without such a
            bound, the norm of the prox-gradient map at the solver's last iterate.
        above: the gap to the best known objective, relative to that; None if the best known objective is about 0.
        left: the gap to the best known objective, relative to the decrease possible from the start; None if no
            decrease was possible.
        sure: whether the best known objective is the optimum's, up to a small share of the gap.
        near: whether the final objective is at most 1 % above the optimum, relative to the optimum's objective (or to
            the decrease since the start if that is about 0). None: the optimum has no lower bound, and the solver
            found no much lower objective.
        certified: whether the solver converged.
    """

    kind: str
    value: float
    above: float | None
    left: float | None
    sure: bool
    near: bool | None
    certified: bool

    def describe(self, experiment: PreparedExperiment, data: FederatedData, *, falling: bool = False) -> str:
        """Return a sentence on the gap with advice; empty if the run ended near the optimum.

        Args:
            falling: whether the objective was still falling when the run ended.
        """
        if self.near or (self.near is None and self.certified):
            return ""
        if self.near is None:
            return (f"how far the objective is from the optimum is not known ({self.kind} {self.value:.3g}): "
                    "reference=true works it out")  # fmt: skip
        at_least = "" if self.sure else "at least "
        if self.above is not None:
            statement = f"the objective ended {at_least}{_percent(self.above)} above the optimum"
        else:
            statement = f"{at_least}{_percent(self.left or 0)} of what was to be gained is left"
        return f"{statement}: {advise(experiment, data, falling)}"


def _percent(share: float) -> str:
    """Format a share in per cent, with two significant digits."""
    return f"{float(f'{100 * share:.2g}'):g} %"


def can_assess_gap(experiment: PreparedExperiment, resolved_values: dict | None) -> bool:
    """Return whether the run aims at a convex problem's optimum with steps that follow from curvature bounds."""
    if resolved_values is None or "least" not in resolved_values:
        return False
    return any(name.startswith("algo.") for name in resolved_values) and aims_at_optimum(experiment)


def aims_at_optimum(experiment: PreparedExperiment) -> bool:
    """Return whether the run minimises a convex F + psi with one model for all clients."""
    algo, reg = experiment.algo, experiment.reg
    if not isinstance(algo, Algorithm) or algo.has_personal_models or experiment.settings.frozen:
        return False
    minimises_psi = bool(algo.traits.psi_sides) or isinstance(reg, NoRegularizer)
    return minimises_psi and are_convex(experiment.objective, reg) and experiment.mirror.domain_contains(reg)


def explain_unassessed_gap(experiment: PreparedExperiment, data: FederatedData) -> str:
    """Return a sentence on a run whose gap to the optimum is neither assessed nor measured.

    The sentence is empty if ``reference`` or ``gap`` measures the gap already, or ``reference`` could not: the problem
    has no certified optimum, or its rows are not in memory.
    """
    algo, reg, names = experiment.algo, experiment.reg, experiment.names
    if not isinstance(algo, Algorithm) or algo.has_personal_models or experiment.settings.frozen:
        return ""
    if experiment.settings.reference or experiment.settings.gap or data.train.why_not_in_memory:
        return ""
    if not are_convex(experiment.objective, reg) or not experiment.mirror.domain_contains(reg):
        return ""
    if experiment.ignores_regularizer:
        alternatives = suggest_algorithms(experiment, build_schedule(experiment, data))
        advice = f", algo={' or '.join(alternatives)} reaches the minimum" if alternatives else ""
        return (f"algo={names['algo']} {IGNORES_PSI}: its solution does not minimise F + psi with "
                f"reg={names['reg']}; reference=true measures how far it is above the minimum{advice}")  # fmt: skip
    could_be_auto = any("or auto" in marks for marks in field_marks(type(algo)).values())
    reason = ", for its rates were given" if could_be_auto else ""
    return f"how near the optimum it ended is not known{reason}: reference=true measures it"


def assess_gap(
    experiment: PreparedExperiment,
    data: FederatedData,
    solution: dict[str, np.ndarray],
    objectives: tuple[float, float],
    strong_convexity: float,
    duality_gap: float = np.inf,
) -> OptimalityGap:
    """Assess the gap of a run of this experiment that ended at ``solution``.

    Args:
        objectives: the first and the last objective of the run; the last one is finite.
        strong_convexity: a lower bound mu on the curvature of F.
        duality_gap: the duality gap at the end, if it is known. A small one needs no solver.
    """
    last = objectives[1]
    measured = summarize_duality_gap(objectives, duality_gap)
    if measured.near:
        return measured
    with jax.enable_x64(True):
        problem = build_problem(experiment, data)
        batch = gather_rows(data, experiment.settings.client_weighting)
        optimum = _solve_in_closed_form(problem, batch)
        if optimum is not None:
            return _summarize_gap(objectives, min(optimum, last), optimum, (_CLOSED_FORM, last - optimum, True))
        start = Vector({name: jnp.asarray(value, jnp.float64) for name, value in solution.items()})
        compiled = compile_solver(Keyed(experiment.batch_key, problem), batch.x.shape[1])
        return _search_from(start, problem, batch, objectives, strong_convexity, compiled=compiled)


def summarize_duality_gap(objectives: tuple[float, float], duality_gap: float) -> OptimalityGap:
    """Return the gap given by the first and the last objective of a run, and the duality gap at its end."""
    last = objectives[1]
    return _summarize_gap(objectives, last, last - duality_gap, ("duality gap", duality_gap, False))


def describe_unknown_gap(experiment: PreparedExperiment, data: FederatedData) -> str:
    """Return a sentence on a run that did not measure its gap, whose rows stay at their sites."""
    if has_duality_gap(build_problem(experiment, data), data.train.x.shape[1]):
        return "how near the optimum it ended is not known: gap=true measures it"
    return "how near the optimum it ended is not judged, for that takes all rows in one place"


def _summarize_gap(
    objectives: tuple[float, float], best: float, lower_bound: float, certificate: tuple[str, float, bool]
) -> OptimalityGap:
    """Return the gap given by the best known objective and a lower bound on the optimum (-inf: none).

    Args:
        certificate: the kind and value of the solver's certificate, and whether the solver converged.
    """
    first, last = objectives
    kind, value, certified = certificate
    gain = first - best if np.isfinite(first) else 0.0
    best_is_tiny = abs(best) <= NEAR_OPTIMUM * gain
    scale = gain if best_is_tiny else abs(best)
    sure = bool(np.isfinite(lower_bound) and best - lower_bound <= _TIGHT * (last - lower_bound))
    near = None
    if last - lower_bound <= NEAR_OPTIMUM * scale:
        near = True
    elif sure or last - best > NEAR_OPTIMUM * scale:
        near = False
    above = None
    if not best_is_tiny:
        above = (last - best) / abs(best) if best else 0.0
    return OptimalityGap(
        kind=kind,
        value=last - lower_bound if np.isfinite(lower_bound) else value,
        above=above,
        left=(last - best) / gain if gain > 0 else None,
        sure=sure,
        near=near,
        certified=certified,
    )


def _search_from(
    start: Vector,
    problem: Problem,
    batch: Batch,
    objectives: tuple[float, float],
    strong_convexity: float,
    compiled: solver.SolverPrograms,
) -> OptimalityGap:
    """Assess the gap by a solver that continues from ``start``, the end of the run."""
    n_features = batch.x.shape[1]
    has_gap = has_duality_gap(problem, n_features)
    n_outputs = start["weights"].size // n_features if "weights" in start else 1
    affordable = max(_MAX_NUMBERS_READ / (batch.x.size * n_outputs), solver.STEPS_PER_CERTIFICATE)
    max_iterations = int(min(_MAX_CONTINUED_ITERATIONS, affordable))
    tolerance = 1e-9 if has_gap else 1e-6
    best, lower_bound, gap = objectives[1], -np.inf, None
    for iterate in solver.minimize(problem, batch, tolerance, max_iterations, start=start, compiled=compiled):
        best = min(best, iterate.objective)
        if has_gap:
            lower_bound = max(lower_bound, iterate.objective - iterate.certificate)
        elif strong_convexity > 0 and isinstance(problem.regularizer, NoRegularizer):
            gradient_norm = float(problem.gradient(iterate.w, batch).norm())  # F >= F(w) - ||g||^2 / 2 mu
            lower_bound = max(lower_bound, iterate.objective - gradient_norm**2 / (2 * strong_convexity))
        certificate = (iterate.certificate_kind, iterate.certificate, iterate.certified)
        gap = _summarize_gap(objectives, best, lower_bound, certificate)
        if gap.near or gap.sure:
            break
    assert gap is not None
    return gap


def _solve_in_closed_form(problem: Problem, batch: Batch) -> float | None:
    """Return the optimum of least squares without a regularizer, whatever the units of its features.

    Returns None for other problems, and for matrices of features that are too large.
    """
    if not isinstance(problem.objective, LeastSquares) or problem.objective.ridge:
        return None
    if not isinstance(problem.regularizer, NoRegularizer) or batch.x.size > _MAX_CLOSED_FORM_SIZE:
        return None
    root_weight = np.sqrt(np.asarray(batch.weight))
    x = root_weight[:, None] * problem.objective.design(np.asarray(problem.features(batch.x, jnp.float64)))
    offset = 0.0 if batch.offset is None else np.asarray(batch.offset)
    y = root_weight * (np.asarray(batch.y) - offset)
    column_norms = np.linalg.norm(x, axis=0)
    x = x / np.where(column_norms > 0, column_norms, 1)
    residual = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    return float(residual @ residual)


@lru_cache(maxsize=1)
def compile_solver(problem: Keyed[Problem], n_features: int) -> solver.SolverPrograms:
    """Return the solver's programs for a problem on ``n_features`` features, compiled once for each key."""
    return solver.compile_programs(problem.value, n_features)
