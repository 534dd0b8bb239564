"""Distributed approximate Newton, its stabilized form, and its form for one client."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fcorun.base.config import AUTO, AutoNonNegative, AutoPositive, Count, Index, Positive
from fcorun.methods.algorithms.algorithm import Traits, tree_bytes
from fcorun.methods.algorithms.mean_gradient import EXACT_BY_SHIFTED_LOSSES, ShiftedAlgorithm


@dataclass(frozen=True)
class DANE(ShiftedAlgorithm):
    """DANE, with psi in each client's problem, our extension: the paper has psi = 0.

    The optimum is a fixed point for any ``mu`` and ``eta``. Convergence is certain for ``eta`` 1.
    """

    source = "figure 1 of @shamir2014, psi = 0"

    mu: AutoPositive = AUTO
    eta: Positive = 1.0

    traits = EXACT_BY_SHIFTED_LOSSES

    def local(self, problem, server, client, data):
        mean_gradient = server
        shift = client["gradient"] - self.eta * mean_gradient
        return self.solve(problem, data, client["w"], shift, mu=self.mu, eta=self.eta), client

    def server(self, problem, server, mean):
        return server | {"w": mean}


@dataclass(frozen=True)
class SDANE(ShiftedAlgorithm):
    """S-DANE: DANE around a centre of its own, so that clients may solve their problems roughly. It ignores psi.

    Clients send their solutions and the gradients there, from which the server moves the centre. With exact solutions
    the centre is their mean, and S-DANE is DANE with psi = 0. The centres, their origin in the hybrid projection
    proximal-point method, and rough solutions are as in public descriptions of the paper; the server's step is that of
    the hybrid projection method with strong convexity mu. Cohorts of some clients, which the paper allows, are left
    out.
    """

    source = "@jiang2024; the step of the server as in the hybrid projection method"

    iterations: Count = 10
    lam: AutoPositive = AUTO
    mu: AutoNonNegative = AUTO

    traits = Traits(psi_sides=(), partial=False, proximal=True, deterministic=True, exact="smooth", uploads="points")

    def auto(self, constants):
        lam = super().auto(constants)["mu"]  # the weight that the base class, after DANE, calls mu
        return {"lam": lam, "mu": constants.strong_convexity}

    def init(self, problem, w0):
        server, client = super().init(problem, w0)
        return server | {"center": w0}, client

    def first_broadcast(self, server):
        return server["center"]

    def local(self, problem, server, client, data):
        smooth = problem.without_psi()
        # the first exchange has sent the centre, which the client remembers as w; the second sends the mean gradient
        center = client["w"]
        mean_gradient = server
        w = self.solve(smooth, data, center, client["gradient"] - mean_gradient, mu=self.lam)
        return {"w": w, "gradient": problem.gradient(w, data.whole)}, client

    def server(self, problem, server, mean):
        pull = self.lam * server["center"] + self.mu * mean["w"] - mean["gradient"]
        return server | {"w": mean["w"], "center": (1 / (self.lam + self.mu)) * pull}


@dataclass(frozen=True)
class EDSL(ShiftedAlgorithm):
    """EDSL: all clients send gradients, and one client solves the problem with psi, of which the gradient is shifted.

    As printed, ``mu`` is 0, and the strength of psi falls from round to round to the strength that is constant here.
    """

    source = "algorithm 1 of @wang2017, with mu = 0 and a constant strength"

    client: Index = 0
    mu: AutoNonNegative = AUTO

    picks_client = True
    traits = EXACT_BY_SHIFTED_LOSSES

    def local(self, problem, server, client, data):
        solves = data.client == self.client
        shift = client["gradient"] - server
        iterations = jnp.where(solves, self.iterations, 0)  # the other clients compute and send nothing
        w = self.solve(problem, data, client["w"], shift, mu=self.mu, iterations=iterations)
        return {"w": jax.tree.map(lambda v: jnp.where(solves, v, 0), w), "solves": solves.astype(w.dtype)}, client

    def count_local_clients(self, cohort_size):
        return 1

    def upload_bytes(self, upload):
        return tree_bytes(upload["w"] if "solves" in upload else upload)  # the mark of who solves is not sent

    def server(self, problem, server, mean):
        return server | {"w": mean["w"] / mean["solves"]}
