"""FedProx by minibatch steps, of which stragglers take fewer."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fcorun.base.config import AUTO, AutoPositive, Fraction
from fcorun.methods.algorithms.algorithm import Algorithm, Traits
from fcorun.methods.algorithms.proximal import balanced_prox_step


@dataclass(frozen=True)
class FedProxSGD(Algorithm):
    """FedProx as in the experiments of its paper: minibatch steps on f + mu / 2 ||. - x||^2. It ignores psi.

    A client is a straggler with probability ``stragglers``, anew in each round. Its number of steps is then uniform
    from 1 to that of the others.
    """

    source = "algorithm 2 of @li2020"

    mu: AutoPositive = AUTO
    client_lr: AutoPositive = AUTO
    stragglers: Fraction = 0.0

    traits = Traits(psi_sides=())

    def auto(self, constants):
        mu = self.mu if isinstance(self.mu, float) else 1 / balanced_prox_step(constants)
        return {"mu": mu, "client_lr": 1 / (constants.smoothness + mu)}

    def local(self, problem, server, client, data):
        def step(x, batch):
            return x - self.client_lr * (problem.gradient(x, batch) + self.mu * (x - server))

        lot, share = jax.random.uniform(data.key, (2,), server.dtype)
        fewer = 1 + jnp.floor(share * data.n_steps).astype(jnp.int32)
        x = data.steps(step, server, jnp.where(lot < self.stragglers, fewer, data.n_steps))  # line 5
        return x - server, client

    def server(self, problem, server, mean):
        return server + mean  # line 7
