"""The distance of a run from the optimum: the gap of its objective, what its coefficients lack, and what would help.

The gap is assessed for runs whose rates fcorun resolved. An objective that hardly falls may hide coefficients that are
far from the optimum's. A point is optimal if steps of proximal gradient on all rows leave it in place. Accelerated
steps, which fit any regularizer, are taken from the end of the run, and the largest change of a coefficient is
reported.
"""

from dataclasses import dataclass, fields

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.config import AUTO, field_marks, is_of_fcorun
from fcorun.base.errors import word
from fcorun.base.metrics import IGNORES_PSI, NEAR_OPTIMUM
from fcorun.base.system.files import Keyed
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.features import why_not_dense
from fcorun.engine.schedule import Schedule
from fcorun.experiment.build import build_problem, build_schedule, connect_clients
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.requirements import are_convex
from fcorun.methods.algorithms.algorithm import Algorithm, Method
from fcorun.methods.communication.aggregation import WeightedMean
from fcorun.methods.objectives.least_squares import LeastSquares
from fcorun.methods.objectives.objective import is_linear_model
from fcorun.methods.problem import solver
from fcorun.methods.problem.duality_gap import has_duality_gap
from fcorun.methods.problem.problem import Batch, Problem, Vector
from fcorun.methods.problem.solver import gather_rows
from fcorun.methods.regularizers.regularizer import Constraint, NoRegularizer

_TIGHT = 0.03  # bounds on the optimum are tight if they differ by at most this share of the gap
_MAX_NUMBERS_READ = 2e9  # by the solver that continues from the end of a run
_MAX_CONTINUED_ITERATIONS = 2000  # of that solver
_CLOSED_FORM = "closed form"  # the kind of certificate of least squares without a regularizer
_MAX_CLOSED_FORM_SIZE = 2**24  # entries of the largest matrix of features solved in closed form
STEPS = solver.STEPS_PER_CERTIFICATE
SMALL_MOVEMENT = 0.02  # relative to the largest coefficient: a smaller movement counts as standing still
_MAX_ENTRIES_SINGLE_RUN = 2e6  # entries of the features for which a single run takes the steps, about half a second
_MAX_ENTRIES_OF_EACH_RUN = 2e5  # entries for which each of many runs takes them, about a tenth of a second


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
            the decrease since the start if that is about 0). None: undecided, for the lower bound is missing or
            too low, and the solver found no objective that is more than 1 % lower.
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
            return word(f"how far the objective is from the optimum is not known ({self.kind} {self.value:.3g}): "
                    "`reference=true` works it out")  # fmt: skip
        at_least = "" if self.sure else "at least "
        if self.above is not None:
            statement = f"the objective ended {at_least}{_percent(self.above)} above the optimum"
        else:
            statement = f"{at_least}{_percent(self.left or 0)} of what was to be gained is left"
        return f"{statement}: {advise(experiment, data, falling)}"


def _percent(share: float) -> str:
    """Format a share in per cent, with two significant digits."""
    return f"{float(f'{100 * share:.2g}'):g} %"


def aims_at_optimum(experiment: PreparedExperiment) -> bool:
    """Return whether the run minimizes a convex F + psi with one model for all clients."""
    return _has_optimum(experiment) and not experiment.ignores_regularizer


def _has_optimum(experiment: PreparedExperiment) -> bool:
    """Return whether a run by rounds trains one model for all clients, of a problem with a certified optimum."""
    algo = experiment.algo
    if not isinstance(algo, Algorithm) or algo.has_personal_models or experiment.settings.frozen:
        return False
    if experiment.privacy.acts:  # noise keeps the run off the optimum
        return False
    if algo.has_client_estimates:  # their mean minimizes no F
        return False
    return are_convex(experiment.objective, experiment.reg) and experiment.mirror.domain_contains(experiment.reg)


