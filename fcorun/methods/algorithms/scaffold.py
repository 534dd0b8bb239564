"""Stochastic controlled averaging."""

from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp

from fcorun.base.config import AUTO, AutoPositive, Positive
from fcorun.methods.algorithms.algorithm import Algorithm, Traits, auto_client_lr


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """SCAFFOLD, which ignores psi.

    The rate "auto" is the bound of theorem III but for its constant; for cohorts of some clients that of SAGA, the
    special case K = 1 (Defazio, Bach and Lacoste-Julien, 2014).
    """

    source = "algorithm 1 of @karimireddy2020"

    client_lr: AutoPositive = AUTO
    server_lr: Positive = 1.0
    option: Literal[1, 2] = 2

    @property
    def traits(self):
        return Traits(
            psi_sides=(),
            exact="smooth",
            robust_to_uneven_steps=True,
            uploads="increments",
            public_uploads=(),
            gradient_steps=self.option == 2,  # the first option takes a second gradient of each batch, at x
        )

    def auto(self, constants):
        return {"client_lr": auto_client_lr(constants, self.server_lr) / (3 if constants.partial_participation else 1)}

    def init(self, problem, w0):
        return {"x": w0, "c": 0 * w0}, 0 * w0  # lines 1-2

    def received_model(self, problem, server, client, data):
        return server["x"]

    def local(self, problem, server, client, data):
        x, c = server["x"], server["c"]
        control = client  # c_i

        def step(state, batch):
            y, gradients_at_x, count = state
            y = y - self.client_lr * (problem.gradient(y, batch) - control + c)  # lines 9-10
            if self.option == 1:
                gradients_at_x = gradients_at_x + problem.gradient(x, batch)
            return y, gradients_at_x, count + 1

        y, gradients_at_x, count = data.steps(step, (x, 0 * x, jnp.zeros((), x.dtype)))  # lines 7-8
        mean_step = (x - y) / (count * self.client_lr)
        new_control = gradients_at_x / count if self.option == 1 else control - c + mean_step  # line 12
        return {"x": y - x, "c": new_control - control}, new_control  # line 13

    def server(self, problem, server, mean):
        return {
            "x": server["x"] + self.server_lr * mean["x"],  # lines 16-17
            "c": server["c"] + problem.share * mean["c"],
        }

    def output(self, problem, server):
        return server["x"]
