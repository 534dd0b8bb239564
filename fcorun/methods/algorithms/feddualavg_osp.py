"""Federated dual averaging, only-server-prox."""

from dataclasses import dataclass

from fcorun.methods.algorithms.algorithm import Traits
from fcorun.methods.algorithms.feddualavg import FedDualAvg


@dataclass(frozen=True)
class FedDualAvgOSP(FedDualAvg):
    """FedDualAvg-OSP: FedDualAvg without the client's prox.

    Gradients are taken at the unthresholded dual while the server's threshold grows without bound. The method therefore
    relies on early stopping: the output of a long run goes to a minimizer of psi, which is zero for a norm.
    """

    source = "section 5 of @yuan2021"
    traits = Traits(
        psi_sides=("server",),
        needs_convex_psi=True,
        mirrored=True,
        hierarchy="some",
        restores_domain=True,
        exact_with_one_step="smooth",
        growing_broadcasts=True,
    )
    tends_to_minimum_of_psi = True

    def local_model(self, problem, dual, elapsed):
        return problem.to_primal(dual)  # line 9 with psi = 0
