"""Primal-dual methods that ignore psi: dynamic regularization, and one that may skip communication."""

from dataclasses import dataclass

from fcorun.base.config import AUTO, AutoPositive, BelowOne
from fcorun.methods.algorithms.algorithm import Traits
from fcorun.methods.algorithms.proximal import ProximalAlgorithm, balanced_prox_step


@dataclass(frozen=True)
class FedDyn(ProximalAlgorithm):
    """FedDyn, which ignores psi. A client keeps the gradient of its loss, the server their mean h."""

    source = "algorithm 1 of @acar2021"

    alpha: AutoPositive = AUTO

    traits = Traits(psi_sides=(), proximal=True, deterministic=True, exact="smooth", uploads="increments")

    def auto(self, constants):
        return {"alpha": 1 / balanced_prox_step(constants)}

    def init(self, problem, w0):
        return {"x": w0, "h": 0 * w0}, 0 * w0

    def broadcast(self, server):
        return server["x"]

    def local(self, problem, server, client, data):
        x, g = server, client
        local = self.prox(problem, data, x + g / self.alpha, 1 / self.alpha)  # argmin f - <g, .> + alpha/2 ||. - x||^2
        return local - x, g - self.alpha * (local - x)

    def server(self, problem, server, mean):
        h = server["h"] - self.alpha * problem.share * mean
        return {"x": server["x"] + mean - h / self.alpha, "h": h}

    def output(self, problem, server):
        return server["x"]


@dataclass(frozen=True)
class FedPD(ProximalAlgorithm):
    """FedPD, which ignores psi.

    A round ends with a communication, and contains the steps whose communication was skipped. With ``skip`` above 0
    the algorithm need not reach the optimum.
    """

    source = "algorithm 1 of @zhang2021"

    step: AutoPositive = AUTO
    skip: BelowOne = 0.0

    @property
    def traits(self):
        exact = "" if self.skip else "smooth"
        return Traits(psi_sides=(), partial=False, proximal=True, deterministic=True, exact=exact, uploads="points")

    def auto(self, constants):
        return {"step": balanced_prox_step(constants)}

    def init(self, problem, w0):
        return w0, 0 * w0

    def local(self, problem, server, client, data):
        def step(state):
            center, dual = state
            # argmin f + <dual, .> + ||. - center||^2 / (2 eta)
            x = self.prox(problem, data, center - self.step * dual, self.step)
            dual = dual + (x - center) / self.step
            return x + self.step * dual, dual

        return data.repeat(data.geometric_steps(1 - self.skip), step, (server, client))

    def server(self, problem, server, mean):
        return mean
