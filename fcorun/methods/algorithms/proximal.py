"""Algorithms whose clients evaluate the prox of their own loss: the base class, and FedProx."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from fcorun.base.config import AUTO, AutoPositive, Count, Fraction, NonNegative, Positive
from fcorun.base.errors import UserError
from fcorun.methods.algorithms.algorithm import Algorithm, LocalData, ProblemConstants, Traits
from fcorun.methods.problem import inner_solvers
from fcorun.methods.problem.inner_solvers import Real
from fcorun.methods.problem.problem import Problem, Quadratic, Vector


@dataclass(frozen=True, kw_only=True)
class ProximalAlgorithm(Algorithm):
    """An algorithm whose clients solve argmin_u s f(u) + ||u - v||^2 / 2 on all their data."""

    solver: Literal["exact", "gradient", "accelerated", "newton"] = "exact"
    iterations: Count = 100
    tolerance: NonNegative = 1e-10

    @property
    def curvature_alternatives(self):
        if self.solver in ("gradient", "accelerated"):
            return [*super().curvature_alternatives, "`algo.solver=newton`"]
        return super().curvature_alternatives

    @property
    def works_in_row_span(self):
        return self.solver != "gradient" or self.iterations >= inner_solvers.MIN_GRADIENTS_FOR_SPAN

    def prox(self, problem: Problem, data: LocalData, v: Vector, s: Real, relative_tolerance: Real = 0.0) -> Vector:
        """Return prox_{s f}(v) for the client's loss f.

        An inner solver also stops at a gradient norm of ``relative_tolerance`` times the initial norm.
        """
        batch = data.whole
        if self.solver == "exact" and isinstance(batch, Quadratic):
            return batch.prox(v, s)
        solve = inner_solvers.SOLVERS["newton" if self.solver == "exact" else self.solver]
        stop = inner_solvers.StoppingRule(self.iterations, self.tolerance, relative_tolerance)
        return solve(inner_solvers.Subproblem(problem, batch, v, s), v, stop)


def balanced_prox_step(constants: ProblemConstants, ridge: float = 0.0) -> float:
    """Return the step 1 / sqrt(l L) of a client's prox, theorem 1 of Pathak and Wainwright (2020).

    Without strong convexity, l is taken as a ten thousandth of L: our choice. ``ridge`` is added to both bounds.
    """
    low, high = constants.strong_convexity + ridge, constants.smoothness + ridge
    return 1 / math.sqrt(max(low, 1e-4 * high) * high)


@dataclass(frozen=True)
class FedProx(ProximalAlgorithm):
    """FedProx, without minibatches. Ignores psi.

    The fixed point is the optimum of the mean of the clients' Moreau envelopes, not that of their losses: equation
    (7) of Pathak and Wainwright (NeurIPS 2020). An ``extrapolation`` above 1 makes FedExProx with a constant parameter
    (Li, Acharya and Richtarik 2024, arXiv 2405.13766), which has the same fixed point.
    """

    source = "algorithm 2 of @li2020"

    mu: AutoPositive = AUTO
    gamma: Fraction = 0.0
    extrapolation: Annotated[Positive, "default outside identity"] = 1.0

    traits = Traits(psi_sides=(), proximal=True, deterministic=True)

    def __post_init__(self):
        if self.solver == "exact" and isinstance(self.gamma, float) and self.gamma:
            raise UserError(f"`algo.gamma={self.gamma}` needs a solver that can stop early: give "
                            "`algo.solver=gradient`, accelerated or newton")  # fmt: skip

    def auto(self, constants):
        return {"mu": 1 / balanced_prox_step(constants)}

    def local(self, problem, server, client, data):
        x = self.prox(problem, data, server, 1 / self.mu, self.gamma)  # line 5
        return x - server, client

    def server(self, problem, server, mean):
        return server + self.extrapolation * mean  # line 7, if the extrapolation is 1
