"""Adaptive personalised federated learning."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import AUTO, AutoPositive, Fraction
from fcorun.methods.algorithms.algorithm import Algorithm, Traits, auto_client_lr


@dataclass(frozen=True)
class APFL(Algorithm):
    """APFL, which ignores psi.

    A client's model is the mixture alpha v + (1 - alpha) w of its own v and the server's w. A step updates w, v and
    alpha at once, from gradients at their old values.
    """

    source = "algorithm 1 of @deng2020"

    client_lr: AutoPositive = AUTO
    alpha: Fraction = 0.5
    adaptive: bool = False

    traits = Traits(psi_sides=(), hierarchy="some")

    def auto(self, constants):
        return {"client_lr": min(auto_client_lr(constants), 1 / constants.smoothness)}

    def init(self, problem, w0):
        return w0, {"v": w0, "alpha": jnp.asarray(self.alpha, w0.dtype)}

    def local(self, problem, server, client, data):
        def step(state, batch):
            w, v, alpha = state
            mixed = problem.gradient(alpha * v + (1 - alpha) * w, batch)
            slope = (v - w).dot(mixed)
            if not data.frozen:
                w = w - self.client_lr * problem.gradient(w, batch)
            v = v - self.client_lr * alpha * mixed
            return w, v, jnp.clip(alpha - self.client_lr * slope, 0, 1) if self.adaptive else alpha

        w, v, alpha = data.steps(step, (server, client["v"], client["alpha"]))
        return w - server, {"v": v, "alpha": alpha}

    def server(self, problem, server, mean):
        return server + mean

    def personal(self, problem, server, client):
        return client["alpha"] * client["v"] + (1 - client["alpha"]) * server
