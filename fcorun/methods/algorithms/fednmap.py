"""Composite federated learning with the normal map."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import AUTO, AutoPositive, Positive
from fcorun.methods.algorithms.algorithm import Algorithm, Traits, auto_client_lr


@dataclass(frozen=True)
class FedNMap(Algorithm):
    """FedNMap: local steps on the normal map of F + psi, plus the mean normal map minus the client's own.

    The normal map at z is grad F(w) + (z - w) / lam with w = prox_{lam psi}(z), and vanishes where w is stationary.
    From the paper: the normal map, a local correction for heterogeneity, a weakly convex psi, and a linear rate under
    the Polyak-Lojasiewicz condition. Ours: the form of the correction. A client replaces its own normal map by the mean
    one, each averaged over the steps of the last round. With K = 1, eta_s = 1 and lam = eta_c the method is
    proximal gradient descent.
    """

    source = "@huang2026; the correction is ours"

    client_lr: AutoPositive = AUTO
    server_lr: Positive = 1.0
    lam: AutoPositive = AUTO

    traits = Traits(partial=False, exact="composite", robust_to_uneven_steps=True, uploads="points")

    def auto(self, constants):
        client_lr = self.client_lr
        if isinstance(client_lr, str):
            client_lr = auto_client_lr(constants, self.server_lr)
        round_length = self.server_lr * constants.local_steps * client_lr
        return {"client_lr": client_lr, "lam": max(1 / constants.client_smoothness, round_length)}

    def init(self, problem, w0):
        return {"z": w0, "step": jnp.zeros((), w0.dtype)}, {"z": w0, "direction": 0 * w0}

    def received_model(self, problem, server, client, data):
        return problem.prox(server["z"], self.lam)

    def local(self, problem, server, client, data):
        start = server["z"]
        mean_direction = (client["z"] - start) / jnp.where(server["step"] > 0, server["step"], 1)  # of the last round
        correction = mean_direction - client["direction"]

        def step(state, batch):
            z, directions, count = state
            w = problem.prox(z, self.lam)
            direction = problem.gradient(w, batch) + (z - w) / self.lam
            return z - self.client_lr * (direction + correction), directions + direction, count + 1

        _, directions, count = data.steps(step, (start, 0 * start, jnp.zeros((), start.dtype)))
        direction = directions / count
        return {"direction": direction, "elapsed": count * self.client_lr}, {"z": start, "direction": direction}

    def server(self, problem, server, mean):
        step = self.server_lr * mean["elapsed"]
        return {"z": server["z"] - step * mean["direction"], "step": step}

    def output(self, problem, server):
        return problem.prox(server["z"], self.lam)
