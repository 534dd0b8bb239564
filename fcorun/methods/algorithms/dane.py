"""Distributed approximate Newton."""

from dataclasses import dataclass

from fcorun.base.config import AUTO, AutoPositive, Positive
from fcorun.methods.algorithms.mean_gradient import EXACT_BY_SHIFTED_LOSSES, ShiftedAlgorithm


@dataclass(frozen=True)
class DANE(ShiftedAlgorithm):
    """DANE, with psi in each client's problem, our extension: the paper has psi = 0.

    The optimum is a fixed point for any ``mu`` and ``eta``. Convergence is certain for ``mu`` of at least the default
    with ``eta`` 1. Similar clients converge in few rounds with a smaller ``mu``, of about the distance of their
    Hessians from that of F; with a ``mu`` too small the method may diverge.
    """

    source = "figure 1 of @shamir2014, psi = 0"

    mu: AutoPositive = AUTO
    eta: Positive = 1.0

    traits = EXACT_BY_SHIFTED_LOSSES

    def local(self, problem, server, client, data):
        mean_gradient = server
        shift = client["gradient"] - self.eta * mean_gradient
        return self.solve(problem, data, client["w"], shift, mu=self.mu, eta=self.eta), client

    def server(self, problem, server, mean):
        return server | {"w": mean}
