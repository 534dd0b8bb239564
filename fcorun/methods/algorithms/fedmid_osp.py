"""Federated mirror descent, only-server-prox."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.methods.algorithms.algorithm import Traits, TwoRateAlgorithm


@dataclass(frozen=True)
class FedMiDOSP(TwoRateAlgorithm):
    """FedMiD-OSP: FedMiD without the client's prox. Comments give the lines of algorithm 2."""

    source = "section 5 of @yuan2021"
    traits = Traits(psi_sides=("server",), mirrored=True, hierarchy="some", exact_with_one_step="composite")

    def init(self, problem, w0):
        return w0, None

    def local(self, problem, server, client, data):
        def step(state, batch):
            w, elapsed = state
            g = problem.gradient(w, batch)  # line 7
            w = problem.to_primal(problem.to_dual(w) - self.client_lr * g)  # line 8 with psi = 0
            return w, elapsed + self.client_lr

        w, elapsed = data.steps(step, (server, jnp.zeros((), server.dtype)))  # lines 5-6
        return {"update": w - server, "elapsed": elapsed}, client

    def server(self, problem, server, mean):
        z = problem.to_dual(server) + self.server_lr * mean["update"]  # lines 9-10
        return problem.retrieve(z, self.server_lr * mean["elapsed"])  # line 10

    def output(self, problem, server):
        return server
