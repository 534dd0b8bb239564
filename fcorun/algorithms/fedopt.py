"""Federated averaging, the server taking the mean update for a gradient."""

from dataclasses import dataclass
from typing import Any, Literal

from fcorun.algorithms.base import Traits
from fcorun.algorithms.fedavg import FedAvg
from fcorun.config import Decay, Positive


@dataclass(frozen=True)
class FedOpt(FedAvg):
    """FedOpt, algorithm 1 of Reddi et al. (ICLR 2021), with the optimisers of optax. It leaves psi out.

    They differ from the paper's algorithm 2 in details: Adam's and Yogi's moments are corrected for their bias, and
    Adagrad's sum starts at 0.1.

    Attributes:
        optimizer: of the server, with server_lr as its learning rate.
        beta1: of the first moment, or the momentum.
        beta2: of the second moment, in adam and yogi.
        epsilon: what keeps adaptive steps finite; tau in the paper.
    """

    optimizer: Literal["momentum", "adam", "yogi", "adagrad"] = "adam"
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    epsilon: Positive = 1e-3

    traits = Traits(sides=())

    def init(self, problem, w0):
        return {"x": w0, "moments": server_optimizer(self).init(w0)}, None

    def broadcast(self, server):
        return server["x"]

    def server(self, problem, server, mean):
        step, moments = server_optimizer(self).update(-mean, server["moments"], server["x"])
        return {"x": server["x"] + step, "moments": moments}

    def output(self, problem, server):
        return server["x"]


def server_optimizer(of: Any) -> Any:
    """The optax optimiser that the fields optimizer, server_lr, beta1, beta2 and epsilon of an algorithm describe."""
    import optax  # takes as long to import as a short run

    return {
        "momentum": lambda: optax.sgd(of.server_lr, of.beta1),
        "adam": lambda: optax.adam(of.server_lr, of.beta1, of.beta2, of.epsilon),
        "yogi": lambda: optax.yogi(of.server_lr, of.beta1, of.beta2, of.epsilon),
        "adagrad": lambda: optax.adagrad(of.server_lr, eps=of.epsilon),
    }[of.optimizer]()
