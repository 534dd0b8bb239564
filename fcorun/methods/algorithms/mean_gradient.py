"""Algorithms whose clients receive the mean gradient of all clients before they compute: base classes, and FSVRG."""

from dataclasses import dataclass, replace

import jax.numpy as jnp

from fcorun.base.config import AUTO, AutoPositive, Count, NonNegative
from fcorun.methods.algorithms.algorithm import Algorithm, LocalData, auto_client_lr
from fcorun.methods.algorithms.traits import EXACT_BY_WHOLE_DATA
from fcorun.methods.problem import inner_solvers
from fcorun.methods.problem.inner_solvers import Real
from fcorun.methods.problem.problem import Problem, Vector

_SMALLEST_CONVEXITY = 1e-4  # of the smoothness, for the momentum of the inner solver
EXACT_BY_SHIFTED_LOSSES = replace(EXACT_BY_WHOLE_DATA, psi_sides=("client",), proximal=True, uploads="points")


@dataclass(frozen=True, kw_only=True)
class MeanGradientAlgorithm(Algorithm):
    """An algorithm with two exchanges in a round, of which the first gives all clients the mean gradient.

    In the first exchange the clients receive w and send their gradients there. In the second they receive the mean
    gradient, and remember w and their own gradient.
    """

    def init(self, problem, w0):
        zeros = problem.zeros(w0.dtype)
        return {"w": w0, "gradient": zeros}, {"w": w0, "gradient": zeros}

    def first_broadcast(self, server):
        return server["w"]

    def first_local(self, problem, server, client, data):
        gradient = problem.gradient(server, data.whole)
        return gradient, {"w": server, "gradient": gradient}

    def received_model(self, problem, server, client, data):
        return client["w"]

    def first_server(self, problem, server, mean):
        return server | {"gradient": mean}

    def broadcast(self, server):
        return server["gradient"]

    def output(self, problem, server):
        return server["w"]


@dataclass(frozen=True, kw_only=True)
class ShiftedAlgorithm(MeanGradientAlgorithm):
    """An algorithm whose clients receive the mean gradient, and then solve problems shifted by it.

    A client's gradient at w is replaced by the mean gradient of all clients: argmin f(u) - <shift, u> + mu / 2
    ||u - w||^2 + psi(u), with shift = grad f(w) - mean gradient. If the curvature of F exceeds that of f by at most mu,
    this function lies above F + psi and touches it at w, up to a constant. Then each solution lowers F + psi, and so
    does a mean of solutions. Similar clients converge in few rounds with a smaller mu, of about the distance of their
    Hessians from that of F; with a mu too small for unlike clients a method may diverge.
    """

    iterations: Count = 100
    tolerance: NonNegative = 1e-10

    @property
    def curvature_alternatives(self):
        return ["another `algo`"]  # the inner solver needs the bounds, whatever mu is

    def auto(self, constants):
        return {"mu": max(constants.cohort_smoothness - constants.strong_convexity, 1e-4 * constants.smoothness)}

    def solve(
        self, problem: Problem, data: LocalData, start: Vector, shift: Vector, mu: Real, eta: Real = 1.0, **stop: Real
    ) -> Vector:
        """Return argmin f(u) - <shift, u> + mu / 2 ||u - start||^2 + eta psi(u) for the client's loss f."""
        assert problem.curvature is not None
        low, high = problem.curvature
        low = jnp.maximum(low, _SMALLEST_CONVEXITY * high)
        h = inner_solvers.Subproblem(
            replace(problem, curvature=(low, high)),  # type: ignore[arg-type]
            data.whole,
            start,
            loss_weight=1 / eta,
            weight=mu / eta,
            linear=(1 / eta) * shift,
        )
        rule = inner_solvers.StoppingRule(stop.get("iterations", self.iterations), self.tolerance)  # type: ignore[arg-type]
        return inner_solvers.accelerated_proximal_gradient(h, start, rule)


@dataclass(frozen=True)
class FSVRG(MeanGradientAlgorithm):
    """Federated SVRG: in local steps, the mean gradient of all clients at w corrects the gradients of minibatches.

    At w, the server's model at the start of a round, a corrected gradient is the gradient of F for every minibatch.
    Therefore the optimum is a fixed point for any minibatches and any number of local steps. Three things differ from
    the paper: each local step applies the prox of psi; all clients take steps of one size, where the paper divides the
    step by the client's number of rows; and neither the differences of gradients nor the mean of the updates are scaled
    by how often a coordinate is not zero.
    """

    source = "@konecny2016 without its scaling of coordinates, psi = 0"

    client_lr: AutoPositive = AUTO

    traits = replace(
        EXACT_BY_WHOLE_DATA, psi_sides=("client",), deterministic=False, robust_to_uneven_steps=True, uploads="points"
    )

    def auto(self, constants):
        return {"client_lr": auto_client_lr(constants)}

    def local(self, problem, server, client, data):
        mean_gradient, anchor = server, client["w"]

        def step(w, batch):
            correction = mean_gradient - problem.gradient(anchor, batch)
            return problem.prox(w - self.client_lr * (problem.gradient(w, batch) + correction), self.client_lr)

        return data.steps(step, anchor) - anchor, client

    def server(self, problem, server, mean):
        return server | {"w": server["w"] + mean}
