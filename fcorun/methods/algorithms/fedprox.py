"""Federated proximal point."""

from dataclasses import dataclass
from typing import Annotated

from fcorun.base.config import AUTO, AutoPositive, Fraction, Positive
from fcorun.base.errors import UserError
from fcorun.methods.algorithms.algorithm import Traits
from fcorun.methods.algorithms.proximal import ProximalAlgorithm, balanced_prox_step


@dataclass(frozen=True)
class FedProx(ProximalAlgorithm):
    """FedProx, without minibatches. Ignores psi.

    The fixed point is the optimum of the mean of the clients' Moreau envelopes, not that of their losses: equation
    (7) of Pathak and Wainwright (NeurIPS 2020). An ``extrapolation`` above 1 makes FedExProx with a constant parameter
    (Li, Acharya and Richtarik 2024, arXiv 2405.13766), which has the same fixed point.
    """

    source = "algorithm 2 of @li2020"

    mu: AutoPositive = AUTO
    gamma: Fraction = 0.0
    extrapolation: Annotated[Positive, "default outside identity"] = 1.0

    traits = Traits(psi_sides=(), proximal=True, deterministic=True)

    def __post_init__(self):
        if self.solver == "exact" and isinstance(self.gamma, float) and self.gamma:
            raise UserError(f"`algo.gamma={self.gamma}` needs a solver that can stop early: give "
                            "`algo.solver=gradient`, accelerated or newton")  # fmt: skip

    def auto(self, constants):
        return {"mu": 1 / balanced_prox_step(constants)}

    def local(self, problem, server, client, data):
        x = self.prox(problem, data, server, 1 / self.mu, self.gamma)  # line 5
        return x - server, client

    def server(self, problem, server, mean):
        return server + self.extrapolation * mean  # line 7, if the extrapolation is 1
