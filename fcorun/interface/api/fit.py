"""A fit without a record: rounds until a certificate shows that the objective is near its optimum."""

from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.config import numeric_fields
from fcorun.base.errors import UserError
from fcorun.base.system.machine import use_precision
from fcorun.experiment import build
from fcorun.experiment.experiment import RELATIVE_CHANGE, PreparedExperiment
from fcorun.experiment.optimum import resolve_strength
from fcorun.experiment.prepare import replace_plugins
from fcorun.methods.problem import solver
from fcorun.methods.problem.duality_gap import has_duality_gap
from fcorun.methods.problem.problem import Batch, Problem, Vector
from fcorun.methods.problem.solver import gather_rows
from fcorun.methods.regularizers.regularizer import Regularizer
from fcorun.runs.follow import RunFollower, RunHistory
from fcorun.studies.selection.select import plan_selection
from fcorun.studies.selection.selection_result import SelectOptions

_REST = 1e-5  # a fold's run ends where its objective changes by less, relatively, between two evaluations
_ROUNDING = 1e-12  # of an objective, relative to that at the start


@dataclass(frozen=True)
class Fit:
    """The solution of a run that ended at a tolerance, or after its last round.

    Attributes:
        params: the parameters by name, float64.
        regularizer: psi with the strength of the run.
        n_rounds: the rounds done.
        gap: the certificate at the solution, as ``Certifier.relative_gap``.
        certificate_kind: "duality gap" or "prox-gradient norm".
    """

    params: dict[str, np.ndarray]
    regularizer: Regularizer
    n_rounds: int
    gap: float
    certificate_kind: str


class Certifier:
    """Certificates of how near points are to the optimum, relative to the zero model, at which a run starts.

    The certificate is a duality gap, an upper bound on the objective minus its optimum, relative to the objective of
    the zero model with the best intercept. Problems without a known dual have the norm of the prox-gradient map, which
    is no bound, relative to the norm at 0. Call under ``jax.enable_x64(True)``.
    """

    def __init__(
        self, problem: Problem, batch: Batch, smoothness: float, start: dict[str, np.ndarray], start_objective: float
    ):
        batch = batch._replace(weight=jnp.asarray(batch.weight, jnp.float64))
        n_features = batch.x.shape[1]
        self.has_gap = has_duality_gap(problem, n_features)
        self.kind = "duality gap" if self.has_gap else "prox-gradient norm"
        self._certify = solver.compile_programs(problem, n_features).certify
        self._arguments = numeric_fields(problem.regularizer), jnp.asarray(smoothness, jnp.float64), batch
        objective, certificate = self._evaluate(start)
        self._scale = max(abs(objective), _ROUNDING * abs(start_objective)) if self.has_gap else certificate

    def relative_gap(self, params: dict[str, np.ndarray], objective: float) -> float:
        """Return the certificate at a point with this objective, relative to the zero model; inf if it is not known."""
        best_objective, certificate = self._evaluate(params)
        if self.has_gap:  # the certificate is that of the point with the best intercept
            certificate += objective - best_objective
        if certificate == 0:
            return 0.0
        if not np.isfinite(certificate) or self._scale <= 0:
            return float(np.inf)
        return abs(certificate) / self._scale

    def _evaluate(self, params: dict[str, np.ndarray]) -> tuple[float, float]:
        """Return the objective of a point with the best intercept, where there is a dual, and its certificate."""
        w = Vector({name: jnp.asarray(value, jnp.float64) for name, value in params.items()})
        strengths, smoothness, batch = self._arguments
        _, objective, certificate = self._certify(strengths, w, smoothness, batch)
        return float(objective), float(certificate)


def fit_to_tolerance(experiment: PreparedExperiment, tolerance: float) -> Fit:
    """Run an experiment until its relative gap is at most ``tolerance``, or to its last round, and write no files.

    The gap is computed at each evaluation but the first, which is that of the start. Raises UserError for what a user
    can fix, and if the run diverges.
    """
    data = build.load_data(experiment)
    experiment = build.bind_objective(experiment, data)
    experiment = experiment.with_resolved(reg=resolve_strength(experiment, data))
    experiment, _ = build.resolve_auto(experiment, data)
    settings = experiment.settings
    smoothness = 1.0
    if experiment.objective.has_curvature_bound:
        smoothness = build.compute_curvature_bounds(experiment, data, full_batch=True)[1]
    engine = build.build_engine(experiment, data)
    certifier, fit = None, None
    with use_precision(settings.precision):
        run = RunHistory(experiment.with_resolved(settings=replace(settings, stop=None)))
        for snapshot in RunFollower(engine, [run], [experiment.numbers()]).follow():
            if run.divergence_round:
                raise UserError(f"the run diverged in round {run.divergence_round}: give algorithm a smaller rate, or "
                                "leave it auto")  # fmt: skip
            params = {name: np.asarray(values[0], np.float64) for name, values in snapshot.solution.items()}
            objective = float(snapshot.metrics["objective"][0])
            with jax.enable_x64(True):
                if certifier is None:
                    batch = gather_rows(data, settings.client_weighting)
                    problem = build.build_problem(experiment, data)
                    certifier = Certifier(problem, batch, smoothness, params, objective)
                    continue
                gap = certifier.relative_gap(params, objective)
            fit = Fit(params, experiment.reg, snapshot.round, gap, certifier.kind)
            if gap <= tolerance:
                break
    assert fit is not None
    return fit


def choose_strength(experiment: PreparedExperiment) -> PreparedExperiment:
    """Return the experiment with the strength, or the radius, that cross-validation on five folds of rows chooses.

    The runs of the folds end where the objective comes to rest, by the setting ``stop``. The returned experiment keeps
    this setting, which ``fit_to_tolerance`` does not use. Raises UserError.
    """
    experiment = replace_plugins(experiment, replace(experiment.settings, stop={RELATIVE_CHANGE: _REST}))
    with TemporaryDirectory() as folder:
        plan = plan_selection(experiment, SelectOptions(), folder)
        with plan.study.claim():
            return plan.apply(plan.select_value())
