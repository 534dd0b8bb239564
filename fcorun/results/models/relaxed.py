"""The relaxed lasso: the lasso selects features, and a fit without a penalty to these features undoes its shrinkage.

With the solution w of the lasso, and the fit u without a penalty to the features of nonzero weight in w, the relaxed
coefficients are gamma w + (1 - gamma) u (Hastie, Tibshirani and Tibshirani, Stat. Sci. 2020, equation 4; after
Meinshausen, Comput. Stat. Data Anal. 2007).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float

from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.build import build_problem
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.problem.penalty import Penalty
from fcorun.methods.problem.solver import gather_rows
from fcorun.results.inference.solution import SingularHessian, check_regular, solve
from fcorun.results.inference.sums import ModelRows, PooledSums
from fcorun.results.models.coefficients import nonzero_limits
from fcorun.results.models.inference_problem import make_model_rows

COLLINEAR = "no refit: collinear"
NO_OPTIMUM = "no refit: no finite optimum"
REFIT_FAILURES = {
    COLLINEAR: "the selected features are linear combinations of each other, or as many as the rows",
    NO_OPTIMUM: "without a penalty there is no finite optimum, as with classes that are separated",
}
PENALIZED_METRICS = ("objective", "gap")  # metrics of the problem with the penalty


class NoRefit(UserError):
    """An error for features whose fit without a penalty does not exist.

    Attributes:
        state: COLLINEAR or NO_OPTIMUM.
    """

    def __init__(self, state: str):
        super().__init__(REFIT_FAILURES[state])
        self.state = state


@dataclass(frozen=True, eq=False)
class UnpenalizedRefits:
    """The fits without a penalty of the features that solutions of a lasso select, on the same rows.

    An intercept, and features whose penalty has the factor 0, are part of each fit. A ridge of the objective stays.

    Attributes:
        objective: the losses, without a ridge.
        rows: the training rows, with p columns.
        is_free: the mask of parameters without a penalty, (p,).
        ridge: the ridge of the objective on each parameter, (p,).
        limits: the magnitude above which each parameter counts as nonzero, (p,).
    """

    objective: Any
    rows: ModelRows
    is_free: Bool[np.ndarray, " p"]
    ridge: Float[np.ndarray, " p"]
    limits: Float[np.ndarray, " p"]
    _known: dict[bytes, np.ndarray | NoRefit] = field(default_factory=dict)

    @classmethod
    def of_data(cls, experiment: PreparedExperiment, data: FederatedData) -> "UnpenalizedRefits":
        """Return the refits on the training rows of ``data``, in float64 whatever the precision of the run."""
        with jax.enable_x64(True):
            problem = build_problem(experiment, data)
            rows = make_model_rows(problem, gather_rows(data, experiment.settings.client_weighting))
        n_features = data.train.x.shape[1]
        n_parameters = rows.x.shape[1]
        is_free = np.ones(n_parameters, bool)
        is_free[:n_features] = np.asarray(problem.regularizer.feature_factors(n_features)) == 0
        ridge = np.zeros(n_parameters)
        objective: Any = experiment.objective
        ridge[:n_features] = objective.ridge
        limits = np.full(n_parameters, experiment.settings.cutoff)
        limits[:n_features] = nonzero_limits(experiment, data)
        return cls(replace(objective, ridge=0.0), rows, is_free, ridge, limits)

    def fit(self, theta: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
        """Return the fit without a penalty for a solution ``theta`` of the lasso, 0 where it selects nothing.

        Call under enable_x64. Equal selections are fitted once. Raises NoRefit if the fit does not exist.
        """
        selected = self.is_free | (np.abs(theta) > self.limits)
        key = selected.tobytes()
        if key not in self._known:
            try:
                self._known[key] = self._fit_selected(selected, theta)
            except NoRefit as error:
                self._known[key] = error
        fitted = self._known[key]
        if isinstance(fitted, NoRefit):
            raise fitted
        return fitted

    def _fit_selected(self, selected: Bool[np.ndarray, " p"], theta: np.ndarray) -> np.ndarray:
        """Return the fit of the selected parameters, from ``theta`` on. Raises NoRefit."""
        fitted = np.zeros(len(selected))
        sums = PooledSums(self.objective, self.rows).restrict(np.flatnonzero(selected))
        penalty = Penalty(np.zeros(int(selected.sum())), self.ridge[selected])
        if not selected.any():
            return fitted
        try:  # at 0 no loss is flat, so that a singular Hessian is one of collinear features
            check_regular(sums.derivatives(penalty.l1).hessian + np.diag(penalty.ridge))
        except SingularHessian as error:
            raise NoRefit(COLLINEAR) from error
        try:
            fitted[selected] = solve(sums, penalty, theta[selected]).theta
        except UserError as error:
            raise NoRefit(NO_OPTIMUM) from error
        return fitted


def relax_solution(
    refits: UnpenalizedRefits, solution: Mapping[str, np.ndarray], relax: float
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the relaxed parameters of a solution of the lasso, and those of the fit without a penalty, by name.

    ``relax`` is gamma, the share of the lasso: with 1, the lasso is returned for both. Raises NoRefit.
    """
    if relax == 1:
        return dict(solution), dict(solution)
    names = [name for name in ("weights", "bias") if name in solution]
    theta = np.concatenate([np.ravel(solution[name]) for name in names]).astype(np.float64)
    with jax.enable_x64(True):
        fitted = refits.fit(theta)
    mixed = relax * theta + (1 - relax) * fitted
    relaxed = {}
    refit = {}
    begin = 0
    for name in names:
        like = np.asarray(solution[name])
        end = begin + np.size(solution[name])
        relaxed[name] = mixed[begin:end].reshape(like.shape).astype(like.dtype)
        refit[name] = fitted[begin:end].reshape(like.shape).astype(like.dtype)
        begin = end
    return relaxed, refit


def keep_relaxed_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that relaxed coefficients have: all but those of the problem with the penalty."""
    return {name: value for name, value in metrics.items() if name not in PENALIZED_METRICS}
