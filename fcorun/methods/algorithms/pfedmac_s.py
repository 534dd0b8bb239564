"""Sparse personal models by maximizing correlation."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from fcorun.base.config import Count, Positive
from fcorun.methods.algorithms.algorithm import Traits
from fcorun.methods.algorithms.pfedmac import PFedMac
from fcorun.methods.problem import inner_solvers


@dataclass(frozen=True, kw_only=True)
class PFedMacS(PFedMac):
    """pFedMac-S: pFedMac with psi in each client's problem; in the paper psi is gamma ||u||_1."""

    source = "@li2021pfedmac"

    sparsity: Literal["prox", "logcosh", "huber"] = "prox"
    rho: Positive = 0.01
    iterations: Count = 1000

    with_ridge = "pFedMe with psi in each client's problem"

    @property
    def traits(self):
        needs = () if self.sparsity == "prox" else ("smoothed_value",)
        return Traits(
            needs=needs,
            psi_sides=("client",),
            personal_psi=True,
            needs_convex_psi=True,
            proximal=True,
            needs_strong_convexity=True,
            reveals_personal=True,
        )

    @property
    def curvature_alternatives(self):
        accelerated = self.sparsity == "prox" and self.solver == "exact"
        other = "`algo.solver=gradient` with a value for `algo.inner_lr`"
        return super().curvature_alternatives + ([other] if accelerated else [])

    @property
    def works_in_row_span(self):
        return False  # psi acts on each coefficient

    def solve_subproblem(self, problem, batch, start, pull):
        h = inner_solvers.Subproblem(problem, batch, 0 * pull, weight=self.quadratic_weight, linear=pull)
        if self.sparsity == "prox":
            if self.solver == "exact":
                return inner_solvers.accelerated_proximal_gradient(h, start, self.stopping_rule)
            return inner_solvers.proximal_gradient(h, start, self.stopping_rule, self.inner_step)
        psi: Any = problem.regularizer  # l1, the only regularizer with a smoothed value

        def penalty(u):
            return sum(psi.smoothed_value(u[name], self.sparsity, self.rho) for name in problem.regularized)

        smoothness = psi.strength * psi.largest_factor / self.rho
        return self.solve_smooth(replace(h, penalty=penalty, penalty_smoothness=smoothness), start)
