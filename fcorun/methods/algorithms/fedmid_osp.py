"""Federated mirror descent, only-server-prox."""

from dataclasses import dataclass

from fcorun.methods.algorithms.algorithm import Traits
from fcorun.methods.algorithms.fedmid import FedMiD


@dataclass(frozen=True)
class FedMiDOSP(FedMiD):
    """FedMiD-OSP: FedMiD without the client's prox."""

    source = "section 5 of @yuan2021"
    traits = Traits(psi_sides=("server",), mirrored=True, hierarchy="some", exact_with_one_step="composite")

    def local_model(self, problem, dual):
        return problem.to_primal(dual)  # line 8 with psi = 0
