"""The alternating direction method of multipliers, with partial participation."""

from dataclasses import dataclass, replace

from fcorun.base.config import AUTO, AutoPositive
from fcorun.methods.algorithms.algorithm import EXACT_BY_WHOLE_DATA
from fcorun.methods.algorithms.proximal import ProximalAlgorithm, balanced_prox_step


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
