"""The adaptive lasso: factors of single features' penalties from a pilot fit of the same rows."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.bound_regularizer import resolve_factors
from fcorun.experiment.build import build_problem
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.algorithms.algorithm import Algorithm
from fcorun.methods.problem.duality_gap import has_one_output
from fcorun.methods.problem.penalized_quadratic import MAX_PARAMETERS
from fcorun.methods.problem.problem import Problem
from fcorun.methods.problem.solver import gather_rows
from fcorun.methods.problem.strength_max import strength_max
from fcorun.methods.regularizers.elastic_net import ElasticNet
from fcorun.methods.regularizers.l1 import L1
from fcorun.results.inference.solution import Penalty, SingularHessian, solve
from fcorun.results.inference.sums import PooledSums
from fcorun.results.models.inference_problem import OBJECTIVES, make_model_rows

Pilot = Literal["ridge", "unpenalized", "lasso"]
_LASSO_RELATIVE = 0.1  # of the smallest strength at which the lasso is 0
_FLOOR = 1e-6  # of the largest pilot coefficient: smaller ones are as good as excluded


@dataclass(frozen=True)
class AdaptiveFactors:
    """The factors 1 / |b_j|^power of the penalties of features, given the coefficients b of a pilot.

    Source: Zou (J. Am. Stat. Assoc. 2006), equation 4. A pilot has no penalty, or a tenth of the smallest strength at
    which the lasso is 0, or the ridge r / 2 ||b||^2 of Hoerl, Kennard and Baldwin (Commun. Stat. 1975) for a signal as
    large as the noise: r is the trace of the Hessian at 0, with the best intercept, divided by the number of rows. No
    pilot is tuned, so that factors depend on no other rows than those that are given. Each keeps the objective's ridge.
    """

    pilot: Pilot
    power: float

    def compute(self, experiment: PreparedExperiment, data: FederatedData) -> np.ndarray:
        """Return the factor of each feature, (d,), from the training rows of ``data``, times its factor in ``reg``.

        Raises UserError if the rows do not determine the pilot, or if its coefficients are all 0.
        """
        with jax.enable_x64(True):
            problem = build_problem(experiment, data)
            coefficients = np.abs(self._fit_pilot(problem, experiment, data))
        largest = coefficients.max(initial=0.0)
        if not largest > 0:
            raise UserError(f"`adaptive={self.pilot}`: all coefficients of the pilot are 0: give another pilot")
        given = resolve_factors(experiment.reg, experiment.objective, data).feature_factors(len(coefficients))
        return given / np.maximum(coefficients, _FLOOR * largest) ** self.power

    def _fit_pilot(self, problem: Problem, experiment: PreparedExperiment, data: FederatedData) -> np.ndarray:
        """Return the coefficients of the pilot, (d,)."""
        batch = gather_rows(data, experiment.settings.client_weighting)
        rows = make_model_rows(problem, batch)
        n_features, n_parameters = data.train.x.shape[1], rows.x.shape[1]
        objective: Any = replace(experiment.objective, ridge=0.0)  # type: ignore[call-arg]
        sums = PooledSums(objective, rows)
        l1, ridge = np.zeros(n_parameters), np.zeros(n_parameters)
        ridge[:n_features] = experiment.objective.ridge
        if self.pilot == "lasso":
            lasso = replace(problem, regularizer=L1(strength=1.0, apply_to=experiment.reg.apply_to))
            l1[:n_features] = _LASSO_RELATIVE * strength_max(lasso, batch)
        elif self.pilot == "ridge":
            hessian = sums.derivatives(np.zeros(n_parameters)).hessian
            curvature = np.diagonal(hessian)[:n_features]
            if n_parameters > n_features:  # with the best intercept
                curvature = curvature - hessian[:n_features, -1] ** 2 / hessian[-1, -1]
            ridge[:n_features] += curvature.sum() / len(rows.y)
        try:
            theta = solve(sums, Penalty(l1, ridge), np.zeros(n_parameters)).theta
        except SingularHessian as error:
            raise UserError(
                f"`adaptive={self.pilot}`: {len(rows.y)} rows do not determine the {n_features} coefficients of the "
                f"pilot: {self._advice}"
            ) from error
        except UserError as error:
            raise UserError(f"`adaptive={self.pilot}`: the pilot has no finite optimum: {self._advice}") from error
        return theta[:n_features]

    @property
    def _advice(self) -> str:
        return "leave adaptive out" if self.pilot == "ridge" else "give `adaptive=ridge`"


def weigh_features(
    pilot: Pilot | None, power: float, experiment: PreparedExperiment, data: FederatedData
) -> tuple[PreparedExperiment, AdaptiveFactors | None]:
    """Return the experiment with the factors of all training rows, and the factors that a path computes in each fold.

    Without a pilot, the experiment is returned as it is. Raises UserError for a model without adaptive weights,
    and where a pilot does not exist.
    """
    if pilot is None:
        return experiment, None
    names, reg = experiment.names, experiment.reg
    if type(reg) not in (L1, ElasticNet):
        raise UserError(f"`adaptive={pilot}` weighs the penalties of single features: give `reg=l1 or elastic_net`")
    check_linear_model(f"`adaptive={pilot}`", experiment, data)
    if isinstance(experiment.algo, Algorithm) and experiment.algo.has_personal_models:
        raise UserError(f"`adaptive={pilot}` fits a pilot to the rows of all clients, and `algo={names['algo']}` "
                        "trains own models of clients: leave adaptive out")  # fmt: skip
    adaptive = AdaptiveFactors(pilot, power)
    factors = adaptive.compute(experiment, data)
    feature_names = data.features.names or [str(j) for j in range(len(factors))]
    by_name = dict(zip(feature_names, factors.tolist(), strict=True))
    return experiment.with_resolved(reg=replace(reg, factors=by_name)), adaptive


def check_linear_model(option: str, experiment: PreparedExperiment, data: FederatedData) -> None:
    """Raise UserError, naming an ``option``, unless the loss is smooth, with a coefficient a feature, not too many."""
    n_features = data.train.x.shape[1]
    one_output = has_one_output(build_problem(experiment, data), n_features)
    if type(experiment.objective) not in OBJECTIVES or not one_output:
        raise UserError(f"{option} is for one coefficient a feature, with `objective=least_squares, logistic` of two "
                        "classes, poisson or gamma: leave it out")  # fmt: skip
    if n_features > MAX_PARAMETERS:
        raise UserError(f"{option} takes a matrix of all features, at most {MAX_PARAMETERS:,}, and there are "
                        f"{n_features:,}: leave it out")  # fmt: skip