def explain_unassessed_gap(experiment: PreparedExperiment, data: FederatedData) -> str:
    """Return a sentence on a run whose gap to the optimum is neither assessed nor measured.

    The sentence is empty if ``reference`` or ``gap`` measures the gap already, or ``reference`` could not: the problem
    has no certified optimum, or its rows are not in memory.
    """
    names, settings = experiment.names, experiment.settings
    if not _has_optimum(experiment) or settings.reference or settings.gap or data.train.why_not_in_memory:
        return ""
    if experiment.ignores_regularizer:
        return word(f"`algo={names['algo']}` {IGNORES_PSI}: its solution does not minimize F + psi with "
                    f"`reg={names['reg']}`; `reference=true` measures how far it is above the minimum")  # fmt: skip
    could_be_auto = any("or auto" in marks for marks in field_marks(type(experiment.algo)).values())
    reason = ", for its rates were given" if could_be_auto else ""
    return word(f"how near the optimum it ended is not known{reason}: `reference=true` measures it")


def assess_gap(
    experiment: PreparedExperiment,
    data: FederatedData,
    solution: dict[str, np.ndarray],
    objectives: tuple[float, float],
    strong_convexity: float,
    duality_gap: float = np.inf,
) -> OptimalityGap:
    """Assess the gap of a run of this experiment that ended at ``solution``, by a solver that continues from there.

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
        n_features = batch.x.shape[1]
        compiled = solver.compile_once(Keyed(experiment.problem_key, problem), n_features)
        n_outputs = start["weights"].size // n_features if "weights" in start else 1
        affordable = max(_MAX_NUMBERS_READ / (batch.x.size * n_outputs), solver.STEPS_PER_CERTIFICATE)
        max_iterations = int(min(_MAX_CONTINUED_ITERATIONS, affordable))
        tolerance = 1e-9 if compiled.has_gap else 1e-6
        best, lower_bound, gap = last, -np.inf, measured
        for iterate in solver.minimize(problem, batch, tolerance, max_iterations, start=start, compiled=compiled):
            best = min(best, iterate.objective)
            if compiled.has_gap:
                lower_bound = max(lower_bound, iterate.objective - iterate.certificate)
            elif strong_convexity > 0 and isinstance(problem.regularizer, NoRegularizer):
                gradient_norm = float(problem.gradient(iterate.w, batch).norm())  # F >= F(w) - ||g||^2 / 2 mu
                lower_bound = max(lower_bound, iterate.objective - gradient_norm**2 / (2 * strong_convexity))
            certificate = (iterate.certificate_kind, iterate.certificate, iterate.certified)
            gap = _summarize_gap(objectives, best, lower_bound, certificate)
            if gap.near or gap.sure:
                break
        return gap


def summarize_duality_gap(objectives: tuple[float, float], duality_gap: float) -> OptimalityGap:
    """Return the gap given by the first and the last objective of a run, and the duality gap at its end."""
    last = objectives[1]
    return _summarize_gap(objectives, last, last - duality_gap, ("duality gap", duality_gap, False))


def describe_unknown_gap(experiment: PreparedExperiment, data: FederatedData) -> str:
    """Return a sentence on a run that did not measure its gap, whose rows stay at their sites."""
    if has_duality_gap(build_problem(experiment, data), data.train.x.shape[1]):
        return word("how near the optimum it ended is not known: `gap=true` measures it")
    return word(f"how near the optimum it ended is not measured: `objective={experiment.names['objective']}` with "
                f"`reg={experiment.names['reg']}` has no duality gap")  # fmt: skip


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


def _solve_in_closed_form(problem: Problem, batch: Batch) -> float | None:
    """Return the optimum of least squares without a regularizer, whatever the units of its features.

    Returns None for other problems, and for matrices of features that are sparse or too large.
    """
    if why_not_dense(batch.x) or not isinstance(problem.objective, LeastSquares) or problem.objective.ridge:
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


# The movement of the coefficients, which is the KKT residual in their units.


def can_measure_movement(experiment: PreparedExperiment, data: FederatedData, *, single_run: bool) -> bool:
    """Return whether the run minimizes a convex F + psi of a linear model on rows in memory with few enough entries."""
    if not aims_at_optimum(experiment) or not is_linear_model(type(experiment.objective)):
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
        compiled = solver.compile_once(Keyed(experiment.problem_key, problem), batch.x.shape[1])
        *_, last = solver.minimize(problem, batch, 1e-9, STEPS, start=start, compiled=compiled)
        feature_sizes = np.sqrt(np.asarray(batch.weight @ problem.features(batch.x, jnp.float64) ** 2))
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


# The settings that would bring a run that has ended above the optimum closer to it.

_SCALE_RATIO = 3  # features whose sizes differ by more than this factor slow a run down
_UNEVEN_WEIGHTS = 0.1  # clients whose weights differ by a smaller share of the largest count as equal
_MORE_ROUNDS = "more rounds may help"


def advise(experiment: PreparedExperiment, data: FederatedData, falling: bool) -> str:
    """Return a clause that names what keeps a run from the optimum and the settings that would help.

    Args:
        falling: whether the objective was still falling when the run ended.
    """
    schedule = build_schedule(experiment, data)
    steps_advice = _advise_on_uneven_steps(experiment, schedule)
    cohort_advice = _advise_on_uneven_cohorts(experiment, schedule)
    rule_advice = ""
    if not isinstance(experiment.aggregate, WeightedMean):
        rule = f"`aggregate={experiment.names['aggregate']}`"
        rule_advice = word(f"{rule} moves the point that the run converges to where clients differ, and "
                           "`aggregate=mean` does not")  # fmt: skip
    scale_advice = _advise_on_feature_scales(experiment, data)
    if not (steps_advice or cohort_advice or rule_advice):
        rounds_advice = _advise_on_limit_point(experiment, data, schedule, falling)
    else:  # with equal steps, all clients or their mean the run would have another limit point
        rounds_advice = _MORE_ROUNDS if falling or scale_advice else ""
    return ", and ".join(filter(None, (steps_advice, cohort_advice, rule_advice, scale_advice, rounds_advice)))


def advise_on_divergence(experiment: PreparedExperiment) -> str:
    """Return a clause that names the settings that may keep a run from diverging, of those that it has."""
    rates = list_rates(experiment.algo)
    if rates:
        return word(f"try a smaller {' or '.join(rates)}")
    cause = "no rate of this algorithm is known by its name (..._lr): look for very large values in the data"
    if is_of_fcorun(experiment.algo):
        cause = "this algorithm has no rate: look for very large values in the data"
        if experiment.algo.traits.local_fits:
            cause += " and for clients whose fits leave no residuals"
    return cause


def list_rates(algo: Method) -> list[str]:
    """Return the settings that are rates of an algorithm, such as algo.client_lr."""
    rates = []
    for field in fields(algo):
        is_step_size = field.name == "step" and field.default == AUTO  # that of Newton's method is a share of its step
        if field.name.endswith("_lr") or is_step_size:
            rates.append(f"`algo.{field.name}`")
    return rates


def _advise_on_uneven_steps(experiment: PreparedExperiment, schedule: Schedule) -> str:
    """Return advice where clients take unequal numbers of steps; empty where that moves no limit point.

    Clients with more steps weigh more in the mean: objective inconsistency, Wang et al. (FedNova, NeurIPS 2020).
    """
    traits = experiment.algo.traits
    if not schedule.uneven_steps or traits.deterministic or traits.robust_to_uneven_steps:
        return ""
    cause = "clients take unequal numbers of steps, which moves the point that the run converges to: "
    if schedule.has_deadline:
        return word(f"{cause}leave `clock.deadline` out")
    steps = int(np.median(schedule.steps))
    return word(f"{cause}give `local_epochs=null local_steps={steps}`")


def _advise_on_uneven_cohorts(experiment: PreparedExperiment, schedule: Schedule) -> str:
    """Return advice where cohorts are drawn from clients of unequal weights; empty where that moves no limit point.

    The mean of a cohort has the weights of its clients divided by their sum, so that on average over cohorts small
    clients weigh more than in F. Li et al. (2020), "On the convergence of FedAvg on non-IID data", scheme II.
    """
    traits, weights = experiment.algo.traits, schedule.averaging_weights
    takes_all = schedule.takes_all_clients or not experiment.topology.waits_for_cohort
    if takes_all or traits.exact or np.ptp(weights) <= _UNEVEN_WEIGHTS * weights.max():
        return ""
    return word("cohorts of unequal clients weigh small clients more than F does, which moves the point that the run "
                "converges to: give `clients_per_round=null`")  # fmt: skip


def _advise_on_feature_scales(experiment: PreparedExperiment, data: FederatedData) -> str:
    """Return advice where features that are not standardized differ in scale; empty where they do not.

    The scales of features at sites are not known, and sparse rows are not centred.
    """
    if getattr(experiment.data, "standardize", "") != "none" or data.train.stays_at_sites or data.train.why_not_dense:
        return ""
    sizes = np.append(np.sqrt(np.mean(np.square(data.train.x, dtype=np.float64), axis=0)), 1.0)
    if sizes.max() <= _SCALE_RATIO * sizes[sizes > 0].min():
        return ""
    if _is_smooth(experiment) and not experiment.objective.ridge:
        return word("`data.standardize=pooled` makes steps longer")
    return word("`data.standardize=pooled` makes another problem, which takes fewer rounds")


def _is_smooth(experiment: PreparedExperiment) -> bool:
    """Return whether the problem has no regularizer, so that its objective is smooth."""
    return isinstance(experiment.reg, NoRegularizer)


def _advise_on_limit_point(
    experiment: PreparedExperiment, data: FederatedData, schedule: Schedule, falling: bool
) -> str:
    """Return a clause on whether the algorithm can reach the optimum."""
    topology = experiment.topology
    mean_of_all = not topology.connects_clients  # whether each exchange takes one mean over all clients
    if topology.connects_clients:  # as on a complete graph of equal clients
        mean_of_all = topology.describe(connect_clients(experiment, data)).get("spectral_gap", 0) > 1 - 1e-9
    algo, name = experiment.algo, experiment.names["algo"]
    assert isinstance(algo, Algorithm)
    traits = algo.traits
    has_penalty = not (_is_smooth(experiment) or isinstance(experiment.reg, Constraint))
    if algo.tends_to_minimum_of_psi and has_penalty and experiment.reg.strength_or_none != 0:
        return word(f"{name} converges to a minimizer of `reg={experiment.names['reg']}` alone, 0 for a norm")
    if algo.computed_rounds is not None and experiment.settings.rounds >= algo.computed_rounds:
        can_iterate = hasattr(algo, "iterations") and _trait_holds(experiment, traits.exact)
        advice = word(": a larger `algo.iterations` may help") if can_iterate else ""
        return f"{name} sends nothing after round {algo.computed_rounds}, so that more rounds change nothing{advice}"
    full_batch = schedule.full_batch_steps is not None or traits.deterministic
    full_participation = schedule.takes_all_clients and mean_of_all
    exact = _trait_holds(experiment, traits.exact)
    if experiment.topology.has_nodes and traits.hierarchy != "graph":
        exact = exact and mean_of_all
    one_full_step = schedule.full_batch_steps == 1 and full_participation
    exact_with_one_step = one_full_step and _trait_holds(experiment, traits.exact_with_one_step)
    if falling or exact_with_one_step or ((exact or algo.is_sublinear) and full_batch):
        return _MORE_ROUNDS
    subject = f"with minibatches {name}" if exact else name
    if not exact and not is_of_fcorun(algo):
        return f"{_MORE_ROUNDS}, but {name} does not declare that it reaches the optimum (traits.exact)"
    return f"{subject} does not reach the optimum in any number of rounds"


def _trait_holds(experiment: PreparedExperiment, problems: str) -> bool:
    """Return whether a trait that holds for "smooth" or "composite" problems (empty: none) holds for this one."""
    psi_everywhere = experiment.reg.applied_by == "both" or len(experiment.algo.traits.psi_sides) == 1
    if problems == "composite" and psi_everywhere:
        return True
    return problems != "" and _is_smooth(experiment)
