"""Federated averaging, the server taking the mean update for a gradient."""

from dataclasses import dataclass
from typing import Any, Literal

from fcorun.algorithms.base import Known, Traits
from fcorun.algorithms.fedavg import FedAvg
from fcorun.algorithms.rates import one_rate, two_rates
from fcorun.config import Decay, Positive


@dataclass(frozen=True)
class FedOpt(FedAvg):
    """FedOpt, with the optimisers of optax. It leaves psi out.

    They differ from the paper's algorithm 2 in details: Adam's and Yogi's moments are corrected for their bias, and
    Adagrad's sum starts at 0.1.

    Attributes:
        client_lr: "auto" is 1 / (K L) of adaptive optimisers, of the order of the paper's theorem 1, and that of FedAvg
            of momentum.
        server_lr: of the optimiser; "auto" is a 1 - beta1 of FedAvg's for momentum, which goes 1 / (1 - beta1) times
            as far in the end (Ghadimi, Feyzmahdavian and Johansson, ECC 2015: less than twice as much converges on
            convex losses). The steps of adaptive optimisers know no curvature: 0.03, or 0.1 for Adagrad,
            our choice.
        optimizer: of the server.
        beta1: of the first moment, or the momentum.
        beta2: of the second moment, in adam and yogi.
        epsilon: what keeps adaptive steps finite; tau in the paper.
    """

    source = "algorithm 1 of @reddi2021"

    optimizer: Literal["momentum", "adam", "yogi", "adagrad"] = "adam"
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    epsilon: Positive = 1e-3

    @property
    def traits(self):
        return Traits(sides=(), single="smooth" if self.optimizer == "momentum" else "")

    def auto(self, known):
        return optimizer_rates(self, known)

    def init(self, problem, w0):
        return {"x": w0, "moments": server_optimizer(self).init(w0)}, None

    def broadcast(self, server):
        return server["x"]

    def server(self, problem, server, mean):
        step, moments = server_optimizer(self).update(-mean, server["moments"], server["x"])
        return {"x": server["x"] + step, "moments": moments}

    def output(self, problem, server):
        return server["x"]


def optimizer_rates(of: Any, known: Known) -> dict[str, float]:
    """The rates of an algorithm with a ``server_optimizer``, where they are "auto"."""
    if of.optimizer == "momentum":
        return two_rates(of.client_lr, of.server_lr, known, gain=1 / (1 - of.beta1))
    client = {} if isinstance(of.client_lr, float) else {"client_lr": one_rate(known)}
    return client | {"server_lr": 0.1 if of.optimizer == "adagrad" else 0.03}


def server_optimizer(of: Any) -> Any:
    """The optax optimiser that the fields optimizer, server_lr, beta1, beta2 and epsilon of an algorithm describe."""
    import optax  # takes as long to import as a short run

    return {
        "momentum": lambda: optax.sgd(of.server_lr, of.beta1),
        "adam": lambda: optax.adam(of.server_lr, of.beta1, of.beta2, of.epsilon),
        "yogi": lambda: optax.yogi(of.server_lr, of.beta1, of.beta2, of.epsilon),
        "adagrad": lambda: optax.adagrad(of.server_lr, eps=of.epsilon),
    }[of.optimizer]()
