"""Composite federated learning with one prox in a round, at the server."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import AUTO, AutoPositive, Positive
from fcorun.methods.algorithms.algorithm import Algorithm, Traits, auto_client_lr


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
