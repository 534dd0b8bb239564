"""Federated averaging."""

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
