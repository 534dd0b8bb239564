"""Federated averaging, and dual averaging, whose server feeds the mean update to an optimizer."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from fcorun.base.config import AUTO, BelowOne, Positive
from fcorun.methods.algorithms.algorithm import PyTree, Traits, TwoRateAlgorithm, auto_client_lr, auto_rates
from fcorun.methods.algorithms.fedavg import FedAvg
from fcorun.methods.algorithms.feddualavg import FedDualAvg


@dataclass(frozen=True)
class ServerOptimizer(TwoRateAlgorithm):
    """An algorithm whose server takes the mean change of the clients for the negative gradient of an optimizer."""

    optimizer: Literal["momentum", "adam", "yogi", "adagrad"] = "momentum"
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.99
    epsilon: Positive = 1e-3

    def auto(self, constants):
        """Return the "auto" rates.

        Momentum moves 1 / (1 - beta1) times as far in the long run (Ghadimi, Feyzmahdavian and Johansson, ECC 2015:
        less than twice the resulting rate converges on convex losses). The clients' rate for other optimizers is of the
        order of theorem 1 of Reddi et al.
        """
        if self.optimizer == "momentum":
            return auto_rates(self.client_lr, self.server_lr, constants, server_gain=1 / (1 - self.beta1))
        rates = {"server_lr": 0.1 if self.optimizer == "adagrad" else 0.03}
        if not isinstance(self.client_lr, float):
            rates["client_lr"] = auto_client_lr(constants)
        return rates

    def initial_moments(self, like: PyTree) -> dict[str, PyTree]:
        """Return the initial moments: m = 0 and v = tau^2."""
        moments = {"m": jax.tree.map(jnp.zeros_like, like)}
        if self.optimizer == "momentum":
            return moments
        return moments | {"v": jax.tree.map(lambda w: jnp.full_like(w, self.epsilon**2), like)}

    def take_step(self, change: PyTree, moments: dict[str, PyTree]) -> tuple[PyTree, dict[str, PyTree]]:
        """Return a step of the optimizer after the mean ``change``, Delta of the paper, and the new moments."""
        if self.optimizer == "momentum":
            m = jax.tree.map(lambda m, delta: self.beta1 * m + delta, moments["m"], change)
            return jax.tree.map(lambda m: self.server_lr * m, m), {"m": m}
        update_second = {
            "adagrad": lambda v, square: v + square,
            "yogi": lambda v, square: v - (1 - self.beta2) * square * jnp.sign(v - square),
            "adam": lambda v, square: self.beta2 * v + (1 - self.beta2) * square,
        }[self.optimizer]
        m = jax.tree.map(lambda m, delta: self.beta1 * m + (1 - self.beta1) * delta, moments["m"], change)
        v = jax.tree.map(lambda v, delta: update_second(v, delta**2), moments["v"], change)
        step = jax.tree.map(lambda m, v: self.server_lr * m / (jnp.sqrt(v) + self.epsilon), m, v)
        return step, {"m": m, "v": v}


@dataclass(frozen=True)
class FedOpt(ServerOptimizer, FedAvg):
    """FedOpt: FedAdagrad, FedYogi, FedAdam, and FedAvgM with momentum. FedOpt ignores psi."""

    source = "algorithm 2 of @reddi2021"

    optimizer: Literal["momentum", "adam", "yogi", "adagrad"] = "adam"
    beta1: BelowOne = AUTO

    @property
    def traits(self):
        return Traits(psi_sides=(), exact_with_one_step="smooth" if self.optimizer == "momentum" else "")

    def init(self, problem, w0):
        return {"x": w0, "moments": self.initial_moments(w0)}, None

    def broadcast(self, server):
        return server["x"]

    def server(self, problem, server, mean):
        step, moments = self.take_step(mean, server["moments"])
        return {"x": server["x"] + step, "moments": moments}

    def output(self, problem, server):
        return server["x"]


@dataclass(frozen=True)
class FedDualOpt(ServerOptimizer, FedDualAvg):
    """FedDualAvg with a step of an optimizer on the dual in place of lines 12 and 13: our combination.

    The optimizer treats the coefficient of psi as another coordinate of the dual, so that momentum keeps the weight of
    psi against F. Adaptive steps weigh coordinates differently, which moves the fixed point.
    """

    source = "ours, of algorithm 3 of @yuan2021 and the server's optimizers of @reddi2021"

    @property
    def traits(self):
        exact = "composite" if self.optimizer == "momentum" else ""
        return Traits(needs_convex_psi=True, mirrored=True, exact_with_one_step=exact, growing_broadcasts=True)

    def init(self, problem, w0):
        start, client = super().init(problem, w0)
        return start | {"moments": self.initial_moments(start)}, client

    def broadcast(self, server):
        return {name: server[name] for name in ("dual", "elapsed")}

    def server(self, problem, server, mean):
        step, moments = self.take_step(mean, server["moments"])
        return {name: server[name] + step[name] for name in step} | {"moments": moments}  # lines 12-13
