"""Federated averaging, and its form with subgradients of psi."""

from dataclasses import dataclass

from fcorun.methods.algorithms.algorithm import Traits, TwoRateAlgorithm


@dataclass(frozen=True)
class FedAvg(TwoRateAlgorithm):
    """FedAvg with two learning rates. FedAvg ignores psi."""

    source = "algorithm 1 of @yuan2021, after @mcmahan2017"
    traits = Traits(psi_sides=(), hierarchy="some", exact_with_one_step="smooth")

    def local(self, problem, server, client, data):
        def step(w, batch):
            g = problem.gradient(w, batch)  # line 7
            return w - self.client_lr * g  # line 8

        w = data.steps(step, server)  # lines 5-6
        return w - server, client

    def server(self, problem, server, mean):
        return server + self.server_lr * mean  # lines 9-10


@dataclass(frozen=True)
class FedAvgSubgradient(FedAvg):
    """FedAvg with a subgradient of psi in each local step.

    This is FedAvg, algorithm 1 of the paper, with line 8 in two halves, as in the authors' code: the subgradient is
    taken at the point after the gradient step. The server has no prox.
    """

    source = "FedAvg(∂) of @yuan2021, figure 1"
    traits = Traits(needs=("subgradient",), psi_sides=("client",), hierarchy="some", exact_with_one_step="smooth")

    def local(self, problem, server, client, data):
        def step(w, batch):
            w = w - self.client_lr * problem.gradient(w, batch)  # lines 7-8
            return w - self.client_lr * problem.subgradient(w)

        w = data.steps(step, server)  # lines 5-6
        return w - server, client
