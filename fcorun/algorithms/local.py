"""Each client alone."""

from dataclasses import dataclass

from fcorun.algorithms.base import Algorithm, Traits
from fcorun.config import Positive


@dataclass(frozen=True)
class Local(Algorithm):
    """Each client minimises its own f + psi by proximal steps, and sends nothing.

    The baseline of personalised methods: what they gain, they gain from other clients. Its global model is where it
    started. With ``start`` and ``frozen=true`` it is fine-tuning of a global model.
    """

    client_lr: Positive

    traits = Traits(sides=("client",))

    def init(self, problem, w0):
        return w0, w0

    def broadcast(self, server):
        return ()

    def local(self, problem, server, client, data):
        def step(v, batch):
            return problem.prox(v - self.client_lr * problem.gradient(v, batch), self.client_lr)

        return (), data.steps(step, client)

    def server(self, problem, server, mean):
        return server

    def output(self, problem, server):
        return server

    def personal(self, problem, server, client):
        return client
