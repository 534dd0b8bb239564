"""Federated composite error feedback, FedCEF."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import AUTO, AutoPositive, Positive
from fcorun.methods.algorithms.algorithm import Algorithm, Traits
from fcorun.methods.algorithms.compressed_gradient import ef21_step


@dataclass(frozen=True)
class FedCEF(Algorithm):
    """FedCEF: local steps that decouple gradient and prox, with compressed control variates.

    We know the abstract of the paper and not its algorithm. The abstract names the parts: a decoupled proximal update,
    error feedback with control variates, and a downlink of the model before the prox, from which clients reconstruct
    the global control variate. We put these parts together as in composite federated learning with heterogeneous data
    (Zhang, Hu and Johansson 2024, ``algo=fedcomposite``), to which the method reduces with ``uplink=identity``:
    c_m is what the server knows of the client's mean gradient in a round, and moves by the compressed difference. So
    steps, the first round and constants may differ from the paper. All clients should take equally many steps.
    """

    source = "after the abstract of @qiu2026"

    client_lr: AutoPositive = AUTO
    server_lr: Positive = 1.0

    traits = Traits(partial=False, exact="composite", uploads="points", feedback="ef21")

    def auto(self, constants):
        steps = constants.local_steps * self.server_lr
        return {"client_lr": min(ef21_step(constants) / steps, 1 / constants.smoothness)}

    def init(self, problem, w0):
        zero = jnp.zeros((), w0.dtype)
        return {"x": w0, "prox": w0}, {"prox": w0, "control": 0 * w0, "total_step": zero}

    def broadcast(self, server):
        return server["x"]  # the model before the prox

    def received_model(self, problem, server, client, data):
        return problem.prox(server, client["total_step"])

    def local(self, problem, server, client, data):
        total_step = client["total_step"]  # eta eta_g K of the last round, 0 in the first one
        start = problem.prox(server, total_step)  # the model after the prox
        # the mean of all clients' control variates, 0 in the first round
        global_control = (client["prox"] - server) / jnp.where(total_step > 0, total_step, 1)
        correction = global_control - client["control"]

        def step(state, batch):
            before_prox, z, gradients, elapsed = state  # elapsed is k eta after k steps
            g = problem.gradient(z, batch)
            before_prox = before_prox - self.client_lr * (g + correction)
            elapsed = elapsed + self.client_lr
            return before_prox, problem.prox(before_prox, elapsed), gradients + g, elapsed

        zero = jnp.zeros_like(total_step)
        _, _, gradients, elapsed = data.steps(step, (start, start, 0 * start, zero))
        mean_gradient = gradients * (self.client_lr / elapsed)
        new_client = {"prox": start, "control": client["control"], "total_step": self.server_lr * elapsed}
        return {"gradient": mean_gradient, "elapsed": elapsed}, new_client

    def after_sending(self, client, message):
        return {**client, "control": message["gradient"]}  # c_m moves by the compressed difference to the mean gradient

    def server(self, problem, server, mean):
        total_step = self.server_lr * mean["elapsed"]
        x = server["prox"] - total_step * mean["gradient"]  # x_(r+1), by the mean control variate
        return {"x": x, "prox": problem.prox(x, total_step)}

    def output(self, problem, server):
        return server["prox"]
