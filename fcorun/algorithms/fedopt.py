"""Federated averaging, the server taking the mean update for a gradient."""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fcorun.algorithms.base import ProblemConstants, PyTree, Traits
from fcorun.algorithms.fedavg import FedAvg
from fcorun.algorithms.two_rates import auto_client_lr, auto_rates
from fcorun.config import Decay, Positive


@dataclass(frozen=True)
class FedOpt(FedAvg):
    """FedOpt: FedAdagrad, FedYogi, FedAdam, and FedAvgM with momentum. It leaves psi out.

    Attributes:
        client_lr: "auto" is 1 / (K L) of adaptive optimisers, of the order of the paper's theorem 1, and that of FedAvg
            of momentum.
        server_lr: eta of the optimiser; "auto" is a 1 - beta1 of FedAvg's for momentum, which goes 1 / (1 - beta1)
            times as far in the end (Ghadimi, Feyzmahdavian and Johansson, ECC 2015: less than twice as much converges
            on convex losses). The steps of adaptive optimisers know no curvature: 0.03, or 0.1 for Adagrad, our choice.
        optimizer: of the server.
        beta1: of the first moment, or the momentum.
        beta2: of the second moment, in adam and yogi.
        epsilon: tau, which is added to the root of the second moment; its square is where that moment starts.
    """

    source = "algorithm 2 of @reddi2021"

    optimizer: Literal["momentum", "adam", "yogi", "adagrad"] = "adam"
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    epsilon: Positive = 1e-3

    @property
    def traits(self):
        return Traits(psi_sides=(), exact_with_one_step="smooth" if self.optimizer == "momentum" else "")

    def auto(self, known):
        return auto_optimizer_rates(self, known)

    def init(self, problem, w0):
        return {"x": w0, "moments": initial_moments(self, w0)}, None

    def broadcast(self, server):
        return server["x"]

    def server(self, problem, server, mean):
        step, moments = optimizer_step(self, mean, server["moments"])
        return {"x": server["x"] + step, "moments": moments}

    def output(self, problem, server):
        return server["x"]


def auto_optimizer_rates(of: Any, known: ProblemConstants) -> dict[str, float]:
    """The rates of an algorithm with a ``server_step``, where they are "auto"."""
    if of.optimizer == "momentum":
        return auto_rates(of.client_lr, of.server_lr, known, server_gain=1 / (1 - of.beta1))
    client = {} if isinstance(of.client_lr, float) else {"client_lr": auto_client_lr(known)}
    return client | {"server_lr": 0.1 if of.optimizer == "adagrad" else 0.03}


def initial_moments(of: Any, like: PyTree) -> dict[str, PyTree]:
    """Return the moments that the optimiser of an algorithm begins with: m = 0 and v = tau^2."""
    first = {"m": jax.tree.map(jnp.zeros_like, like)}
    if of.optimizer == "momentum":
        return first
    return first | {"v": jax.tree.map(lambda w: jnp.full_like(w, of.epsilon**2), like)}


def optimizer_step(of: Any, change: PyTree, moments: dict[str, PyTree]) -> tuple[PyTree, dict[str, PyTree]]:
    """Return the step of the optimiser that the fields optimizer, server_lr, beta1, beta2 and epsilon of an algorithm
    describe, and its new moments; the clients' mean ``change``, Delta of the paper, stands for minus the gradient."""
    if of.optimizer == "momentum":
        m = jax.tree.map(lambda m, delta: of.beta1 * m + delta, moments["m"], change)
        return jax.tree.map(lambda m: of.server_lr * m, m), {"m": m}
    second = {
        "adagrad": lambda v, square: v + square,
        "yogi": lambda v, square: v - (1 - of.beta2) * square * jnp.sign(v - square),
        "adam": lambda v, square: of.beta2 * v + (1 - of.beta2) * square,
    }[of.optimizer]
    m = jax.tree.map(lambda m, delta: of.beta1 * m + (1 - of.beta1) * delta, moments["m"], change)
    v = jax.tree.map(lambda v, delta: second(v, delta**2), moments["v"], change)
    step = jax.tree.map(lambda m, v: of.server_lr * m / (jnp.sqrt(v) + of.epsilon), m, v)
    return step, {"m": m, "v": v}
