"""A primal-dual method that may skip communication."""

from dataclasses import dataclass

from fcorun.base.config import AUTO, AutoPositive, BelowOne
from fcorun.methods.algorithms.algorithm import Traits
from fcorun.methods.algorithms.proximal import ProximalAlgorithm, balanced_prox_step


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
