"""A user's algorithm with two exchanges in a round: local steps corrected by the mean gradient, on stars and trees."""

from dataclasses import dataclass

import jax

from fcorun.base.config import NonNegative, Positive
from fcorun.methods.algorithms import Algorithm, Traits


@dataclass(frozen=True)
class Anchored(Algorithm):
    """SVRG with whole gradients. Both uploads have noise from the client's key."""

    client_lr: Positive = 0.03
    noise: NonNegative = 0.0

    source = "ours, for tests"
    traits = Traits(psi_sides=(), hierarchy="some")

    def init(self, problem, w0):
        return {"w": w0, "gradient": 0 * w0}, None

    def first_broadcast(self, server):
        return server["w"]

    def first_local(self, problem, server, client, data):
        gradient = problem.gradient(server, data.whole)
        return self.perturb(gradient, data), client

    def first_server(self, problem, server, mean):
        return server | {"gradient": mean}

    def local(self, problem, server, client, data):
        anchor = problem.gradient(server["w"], data.whole)

        def step(w, batch):
            return w - self.client_lr * (problem.gradient(w, data.whole) - anchor + server["gradient"])

        return self.perturb(data.steps(step, server["w"]) - server["w"], data), client

    def server(self, problem, server, mean):
        return server | {"w": server["w"] + mean}

    def output(self, problem, server):
        return server["w"]

    def perturb(self, vector, data):
        return vector + self.noise * jax.random.normal(data.key, (), vector.dtype)
