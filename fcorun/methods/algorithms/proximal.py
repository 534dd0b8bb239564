"""Algorithms whose clients evaluate the prox of their own loss: the base class, and FedProx."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import jax
import jax.numpy as jnp

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
    """FedProx, by the proxes of the clients' losses or by minibatch steps on the same functions. Ignores psi.

    With the exact proxes of all clients, the fixed point is the optimum of the mean of the clients' Moreau envelopes,
    not that of their losses: equation (7) of Pathak and Wainwright (NeurIPS 2020). An ``extrapolation`` above 1 makes
    FedExProx with a constant parameter (Li, Acharya and Richtarik 2024, arXiv 2405.13766), which has the same fixed
    point.

    ``solver="sgd"`` takes the minibatch steps of the paper's experiments. A client is then a straggler with probability
    ``stragglers``, anew in each round, and its number of steps is uniform from 1 to that of the others.
    """

    source = "algorithm 2 of @li2020"

    mu: AutoPositive = AUTO
    gamma: Fraction = 0.0
    extrapolation: Annotated[Positive, "default outside identity"] = 1.0
    solver: Literal["exact", "gradient", "accelerated", "newton", "sgd"] = "exact"
    inner_lr: Annotated[AutoPositive, "default outside identity"] = AUTO
    stragglers: Annotated[Fraction, "default outside identity"] = 0.0

    def __post_init__(self):
        if self.solver in ("exact", "sgd") and isinstance(self.gamma, float) and self.gamma:
            raise UserError(f"`algo.gamma={self.gamma}` needs a solver that can stop early: give "
                            "`algo.solver=gradient`, accelerated or newton")  # fmt: skip
        for name, default in (("inner_lr", AUTO), ("stragglers", 0.0)):
            value = getattr(self, name)
            if self.solver != "sgd" and isinstance(value, float) and value != default:
                raise UserError(f"`algo.{name}={value:g}` needs `algo.solver=sgd`: give that too, or leave {name} out")
        for name, default in (("iterations", 100), ("tolerance", 1e-10)):
            value = getattr(self, name)
            if self.solver == "sgd" and isinstance(value, (int, float)) and value != default:
                raise UserError(f"`algo.{name}={value:g}` is of other solvers than `algo.solver=sgd`, which takes "
                                f"`local_steps` or `local_epochs`: leave {name} out")  # fmt: skip

    @property
    def traits(self):
        takes_steps = self.solver == "sgd"
        return Traits(
            psi_sides=(),
            proximal=not takes_steps,
            deterministic=not takes_steps,
            public_uploads=(),
            gradient_steps=takes_steps,
        )

    @property
    def works_in_row_span(self):
        return self.solver != "sgd" and super().works_in_row_span

    @property
    def auto_fields(self):
        return [name for name in super().auto_fields if name != "inner_lr" or self.solver == "sgd"]

    def auto(self, constants):
        mu = 1 / balanced_prox_step(constants) if isinstance(self.mu, str) else self.mu
        return {"mu": mu, "inner_lr": 1 / (constants.smoothness + mu)}

    def local(self, problem, server, client, data):
        if self.solver == "sgd":
            x = self.minibatch_steps(problem, data, server)
        else:
            x = self.prox(problem, data, server, 1 / self.mu, self.gamma)  # line 5
        return x - server, client

    def minibatch_steps(self, problem: Problem, data: LocalData, start: Vector) -> Vector:
        """Return the end of a client's minibatch steps on f + mu / 2 ||. - start||^2."""

        def step(x, batch):
            return x - self.inner_lr * (problem.gradient(x, batch) + self.mu * (x - start))

        lot, share = jax.random.uniform(data.key, (2,), start.dtype)
        fewer = 1 + jnp.floor(share * data.n_steps).astype(jnp.int32)
        return data.steps(step, start, jnp.where(lot < self.stragglers, fewer, data.n_steps))

    def server(self, problem, server, mean):
        return server + self.extrapolation * mean  # line 7, if the extrapolation is 1
