"""Local steps with the momentum of the server."""

from dataclasses import dataclass

from fcorun.base.config import AUTO, AutoPositive, BelowOne
from fcorun.methods.algorithms.algorithm import Algorithm, Traits, auto_client_lr


@dataclass(frozen=True)
class MimeLite(Algorithm):
    """MimeLite with momentum: all local steps of a round share the momentum of the server. It ignores psi."""

    source = "algorithm 1 of @karimireddy2021mime, MimeLite"

    client_lr: AutoPositive = AUTO
    momentum: BelowOne = 0.9

    traits = Traits(psi_sides=(), exact_with_one_step="smooth", uploads="points")

    def auto(self, constants):
        return {"client_lr": auto_client_lr(constants)}

    def init(self, problem, w0):
        return {"x": w0, "momentum": 0 * w0}, None

    def received_model(self, problem, server, client, data):
        return server["x"]

    def local(self, problem, server, client, data):
        def step(y, batch):
            gradient = problem.gradient(y, batch)
            return y - self.client_lr * ((1 - self.momentum) * gradient + self.momentum * server["momentum"])

        x = server["x"]
        return {"update": data.steps(step, x) - x, "gradient": problem.gradient(x, data.whole)}, client

    def server(self, problem, server, mean):
        momentum = (1 - self.momentum) * mean["gradient"] + self.momentum * server["momentum"]
        return {"x": server["x"] + mean["update"], "momentum": momentum}

    def output(self, problem, server):
        return server["x"]
