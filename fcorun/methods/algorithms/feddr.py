"""Splitting methods with partial participation and psi on the server: FedDR and FedADMM."""

from dataclasses import dataclass, replace

from fcorun.base.config import AUTO, AutoPositive, Relaxation
from fcorun.methods.algorithms.proximal import ProximalAlgorithm, balanced_prox_step
from fcorun.methods.algorithms.traits import EXACT_BY_WHOLE_DATA


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


@dataclass(frozen=True)
class FedADMM(ProximalAlgorithm):
    """FedADMM, with psi on the server."""

    source = "@wang2022"

    rho: AutoPositive = AUTO

    traits = replace(EXACT_BY_WHOLE_DATA, partial=True, proximal=True, uploads="increments")

    def auto(self, constants):
        return {"rho": 1 / balanced_prox_step(constants)}

    def init(self, problem, w0):
        return {"x": w0, "mean": w0}, {"dual": 0 * w0, "sent": w0}

    def broadcast(self, server):
        return server["x"]

    def local(self, problem, server, client, data):
        x = self.prox(problem, data, server - client["dual"] / self.rho, 1 / self.rho)
        dual = client["dual"] + self.rho * (x - server)
        sent = x + dual / self.rho
        return sent - client["sent"], {"dual": dual, "sent": sent}

    def server(self, problem, server, mean):
        mean = server["mean"] + problem.share * mean  # over the latest vectors of all clients
        return {"x": problem.prox(mean, 1 / self.rho), "mean": mean}

    def output(self, problem, server):
        return server["x"]
