"""Base class of algorithms of one round, whose clients fit their own losses."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import Count, NonNegative
from fcorun.methods.algorithms.algorithm import Algorithm, LocalData
from fcorun.methods.problem import inner_solvers
from fcorun.methods.problem.problem import Problem, Vector


@dataclass(frozen=True, kw_only=True)
class LocalFitAlgorithm(Algorithm):
    """A one-round algorithm, in which each client fits its own loss, without psi, and sends a summary of the fit.

    A client needs more rows than parameters, or a ridge. Logistic fits of separable classes need a ridge, too. Later
    rounds send nothing and change nothing.
    """

    ridge: NonNegative = 0.0
    iterations: Count = 100
    tolerance: NonNegative = 1e-10

    computed_rounds = 1

    def broadcast(self, server):
        return ()  # a request without numbers

    def received_model(self, problem, server, client, data):
        return self.fit(problem, data)

    def fit(self, problem: Problem, data: LocalData) -> Vector:
        """Return the minimizer of the sum of a client's loss, the ridge, and sqrt(eps) ||w||^2 / 2 with the intercept.

        The last term bounds fits along collinear columns. A Newton step from the fit, as DLSA takes, corrects its bias.
        """
        names = problem.objective.regularized

        def penalty(w):
            weights = Vector({name: w[name] for name in names})
            return self.ridge / 2 * weights.dot(weights)

        zero = problem.zeros(data.dtype)
        weight = float(jnp.finfo(data.dtype).eps) ** 0.5
        h = inner_solvers.Subproblem(problem, data.whole, zero, weight=weight, penalty=penalty)
        return inner_solvers.newton(h, zero, inner_solvers.StoppingRule(self.iterations, self.tolerance))

    def ridge_diagonal(self, problem: Problem, w: Vector) -> Vector:
        """Return the diagonal of the ridge's Hessian."""
        names = problem.objective.regularized
        return Vector({name: 0 * values + (self.ridge if name in names else 0) for name, values in w.items()})
