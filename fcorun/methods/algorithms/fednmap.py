"""Composite methods with control variates of ours: the normal map, and one prox in a round at the server."""

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


@dataclass(frozen=True)
class FedCanon(Algorithm):
    """FedCanon: gradient steps of clients with control variates, and one prox of the server in a round.

    From the paper: one prox in a round, control variates with the mean gradient, and the claims (a weakly convex psi,
    no bound on heterogeneity, a linear rate under the Polyak-Lojasiewicz condition). Ours: the form of the control
    variates. A client replaces its own gradient by the server's last step, which contains psi and vanishes at the
    optimum, so that the optimum is a fixed point for any number of local steps.
    """

    source = "@zhou2025; the control variates are ours"

    client_lr: AutoPositive = AUTO
    server_lr: Positive = 1.0

    traits = Traits(
        psi_sides=("server",), partial=False, exact="composite", robust_to_uneven_steps=True, uploads="points"
    )

    def auto(self, constants):
        return {"client_lr": auto_client_lr(constants, self.server_lr)}

    def init(self, problem, w0):
        return {"x": w0, "step": jnp.zeros((), w0.dtype)}, {"x": w0, "gradient": 0 * w0}

    def received_model(self, problem, server, client, data):
        return server["x"]

    def local(self, problem, server, client, data):
        x = server["x"]
        last_step = (client["x"] - x) / jnp.where(server["step"] > 0, server["step"], 1)  # 0 in the first round
        correction = last_step - client["gradient"]

        def step(state, batch):
            y, gradients, count = state
            g = problem.gradient(y, batch)
            return y - self.client_lr * (g + correction), gradients + g, count + 1

        _, gradients, count = data.steps(step, (x, 0 * x, jnp.zeros((), x.dtype)))
        mean_gradient = gradients / count
        elapsed = count * self.client_lr  # the sum of eta_c over the steps
        return {"gradient": mean_gradient, "elapsed": elapsed}, {"x": x, "gradient": mean_gradient}

    def server(self, problem, server, mean):
        step = self.server_lr * mean["elapsed"]
        return {"x": problem.prox(server["x"] - step * mean["gradient"], step), "step": step}

    def output(self, problem, server):
        return server["x"]
