"""Federated averaging with normalized updates."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.methods.algorithms.algorithm import Traits, TwoRateAlgorithm


@dataclass(frozen=True)
class FedNova(TwoRateAlgorithm):
    """FedNova with plain gradient steps: updates are divided by the client's number of steps.

    With unequal numbers of steps, as with ``local_epochs``, clients of more steps weigh more in the fixed point of
    FedAvg. In that of FedNova each client has its weight in F, up to the drift of local steps. The server multiplies
    the mean direction by the mean number of steps. FedNova ignores psi.
    """

    source = "algorithm 1 of @wang2020"
    traits = Traits(psi_sides=(), exact_with_one_step="smooth", robust_to_uneven_steps=True)
    multiplies_means = True

    def local(self, problem, server, client, data):
        def step(state, batch):
            w, count = state
            return w - self.client_lr * problem.gradient(w, batch), count + 1

        w, count = data.steps(step, (server, jnp.zeros((), server.dtype)))
        return {"direction": (w - server) / count, "steps": count}, client

    def server(self, problem, server, mean):
        return server + self.server_lr * mean["steps"] * mean["direction"]
