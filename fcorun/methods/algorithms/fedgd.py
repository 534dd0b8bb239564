"""Federated gradient descent."""

from dataclasses import dataclass

from fcorun.base.config import AUTO, AutoPositive, Count
from fcorun.methods.algorithms.algorithm import Algorithm, Traits


@dataclass(frozen=True)
class FedGD(Algorithm):
    """FedGD(s, e): e gradient steps of each client on all of its rows, then the mean.

    FedGD ignores psi. For e > 1 the fixed point is not the optimum, equation (5).
    """

    source = "equation (4) of @pathak2020"

    step: AutoPositive = AUTO
    steps: Count = 1

    @property
    def traits(self):
        exact = "smooth" if self.steps == 1 else ""
        return Traits(psi_sides=(), deterministic=True, hierarchy="some", exact=exact)

    def auto(self, constants):
        return {"step": 1 / constants.smoothness}

    def local(self, problem, server, client, data):
        x = data.repeat(self.steps, lambda x: x - self.step * problem.gradient(x, data.whole), server)  # (4a)
        return x - server, client

    def server(self, problem, server, mean):
        return server + mean  # (4b)
