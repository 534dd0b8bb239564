"""Randomized Douglas-Rachford splitting."""

from dataclasses import dataclass, replace

from fcorun.base.config import AUTO, AutoPositive, Relaxation
from fcorun.methods.algorithms.algorithm import EXACT_BY_WHOLE_DATA
from fcorun.methods.algorithms.proximal import ProximalAlgorithm, balanced_prox_step


@dataclass(frozen=True)
class FedDR(ProximalAlgorithm):
    """FedDR, with psi on the server.

    All vectors of a client start at w_0, as in the authors' code. In the paper's algorithm x_i starts at
    prox_{eta f_i}(w_0), and the reflected vector accordingly.
    """

    source = "algorithm 1 of @trandinh2021"

    step: AutoPositive = AUTO
    relaxation: Relaxation = 1.0

    traits = replace(EXACT_BY_WHOLE_DATA, partial=True, proximal=True, uploads="increments")

    @classmethod
    def suggest_for(cls, conditions):
        return "feddr" if conditions.smooth or conditions.psi_applied_by != "client" else ""

    def auto(self, constants):
        return {"step": balanced_prox_step(constants)}

    def init(self, problem, w0):
        return {"x": w0, "mean": w0}, {"y": w0, "x": w0, "reflected": w0}

    def broadcast(self, server):
        return server["x"]

    def local(self, problem, server, client, data):
        y = client["y"] + self.relaxation * (server - client["x"])
        x = self.prox(problem, data, y, self.step)
        reflected = 2 * x - y
        return reflected - client["reflected"], {"y": y, "x": x, "reflected": reflected}

    def server(self, problem, server, mean):
        mean = server["mean"] + problem.share * mean  # of the latest reflected vectors of all clients
        return {"x": problem.prox(mean, self.step), "mean": mean}

    def output(self, problem, server):
        return server["x"]
