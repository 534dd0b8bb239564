"""Federated averaging of gradient steps, of subgradient steps, of normalized updates, and of steps on all rows."""

from dataclasses import dataclass, replace

import jax.numpy as jnp

from fcorun.base.config import AUTO, AutoPositive, Count
from fcorun.methods.algorithms.algorithm import Algorithm, Traits, TwoRateAlgorithm


@dataclass(frozen=True)
class FedAvg(TwoRateAlgorithm):
    """FedAvg with two learning rates. FedAvg ignores psi."""

    source = "algorithm 1 of @yuan2021, after @mcmahan2017"
    traits = Traits(
        psi_sides=(),
        hierarchy="some",
        exact_with_one_step="smooth",
        public_uploads=(),
        gradient_uploads="primal",
        gradient_steps=True,
    )

    def local(self, problem, server, client, data):
        def step(w, batch):
            g = problem.gradient(w, batch)  # line 7
            return w - self.client_lr * g  # line 8

        w = data.steps(step, server)  # lines 5-6
        return w - server, client

    def server(self, problem, server, mean):
        return server + self.server_lr * mean  # lines 9-10


@dataclass(frozen=True)
class FedAvgSubgradient(FedAvg):
    """FedAvg with a subgradient of psi in each local step.

    This is FedAvg, algorithm 1 of the paper, with line 8 in two halves, as in the authors' code: the subgradient is
    taken at the point after the gradient step. The server has no prox.
    """

    source = "FedAvg(∂) of @yuan2021, figure 1"
    traits = replace(FedAvg.traits, needs=("subgradient",), psi_sides=("client",), gradient_uploads="")

    def local(self, problem, server, client, data):
        def step(w, batch):
            w = w - self.client_lr * problem.gradient(w, batch)  # lines 7-8
            return w - self.client_lr * problem.subgradient(w)

        w = data.steps(step, server)  # lines 5-6
        return w - server, client


@dataclass(frozen=True)
class FedAvgThreshold(FedAvg):
    """FedAvg without psi, whose solution is thresholded: the output is the prox of psi at the server's model.

    For l1 this is soft thresholding by ``threshold`` times the strength. "auto" is 1 / L, at which the output is the
    optimum if the curvature of F is the same along all coordinates. Otherwise other values may be better.
    """

    source = "ours: algorithm 1 of @yuan2021, and a prox of its output"
    traits = replace(
        FedAvg.traits, psi_sides=("server",), restores_domain=True, exact_with_one_step="", sums_messages=True
    )

    threshold: AutoPositive = AUTO

    def auto(self, constants):
        smoothness = constants.pooled_smoothness() if constants.pooled_smoothness else constants.client_smoothness
        return super().auto(constants) | {"threshold": 1 / smoothness}

    def output(self, problem, server):
        return problem.prox(server, self.threshold)


@dataclass(frozen=True)
class FedNova(TwoRateAlgorithm):
    """FedNova with plain gradient steps: updates are divided by the client's number of steps.

    With unequal numbers of steps, as with ``local_epochs``, clients of more steps weigh more in the fixed point of
    FedAvg. In that of FedNova each client has its weight in F, up to the drift of local steps. The server multiplies
    the mean direction by the mean number of steps. FedNova ignores psi.
    """

    source = "algorithm 1 of @wang2020"
    traits = Traits(psi_sides=(), exact_with_one_step="smooth", robust_to_uneven_steps=True)
    multiplies_means = True

    def local(self, problem, server, client, data):
        def step(state, batch):
            w, count = state
            return w - self.client_lr * problem.gradient(w, batch), count + 1

        w, count = data.steps(step, (server, jnp.zeros((), server.dtype)))
        return {"direction": (w - server) / count, "steps": count}, client

    def server(self, problem, server, mean):
        return server + self.server_lr * mean["steps"] * mean["direction"]


@dataclass(frozen=True)
class FedGD(Algorithm):
    """FedGD(s, e): e gradient steps of each client on all of its rows, then the mean.

    FedGD ignores psi. For e > 1 the fixed point is not the optimum, equation (5).
    """

    source = "equation (4) of @pathak2020"

    step: AutoPositive = AUTO
    steps: Count = 1

    @property
    def traits(self):
        exact = "smooth" if self.steps == 1 else ""
        return Traits(psi_sides=(), deterministic=True, hierarchy="some", exact=exact)

    def auto(self, constants):
        return {"step": 1 / constants.smoothness}

    def local(self, problem, server, client, data):
        x = data.repeat(self.steps, lambda x: x - self.step * problem.gradient(x, data.whole), server)  # (4a)
        return x - server, client

    def server(self, problem, server, mean):
        return server + mean  # (4b)
