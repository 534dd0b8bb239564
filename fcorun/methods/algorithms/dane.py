"""Distributed approximate Newton, and its stabilized form."""

from dataclasses import dataclass

from fcorun.base.config import AUTO, AutoNonNegative, AutoPositive, Count, Positive
from fcorun.methods.algorithms.algorithm import Traits
from fcorun.methods.algorithms.mean_gradient import EXACT_BY_SHIFTED_LOSSES, ShiftedAlgorithm


@dataclass(frozen=True)
class DANE(ShiftedAlgorithm):
    """DANE, with psi in each client's problem, our extension: the paper has psi = 0.

    The optimum is a fixed point for any ``mu`` and ``eta``. Convergence is certain for ``eta`` 1.
    """

    source = "figure 1 of @shamir2014, psi = 0"

    mu: AutoPositive = AUTO
    eta: Positive = 1.0

    traits = EXACT_BY_SHIFTED_LOSSES

    def local(self, problem, server, client, data):
        mean_gradient = server
        shift = client["gradient"] - self.eta * mean_gradient
        return self.solve(problem, data, client["w"], shift, mu=self.mu, eta=self.eta), client

    def server(self, problem, server, mean):
        return server | {"w": mean}


@dataclass(frozen=True)
class SDANE(ShiftedAlgorithm):
    """S-DANE: DANE around a centre of its own, so that clients may solve their problems roughly. It ignores psi.

    Clients send their solutions and the gradients there, from which the server moves the centre. With exact solutions
    the centre is their mean, and S-DANE is DANE with psi = 0. The centres, their origin in the hybrid projection
    proximal-point method, and rough solutions are as in public descriptions of the paper; the server's step is that of
    the hybrid projection method with strong convexity mu. Cohorts of some clients, which the paper allows, are left
    out.
    """

    source = "@jiang2024; the step of the server as in the hybrid projection method"

    iterations: Count = 10
    lam: AutoPositive = AUTO
    mu: AutoNonNegative = AUTO

    traits = Traits(psi_sides=(), partial=False, proximal=True, deterministic=True, exact="smooth", uploads="points")

    def auto(self, constants):
        lam = super().auto(constants)["mu"]  # the weight that the base class, after DANE, calls mu
        return {"lam": lam, "mu": constants.strong_convexity}

    def init(self, problem, w0):
        server, client = super().init(problem, w0)
        return server | {"center": w0}, client

    def first_broadcast(self, server):
        return server["center"]

    def local(self, problem, server, client, data):
        smooth = problem.without_psi()
        # the first exchange has sent the centre, which the client remembers as w; the second sends the mean gradient
        center = client["w"]
        mean_gradient = server
        w = self.solve(smooth, data, center, client["gradient"] - mean_gradient, mu=self.lam)
        return {"w": w, "gradient": problem.gradient(w, data.whole)}, client

    def server(self, problem, server, mean):
        pull = self.lam * server["center"] + self.mu * mean["w"] - mean["gradient"]
        return server | {"w": mean["w"], "center": (1 / (self.lam + self.mu)) * pull}
