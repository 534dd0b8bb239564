"""Accelerated federated averaging."""

import math
from dataclasses import dataclass
from typing import Literal

from fcorun.base.config import AUTO, AutoPositive
from fcorun.methods.algorithms.algorithm import Algorithm, Traits, auto_client_lr


@dataclass(frozen=True)
class FedAc(Algorithm):
    """FedAc: clients take accelerated steps, and the server averages both sequences. FedAc ignores psi.

    ``w`` is the main iterate, ``aggregated`` the one that is reported, and gradients are taken between them.
    """

    source = "algorithm 1 of @yuan2020"

    client_lr: AutoPositive = AUTO
    gamma: AutoPositive = AUTO
    mu: AutoPositive = AUTO
    variant: Literal[1, 2] = 1

    traits = Traits(psi_sides=(), exact_with_one_step="smooth")

    def auto(self, constants):
        values = {
            "client_lr": auto_client_lr(constants),
            "mu": max(constants.strong_convexity, 1e-4 * constants.smoothness),
        }
        given = {name: getattr(self, name) for name in values if name not in self.auto_fields}
        eta, mu = (values | given)["client_lr"], (values | given)["mu"]
        return values | {"gamma": max(eta, math.sqrt(eta / (mu * constants.local_steps)))}

    def init(self, problem, w0):
        return {"w": w0, "aggregated": w0}, None

    @property
    def coefficients(self):
        """alpha and 1 / beta of the paper."""
        alpha = 1 / (self.gamma * self.mu)
        if self.variant == 1:
            return alpha, 1 / (alpha + 1)
        alpha = 1.5 * alpha - 0.5
        return alpha, (alpha - 1) / (2 * alpha**2 - 1)

    def received_model(self, problem, server, client, data):
        _, share = self.coefficients
        return share * server["w"] + (1 - share) * server["aggregated"]

    def local(self, problem, server, client, data):
        alpha, share = self.coefficients

        def step(state, batch):
            w, aggregated = state["w"], state["aggregated"]
            middle = share * w + (1 - share) * aggregated
            g = problem.gradient(middle, batch)
            return {
                "w": (1 - 1 / alpha) * w + middle / alpha - self.gamma * g,
                "aggregated": middle - self.client_lr * g,
            }

        end = data.steps(step, server)
        return {name: end[name] - server[name] for name in server}, client

    def server(self, problem, server, mean):
        return {name: server[name] + mean[name] for name in server}

    def output(self, problem, server):
        return server["aggregated"]
