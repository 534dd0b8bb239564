"""FedAvg whose server moves the further, the more the updates of the clients disagree."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import AUTO, AutoPositive, Positive
from fcorun.methods.algorithms.algorithm import Algorithm, Traits, auto_client_lr


@dataclass(frozen=True)
class FedExP(Algorithm):
    """FedExP, whose server_lr follows from the updates of the round. FedExP ignores psi.

    The output is the mean of the last two models, as in the paper, since single models oscillate.
    """

    source = "algorithm 1 of @jhunjhunwala2023"

    client_lr: AutoPositive = AUTO
    epsilon: Positive = 1e-3

    traits = Traits(psi_sides=())

    def auto(self, constants):
        return {"client_lr": auto_client_lr(constants)}

    def init(self, problem, w0):
        return {"x": w0, "last": w0}, None

    def broadcast(self, server):
        return server["x"]

    def local(self, problem, server, client, data):
        w = data.steps(lambda w, batch: w - self.client_lr * problem.gradient(w, batch), server)
        update = w - server
        return {"update": update, "square": update.dot(update)}, client

    def server(self, problem, server, mean):
        square = mean["update"].dot(mean["update"])
        server_lr = jnp.maximum(mean["square"] / (2 * (square + self.epsilon)), 1)
        return {"x": server["x"] + server_lr * mean["update"], "last": server["x"]}

    def output(self, problem, server):
        return 0.5 * (server["x"] + server["last"])
