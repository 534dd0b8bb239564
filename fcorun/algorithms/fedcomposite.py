"""Composite federated learning with heterogeneous data."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.algorithms.base import Algorithm
from fcorun.config import Positive


@dataclass(frozen=True)
class FedComposite(Algorithm):
    """The method of Zhang, Hu and Johansson, Composite federated learning with heterogeneous data (ICASSP 2024).

    Clients decouple gradient and prox steps, and correct their drift with what the server sends anyway. The server
    starts from w_0 itself instead of its prox, since it does not know the clients' number of steps yet; all clients
    should have the same.
    """

    client_lr: Positive
    server_lr: Positive = 1.0

    partial = False
    mirrored = False
    exact = "composite"

    def init(self, problem, w0):
        return {"prox": w0, "drift": 0 * w0}, 0 * w0

    def local(self, problem, server, client, data):
        correction = server["drift"] - client

        def step(state, batch):
            dual, primal, gradients, elapsed = state
            g = problem.gradient(primal, batch)
            dual = dual - self.client_lr * (g + correction)
            elapsed = elapsed + self.client_lr
            return dual, problem.prox(dual, elapsed), gradients + g, elapsed

        start = (server["prox"], server["prox"], 0 * client, jnp.zeros((), client.dtype))
        dual, _, gradients, elapsed = data.steps(step, start)
        return {"dual": dual, "elapsed": elapsed}, gradients * (self.client_lr / elapsed)

    def server(self, problem, server, mean):
        x = server["prox"] + self.server_lr * (mean["dual"] - server["prox"])
        length = self.server_lr * mean["elapsed"]  # eta eta_g tau
        return {"prox": problem.prox(x, length), "drift": (server["prox"] - x) / length}

    def output(self, problem, server):
        return server["prox"]
