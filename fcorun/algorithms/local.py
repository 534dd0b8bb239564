"""Each client alone."""

from dataclasses import dataclass

from fcorun.algorithms.base import Algorithm, Traits
from fcorun.config import AutoPositive


@dataclass(frozen=True)
class Local(Algorithm):
    """Each client minimises its own f + psi by proximal steps, and sends nothing.

    The baseline of personalised methods: what they gain, they gain from other clients. There is no model for all
    clients, so that its metrics are empty. With ``start`` and ``frozen=true`` it is fine-tuning of a global model.

    Attributes:
        client_lr: "auto" is 1 / L of a client's loss or of any minibatch of it, the longest step of proximal gradients
            that lowers any such loss (Beck and Teboulle, SIAM J. Imaging Sci. 2009, lemma 2.3).
    """

    source = "textbook, proximal gradient steps"

    client_lr: AutoPositive

    traits = Traits(psi_sides=("client",), shared_model=False)

    def auto(self, known):
        return {"client_lr": 1 / known.smoothness}

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
