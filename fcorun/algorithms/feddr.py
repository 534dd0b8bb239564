"""Randomized Douglas-Rachford splitting."""

from dataclasses import dataclass

from fcorun.algorithms.base import Traits, balanced_prox_step
from fcorun.algorithms.proximal import ProximalAlgorithm
from fcorun.config import AUTO, AutoPositive, Relaxation


@dataclass(frozen=True)
class FedDR(ProximalAlgorithm):
    """FedDR, with psi on the server.

    It starts as the authors' code does, all of a client's vectors at w_0; the box starts x_i at prox_{eta f_i}(w_0)
    and what is reflected accordingly.

    Attributes:
        step: eta; "auto" is 1 / sqrt(l L).
        relaxation: alpha, between 0 and 2; 1 is Douglas and Rachford's.
    """

    source = "algorithm 1 of @trandinh2021"

    step: AutoPositive = AUTO
    relaxation: Relaxation = 1.0

    traits = Traits(psi_sides=("server",), proximal=True, deterministic=True, exact="composite")

    def auto(self, known):
        return {"step": balanced_prox_step(known)}

    def init(self, problem, w0):
        return {"x": w0, "mean": w0}, {"y": w0, "x": w0, "reflected": w0}

    def broadcast(self, server):
        return server["x"]

    def local(self, problem, server, client, data):
        y = client["y"] + self.relaxation * (server - client["x"])  # line 7
        x = self.prox(problem, data, y, self.step)  # line 8
        reflected = 2 * x - y  # line 9
        return reflected - client["reflected"], {"y": y, "x": x, "reflected": reflected}

    def server(self, problem, server, mean):
        mean = server["mean"] + problem.share * mean  # line 12, over all clients' latest
        return {"x": problem.prox(mean, self.step), "mean": mean}  # line 13

    def output(self, problem, server):
        return server["x"]
