"""FedAvg with metrics of its own: the distance of the clients' models from consensus, and the time of work."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import Positive
from fcorun.base.metrics import Metric
from fcorun.methods.algorithms import Algorithm, Traits


@dataclass(frozen=True)
class TimedFedAvg(Algorithm):
    """FedAvg whose clients keep their models. A round takes a second, and a mean of the clients' numbers in seconds."""

    client_lr: Positive = 0.01

    source = "ours"
    traits = Traits(psi_sides=(), hierarchy="some")
    declared_metrics = (
        Metric("consensus", "distance from consensus", higher=False, log=True),
        Metric("worked_seconds", "time of work (s)", monotone=True),
    )

    def init(self, problem, w0):
        return {"w": w0, "seconds": jnp.zeros((), w0.dtype)}, w0

    def local(self, problem, server, client, data):
        w = data.steps(lambda w, batch: w - self.client_lr * problem.gradient(w, batch), server["w"])
        return {"w": w, "seconds": data.client.astype(w.dtype)}, w

    def server(self, problem, server, mean):
        return {"w": mean["w"], "seconds": server["seconds"] + 1 + mean["seconds"]}

    def output(self, problem, server):
        return server["w"]

    def metrics(self, problem, server, clients):
        deviations = clients.map(lambda v: v - v.mean(axis=0, keepdims=True))
        n_clients = len(deviations["bias"])
        return {"consensus": deviations.norm() / jnp.sqrt(n_clients), "worked_seconds": server["seconds"]}
