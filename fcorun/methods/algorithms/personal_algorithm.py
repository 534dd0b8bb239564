"""Algorithms whose clients' models minimize the clients' losses plus a quadratic term: the base class, and pFedMe."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

from fcorun.base.config import AUTO, UNSET, AutoPositive, Count, NonNegative, Positive
from fcorun.base.errors import UserError
from fcorun.methods.algorithms.algorithm import Algorithm, Traits
from fcorun.methods.problem import inner_solvers
from fcorun.methods.problem.inner_solvers import Real
from fcorun.methods.problem.problem import Problem, Quadratic, Vector


@dataclass(frozen=True, kw_only=True)
class PersonalAlgorithm(Algorithm):
    """Algorithms with the local step u = argmin f(u) + weight / 2 ||u||^2 - lambda <u, y>, y -= eta lambda (y - u).

    The server moves to x + beta (mean y - x). The last u of a client is its personal model, so that clients outside of
    the cohort keep their models.
    """

    lam: Positive = UNSET
    client_lr: AutoPositive = AUTO
    server_lr: Positive = 1.0
    solver: Literal["exact", "gradient"] = "exact"
    inner_lr: AutoPositive = AUTO
    iterations: Count = 100
    tolerance: NonNegative = 1e-5

    def __post_init__(self):
        if self.solver == "exact" and isinstance(self.inner_lr, float):
            raise UserError(
                f"`algo.inner_lr={self.inner_lr:g}` needs `algo.solver=gradient`: give that too, or leave inner_lr out"
            )

    @property
    @abstractmethod
    def quadratic_weight(self) -> Real:
        """The weight of ||u||^2 / 2."""

    def auto(self, constants):
        return {"client_lr": 1 / self.lam}

    @property
    def curvature_alternatives(self):
        if self.solver == "gradient" and "inner_lr" in self.auto_fields:
            return ["a value for `algo.inner_lr`"]
        return []

    @property
    def works_in_row_span(self):
        return self.solver == "exact" or self.iterations >= inner_solvers.MIN_GRADIENTS_FOR_SPAN

    def init(self, problem, w0):
        return w0, w0

    def local(self, problem, server, client, data):
        def step(state, batch):
            y, u = state
            u = self.solve_subproblem(problem, batch, u, self.lam * y)
            return (y if data.frozen else y - self.client_lr * self.lam * (y - u)), u

        y, u = data.steps(step, (server, client))
        return y - server, u

    def server(self, problem, server, mean):
        return server + self.server_lr * mean

    def personal(self, problem, server, client):
        return client

    def solve_subproblem(self, problem: Problem, batch: inner_solvers.Data, start: Vector, pull: Vector) -> Vector:
        """Return argmin_u f(u) + weight / 2 ||u||^2 - <pull, u>, starting at ``start``."""
        if self.solver == "exact" and isinstance(batch, Quadratic):
            return batch.minimize(pull, self.quadratic_weight)
        h = inner_solvers.Subproblem(problem, batch, 0 * pull, weight=self.quadratic_weight, linear=pull)
        return self.solve_smooth(h, start)

    def solve_smooth(self, h: inner_solvers.Subproblem, start: Vector) -> Vector:
        """Minimize the smooth function h by the chosen solver."""
        if self.solver == "exact":
            return inner_solvers.newton(h, start, self.stopping_rule)
        return inner_solvers.gradient_descent(h, start, self.stopping_rule, self.inner_step)

    @property
    def inner_step(self) -> Real | None:
        """The step size of the solver "gradient" if it is a number, else None."""
        return None if isinstance(self.inner_lr, str) else self.inner_lr

    @property
    def stopping_rule(self) -> inner_solvers.StoppingRule:
        """The stopping rule of the inner solver."""
        return inner_solvers.StoppingRule(self.iterations, self.tolerance)


@dataclass(frozen=True, kw_only=True)
class PFedMe(PersonalAlgorithm):
    """pFedMe: u = argmin f + lambda / 2 ||. - y||^2.

    The algorithm ignores psi. An inner solver starts at the client's model of the previous step or round, which the box
    leaves open; exact solutions do not depend on the start.
    """

    source = "algorithm 1 of @dinh2020"
    traits = Traits(psi_sides=(), proximal=True, hierarchy="some", reveals_personal=True)

    @property
    def quadratic_weight(self):
        return self.lam
