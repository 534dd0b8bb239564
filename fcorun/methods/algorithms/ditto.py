"""Personal models beside a global one: regularized towards it, or mixed with it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import jax.numpy as jnp

from fcorun.base.config import AUTO, UNSET, AutoPositive, Fraction, NonNegative
from fcorun.methods.algorithms.algorithm import Algorithm, Traits, TwoRateAlgorithm, auto_client_lr
from fcorun.methods.algorithms.fedavg import FedAvg
from fcorun.methods.algorithms.feddualavg import FedDualAvg
from fcorun.methods.algorithms.fedmid import FedMiD

SOLVERS = {"fedavg": FedAvg, "fedmid": FedMiD, "feddualavg": FedDualAvg}


@dataclass(frozen=True)
class Ditto(TwoRateAlgorithm):
    """Ditto, which applies psi to the global model alone, if its solver does.

    A client takes as many steps on its personal model as the solver takes on the global model, on the same minibatches.
    """

    source = "algorithm 1 of @li2021ditto"

    lam: NonNegative = UNSET
    personal_lr: AutoPositive | None = None
    solver: Literal["fedavg", "fedmid", "feddualavg"] = "fedavg"

    @property
    def auto_fields(self):
        follows_auto = self.personal_lr is None and self.client_lr == AUTO
        return [*super().auto_fields, *(["personal_lr"] if follows_auto else [])]

    @property
    def curvature_alternatives(self):
        alternatives = super().curvature_alternatives
        return alternatives if self.personal_lr == AUTO else alternatives[:1]  # client_lr, which personal_lr follows

    def auto(self, constants):
        return super().auto(constants) | {"personal_lr": 1 / (constants.smoothness + self.lam)}

    @property
    def traits(self):
        solver = self.global_solver.traits
        return Traits(
            psi_sides=solver.psi_sides,
            hierarchy="some",
            needs_convex_psi=solver.needs_convex_psi,
            growing_broadcasts=solver.growing_broadcasts,
            restores_domain=solver.restores_domain,
        )

    @cached_property
    def global_solver(self) -> Algorithm:
        """The solver of the global model."""
        return SOLVERS[self.solver](client_lr=self.client_lr, server_lr=self.server_lr)

    def init(self, problem, w0):
        return self.global_solver.init(problem, w0)[0], w0

    def received_model(self, problem, server, client, data):
        return self.global_solver.received_model(problem, server, None, data)

    def local(self, problem, server, client, data):
        w = self.global_solver.output(problem, server)
        rate = self.client_lr if self.personal_lr is None else self.personal_lr

        def step(v, batch):
            return v - rate * (problem.gradient(v, batch) + self.lam * (v - w))

        upload = None if data.frozen else self.global_solver.local(problem, server, None, data)[0]
        return upload, data.steps(step, client)

    def server(self, problem, server, mean):
        return self.global_solver.server(problem, server, mean)

    def output(self, problem, server):
        return self.global_solver.output(problem, server)

    def personal(self, problem, server, client):
        return client


@dataclass(frozen=True)
class APFL(Algorithm):
    """APFL, which ignores psi.

    A client's model is the mixture alpha v + (1 - alpha) w of its own v and the server's w. A step updates w, v and
    alpha at once, from gradients at their old values.
    """

    source = "algorithm 1 of @deng2020"

    client_lr: AutoPositive = AUTO
    alpha: Fraction = 0.5
    adaptive: bool = False

    traits = Traits(psi_sides=(), hierarchy="some")

    def auto(self, constants):
        return {"client_lr": min(auto_client_lr(constants), 1 / constants.smoothness)}

    def init(self, problem, w0):
        return w0, {"v": w0, "alpha": jnp.asarray(self.alpha, w0.dtype)}

    def local(self, problem, server, client, data):
        def step(state, batch):
            w, v, alpha = state
            mixed = problem.gradient(alpha * v + (1 - alpha) * w, batch)
            slope = (v - w).dot(mixed)
            if not data.frozen:
                w = w - self.client_lr * problem.gradient(w, batch)
            v = v - self.client_lr * alpha * mixed
            return w, v, jnp.clip(alpha - self.client_lr * slope, 0, 1) if self.adaptive else alpha

        w, v, alpha = data.steps(step, (server, client["v"], client["alpha"]))
        return w - server, {"v": v, "alpha": alpha}

    def server(self, problem, server, mean):
        return server + mean

    def personal(self, problem, server, client):
        return client["alpha"] * client["v"] + (1 - client["alpha"]) * server
