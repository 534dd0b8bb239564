"""The penalty of a problem with features and an intercept, as the solvers in NumPy and intervals take it."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fcorun.methods.problem.problem import Problem

MAX_WORKING = 1024  # features that have a Hessian; a larger one and its inverse cost more than many gradients


class Penalty(NamedTuple):
    """psi and the ridge of F: the sum of l1_j |theta_j| + ridge_j theta_j^2 / 2; both are 0 for an intercept.

    Attributes:
        l1, ridge: (p,).
    """

    l1: Float[np.ndarray, " p"]
    ridge: Float[np.ndarray, " p"]

    @classmethod
    def none(cls, n_parameters: int) -> "Penalty":
        """Return no penalty of so many parameters."""
        return cls(np.zeros(n_parameters), np.zeros(n_parameters))

    @classmethod
    def of_problem(cls, problem: Problem, n_features: int) -> "Penalty":
        """Return the penalty of a problem for which ``has_path_solver`` is true."""
        l1, ridge = problem.regularizer.l1_and_ridge(n_features)  # type: ignore[attr-defined]
        of_intercept = np.zeros(1 if "bias" in problem.shapes else 0)
        return cls(np.append(l1, of_intercept), np.append(ridge + problem.objective.ridge, of_intercept))

    def value(self, theta: Float[np.ndarray, " p"]) -> float:
        """Return the penalty of ``theta``."""
        return float(self.l1 @ np.abs(theta) + self.ridge @ theta**2 / 2)

    def can_be_certified(self, has_intercept: bool) -> bool:
        """Return whether a minimum may reach its tolerance.

        No bound on the excess is known with features that have no penalty, and all features without l1 are nonzero.
        """
        n_features = len(self.l1) - has_intercept
        acts_on_all = ((self.l1 > 0) | (self.ridge > 0))[:n_features].all()
        return bool(acts_on_all and np.count_nonzero(self.l1 == 0) <= MAX_WORKING)
