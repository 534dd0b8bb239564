"""What the methods have in common whose clients' own models minimise their loss with something added."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import jax

from fcorun.algorithms.base import Algorithm
from fcorun.config import AUTO, AutoPositive, Count, NonNegative, Positive
from fcorun.errors import UserError
from fcorun.problem import inner_solvers
from fcorun.problem.problem import Problem
from fcorun.problem.quadratic import Quadratic
from fcorun.problem.vector import Vector

Real = jax.Array | float


@dataclass(frozen=True, kw_only=True)
class PersonalAlgorithm(Algorithm):
    """A local step on a minibatch: u = argmin f(u) + weight / 2 ||u||^2 - lambda <u, y>, then y -= eta lambda (y - u).

    The server takes x + beta (mean y - x); u of the last local step is the client's own model, so that clients outside
    of the cohort keep theirs.

    Attributes:
        lam: lambda.
        client_lr: eta; "auto" is 1 / lambda, with which y jumps to u.
        server_lr: beta.
        solver: exact (in closed form for least squares with all data, else Newton's method), or gradient.
        inner_lr: of the solver gradient; "auto" suits the curvature of a client's data, or of any minibatch of them.
        iterations: at most so many of the inner solver.
        tolerance: the norm of the gradient at which the inner solver stops.
    """

    lam: Positive
    client_lr: AutoPositive = AUTO
    server_lr: Positive = 1.0
    solver: Literal["exact", "gradient"] = "exact"
    inner_lr: AutoPositive = AUTO
    iterations: Count = 100
    tolerance: NonNegative = 1e-5

    def __post_init__(self):
        if self.solver == "exact" and isinstance(self.inner_lr, float):
            raise UserError(f"algo.inner_lr={self.inner_lr:g} is of algo.solver=gradient: give that too")

    @property
    @abstractmethod
    def quadratic_weight(self) -> Real:
        """Of ||u||^2 / 2."""

    def auto(self, known):
        return {"client_lr": 1 / self.lam}

    @property
    def curvature_alternatives(self):
        wanted = self.solver == "gradient" and "inner_lr" in self.auto_fields
        return ["a value for algo.inner_lr"] if wanted else []

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

    def output(self, problem, server):
        return server

    def personal(self, problem, server, client):
        return client

    def solve_subproblem(self, problem: Problem, batch: inner_solvers.Data, start: Vector, pull: Vector) -> Vector:
        """argmin_u f(u) + weight / 2 ||u||^2 - <pull, u>, from ``start`` on."""
        if self.solver == "exact" and isinstance(batch, Quadratic):
            return batch.minimize(pull, self.quadratic_weight)
        return self.solve_smooth(
            inner_solvers.Subproblem(problem, batch, 0 * pull, weight=self.quadratic_weight, linear=pull), start
        )

    def solve_smooth(self, h: inner_solvers.Subproblem, start: Vector) -> Vector:
        """argmin h by the solver."""
        if self.solver == "exact":
            return inner_solvers.newton(h, start, self.stopping_rule)
        return inner_solvers.gradient_descent(h, start, self.stopping_rule, self.inner_step)

    @property
    def inner_step(self) -> Real | None:
        """The step of the solver gradient, where it is given."""
        return None if isinstance(self.inner_lr, str) else self.inner_lr

    @property
    def stopping_rule(self) -> inner_solvers.StoppingRule:
        """When the inner solver ends."""
        return inner_solvers.StoppingRule(self.iterations, self.tolerance)
