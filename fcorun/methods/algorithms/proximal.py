"""Base class of algorithms whose clients evaluate the prox of their own loss."""

import math
from dataclasses import dataclass
from typing import Literal

from fcorun.base.config import Count, NonNegative
from fcorun.methods.algorithms.algorithm import Algorithm, LocalData, ProblemConstants
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
