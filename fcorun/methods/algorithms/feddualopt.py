"""Federated dual averaging whose server feeds the mean dual update to an optimizer."""

from dataclasses import dataclass
from typing import Literal

from fcorun.base.config import BelowOne, Positive
from fcorun.methods.algorithms.algorithm import Traits
from fcorun.methods.algorithms.feddualavg import FedDualAvg
from fcorun.methods.algorithms.fedopt import auto_optimizer_rates, initial_moments, optimizer_step


@dataclass(frozen=True)
class FedDualOpt(FedDualAvg):
    """FedDualAvg with a step of an optimizer on the dual in place of lines 12 and 13: our combination.

    The optimizer treats the coefficient of psi as another coordinate of the dual, so that momentum keeps the weight of
    psi against F. Adaptive steps weigh coordinates differently, which moves the fixed point.
    """

    source = "ours, of algorithm 3 of @yuan2021 and the server's optimizers of @reddi2021"

    optimizer: Literal["momentum", "adam", "yogi", "adagrad"] = "momentum"
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.99
    epsilon: Positive = 1e-3

    @property
    def traits(self):
        exact = "composite" if self.optimizer == "momentum" else ""
        return Traits(needs_convex_psi=True, mirrored=True, exact_with_one_step=exact, growing_broadcasts=True)

    def auto(self, constants):
        return auto_optimizer_rates(self, constants)

    def init(self, problem, w0):
        start, client = super().init(problem, w0)
        return start | {"moments": initial_moments(self, start)}, client

    def broadcast(self, server):
        return {name: server[name] for name in ("dual", "elapsed")}

    def server(self, problem, server, mean):
        step, moments = optimizer_step(self, mean, server["moments"])
        return {name: server[name] + step[name] for name in step} | {"moments": moments}  # lines 12-13
