"""Personalised federated learning by maximizing correlation: dense, sparse, and in a hierarchy."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from fcorun.base.config import AUTO, UNSET, AutoNonNegative, Count, Positive
from fcorun.base.errors import UserError, word
from fcorun.methods.algorithms.algorithm import Traits
from fcorun.methods.algorithms.personal_algorithm import PersonalAlgorithm
from fcorun.methods.problem import inner_solvers


@dataclass(frozen=True, kw_only=True)
class PFedMac(PersonalAlgorithm):
    """pFedMac: u = argmin f - lambda <., y>.

    The algorithm minimizes the mean of F_m(x) = min_u {f_m(u) - lambda <u, x>} + lambda / 2 ||x||^2 and ignores psi.
    F_m is finite only if f_m grows faster than linearly, and convex only if f_m has strong convexity lambda. A ridge
    added to each f_m ensures both; a ridge of lambda gives pFedMe.

    Attributes:
        with_ridge: the algorithm that a ridge of lambda makes of this one.
    """

    source = "@li2021pfedmac"
    with_ridge: ClassVar[str] = "pFedMe"

    ridge: AutoNonNegative = AUTO

    traits = Traits(psi_sides=(), proximal=True, needs_strong_convexity=True, reveals_personal=True)

    @property
    def quadratic_weight(self):
        return self.ridge

    @property
    def curvature_alternatives(self):
        return super().curvature_alternatives + (["a value for `algo.ridge`"] if "ridge" in self.auto_fields else [])

    def auto(self, constants):
        return super().auto(constants) | {"ridge": max(self.lam - constants.strong_convexity, 0.0)}

    def resolve_auto(self, constants):
        if not isinstance(self.ridge, str) and constants.strong_convexity + self.ridge < self.lam * (1 - 1e-9):
            raise UserError(
                f"`algo.ridge={self.ridge:g}`: the strong convexity of the clients' losses, "
                f"{constants.strong_convexity:.3g}, and the ridge are together less than `algo.lam={self.lam:g}`, so "
                "that a client's F_m is not convex, and the problem may have no minimum; give `algo.ridge=auto`, or a "
                "lower lam"
            )
        return super().resolve_auto(constants)

    def describe_auto(self, auto_values):
        ridge = auto_values.get("algo.ridge", 0.0)
        if not ridge:
            return ""
        strong_convexity = auto_values["least"]
        message = word(
            f"`algo.ridge={ridge:.3g}` was added to each client's loss, whose strong convexity of "
            f"{strong_convexity:.3g} is less than `algo.lam={self.lam:g}`"
        )
        return message if strong_convexity else f"{message}; this ridge makes the algorithm {self.with_ridge}"


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


@dataclass(frozen=True, kw_only=True)
class PFedMacSH(PFedMacS):
    """pFedMac-SH, on ``topology=tree``.

    An edge has a model x and the mean y of its clients. Clients start from y in the next round of the edge; in the
    paper each client starts from its own y. The client's step uses lambda_1; the authors' slides print lambda_2.
    Cohorts consist of clients; in the paper they consist of edges. The edge's step is as printed: it lacks the term
    - lambda_2 x of the gradient of the three-level problem, so that the algorithm does not converge to the optimum of
    that problem.
    """

    source = "algorithm 1 of @li2021pfedmac"

    edge_lam: Positive = UNSET
    edge_lr: Positive = UNSET

    @property
    def traits(self):
        return replace(super().traits, hierarchy="only")

    def init(self, problem, w0):
        return {"x": w0, "y": w0}, w0

    def broadcast(self, server):
        return server["y"]

    def edge(self, problem, edge, mean):
        y = edge["y"] + mean
        return {"x": edge["x"] - self.edge_lr * self.edge_lam * (edge["x"] - y), "y": y}

    def edge_upload(self, edge):
        return edge["x"]

    def root(self, problem, server, mean):
        x = (1 - self.server_lr) * server["x"] + self.server_lr * mean
        return {"x": x, "y": x}

    def output(self, problem, server):
        return server["x"]
