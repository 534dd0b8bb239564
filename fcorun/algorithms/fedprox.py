"""Federated proximal point."""

from dataclasses import dataclass
from typing import Literal

from fcorun.algorithms.base import balanced
from fcorun.algorithms.proximal import ProximalAlgorithm
from fcorun.config import Fraction, Positive


@dataclass(frozen=True)
class FedProx(ProximalAlgorithm):
    """FedProx, algorithm 2 of Li et al. (MLSys 2020), without minibatches.

    Its fixed point is not the optimum but that of the clients' Moreau envelopes, equation (7) of Pathak and Wainwright
    (NeurIPS 2020).

    Attributes:
        mu: the weight of the proximal term mu / 2 ||u - x||^2; "auto" is sqrt(l L).
        gamma: how exact a client is, definition 2: its inner solver, unless solver=exact, stops as soon as the gradient
            of f + mu / 2 ||. - x||^2 is gamma times that at x.
    """

    mu: Literal["auto"] | Positive = "auto"
    gamma: Fraction = 0.0

    sides = ()

    def auto(self, least, most):
        return {"mu": 1 / balanced(least, most)}

    def init(self, problem, w0):
        return w0, None

    def local(self, problem, server, client, data):
        slope = problem.gradient(server, data.whole).norm() if self.solver != "exact" else 0.0
        x = self.prox(problem, data, server, 1 / self.mu, self.tolerance + self.gamma * slope / self.mu)  # line 5
        return x - server, client

    def server(self, problem, server, mean):
        return server + mean  # line 7

    def output(self, problem, server):
        return server
