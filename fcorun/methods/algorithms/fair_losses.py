"""Algorithms for the clients with the largest losses: their optimum is not that of F."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fcorun.base.config import AUTO, AutoPositive, NonNegative, Positive
from fcorun.methods.algorithms.algorithm import Algorithm, Traits, auto_client_lr
from fcorun.methods.regularizers.balls import Simplex

_SMALLEST_LOSS = 1e-10  # whose power below 1 has a finite derivative, as in the authors' code


@dataclass(frozen=True)
class QFedAvg(Algorithm):
    """q-FedAvg, which minimizes the mean of the losses to the power q + 1; with q = 0 it is FedAvg. It ignores psi."""

    source = "algorithm 2 of @li2020q"

    client_lr: AutoPositive = AUTO
    q: NonNegative = 1.0

    traits = Traits(psi_sides=(), uploads="points")

    def auto(self, constants):
        return {"client_lr": auto_client_lr(constants)}

    def local(self, problem, server, client, data):
        w = data.steps(lambda w, batch: w - self.client_lr * problem.gradient(w, batch), server)
        direction = (server - w) / self.client_lr
        loss = jnp.maximum(problem.loss(server, data.whole), _SMALLEST_LOSS)
        curvature = self.q * loss ** (self.q - 1) * direction.dot(direction) + loss**self.q / self.client_lr
        return {"direction": loss**self.q * direction, "curvature": curvature}, client

    def server(self, problem, server, mean):
        return server - mean["direction"] / mean["curvature"]


@dataclass(frozen=True)
class AFL(Algorithm):
    """Agnostic federated learning: the least loss of the worst mixture of the clients. It ignores psi.

    Each round is a step of gradient descent in the model and of ascent in the weights of the clients, on the simplex.
    The output is the mean of the models. The weights of the clients in F have no part in it.
    """

    source = "algorithm 1 of @mohri2019, with all rows"

    client_lr: AutoPositive = AUTO
    weight_lr: Positive = 0.1

    traits = Traits(psi_sides=(), partial=False, deterministic=True, uploads="points")

    def auto(self, constants):
        return {"client_lr": 1 / constants.smoothness}

    def init(self, problem, w0):
        mixture = jnp.full(problem.n_clients, 1 / problem.n_clients, w0.dtype)
        return {"w": w0, "mixture": mixture, "sum": 0 * w0, "count": jnp.zeros((), w0.dtype)}, None

    def broadcast(self, server):
        return server["w"]

    def local(self, problem, server, client, data):
        loss, gradient = jax.value_and_grad(problem.loss)(server, data.whole)
        return {"gradient": gradient, "loss": loss, "client": data.client}, client

    def server_all(self, problem, server, uploads, weights):
        clients = uploads["client"].astype(jnp.int32)
        arrived = weights > 0
        share = jnp.where(arrived, server["mixture"][clients], 0)
        gradient = uploads["gradient"].map(lambda values: jnp.tensordot(share, values, 1))
        ascended = server["mixture"].at[clients].add(self.weight_lr * jnp.where(arrived, uploads["loss"], 0))
        return {
            "w": server["w"] - self.client_lr * gradient,
            "mixture": Simplex(total=1.0).project(ascended),
            "sum": server["sum"] + server["w"],
            "count": server["count"] + 1,
        }

    def output(self, problem, server):
        is_start = server["count"] == 0
        mean = server["sum"] / jnp.maximum(server["count"], 1)
        return mean.map(lambda mean, w: jnp.where(is_start, w, mean), server["w"])
