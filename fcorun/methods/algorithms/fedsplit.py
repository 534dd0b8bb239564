"""Federated operator splitting."""

from dataclasses import dataclass, replace

from fcorun.base.config import AUTO, AutoPositive, NonNegative, Relaxation
from fcorun.methods.algorithms.algorithm import EXACT_BY_WHOLE_DATA
from fcorun.methods.algorithms.proximal import ProximalAlgorithm, balanced_prox_step


@dataclass(frozen=True)
class FedSplit(ProximalAlgorithm):
    """FedSplit, with psi on the server.

    With psi = 0 the server's prox is the identity and this is the algorithm as printed. l and L bound the curvature of
    the clients' losses. For l > 0 and relaxation=2, exact solutions with the step "auto" contract by
    1 - 2 / (sqrt(L / l) + 1) a round. For l = 0, relaxation=1 is the safe choice.
    """

    source = "algorithm 1 of @pathak2020"

    step: AutoPositive = AUTO
    relaxation: Relaxation = 2.0
    anchor: NonNegative = 0.0

    @property
    def traits(self):
        exact = "" if self.anchor else "composite"
        return replace(EXACT_BY_WHOLE_DATA, proximal=True, exact=exact, uploads="points")

    def auto(self, constants):
        return {"step": balanced_prox_step(constants, self.anchor)}

    def init(self, problem, w0):
        return w0, {"z": w0, "start": w0}

    def local(self, problem, server, client, data):
        x, z, pull = server, client["z"], self.step * self.anchor
        v = (2 * x - z + pull * client["start"]) / (1 + pull)  # the prox of f + lambda / 2 ||. - x_1||^2 is one of f
        half = self.prox(problem, data, v, self.step / (1 + pull))  # line 1a
        z = z + self.relaxation * (half - x)  # line 1b
        return z, client | {"z": z}

    def server(self, problem, server, mean):
        return problem.prox(mean, self.step)  # line 2
