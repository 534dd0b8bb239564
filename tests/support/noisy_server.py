"""Algorithms of a user whose server draws random numbers."""

from dataclasses import dataclass

import jax

from fcorun.methods.algorithms import FedAvg, Traits


@dataclass(frozen=True)
class NoisyServer(FedAvg):
    """FedAvg from a random start, whose server adds noise."""

    source = "ours, for tests"
    traits = Traits(psi_sides=(), hierarchy="some")

    def init(self, problem, w0):
        return w0 + 0.1 * jax.random.normal(problem.key, (), w0.dtype), None

    def server(self, problem, server, mean):
        return super().server(problem, server, mean) + 0.1 * jax.random.normal(problem.key, (), server.dtype)


class ReadsInLocal(NoisyServer):
    source = "ours, for tests"

    def local(self, problem, server, client, data):
        return jax.random.normal(problem.key, ()) * server, client
