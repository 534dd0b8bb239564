"""Federated averaging with subgradients."""

from dataclasses import dataclass

from fcorun.methods.algorithms.algorithm import Traits
from fcorun.methods.algorithms.fedavg import FedAvg


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
