"""Federated dual averaging, with the prox on both sides or on the server alone, and with a memory of the iterates."""

from dataclasses import dataclass, replace

import jax.numpy as jnp

from fcorun.base.config import AUTO, AutoNonNegative, AutoPositive
from fcorun.methods.algorithms.algorithm import Algorithm, Traits, TwoRateAlgorithm


@dataclass(frozen=True)
class FedDualAvg(TwoRateAlgorithm):
    """FedDualAvg: clients and server average in the dual space.

    ``elapsed`` is the coefficient eta_(r,k) = eta_s eta_c r K + eta_c k of psi (line 8), a running sum. If clients take
    unequal numbers of steps, a round adds the weighted mean over the clients. ``elapsed`` is communicated with the dual
    in both directions, and counted in bytes_up and bytes_down.
    """

    source = "algorithm 3 of @yuan2021"
    traits = Traits(
        needs_convex_psi=True,
        mirrored=True,
        hierarchy="some",
        restores_domain=True,
        exact_with_one_step="composite",
        growing_broadcasts=True,
        public_uploads=("elapsed",),
        sums_messages=True,
        gradient_uploads="dual",
        gradient_steps=True,
    )

    def init(self, problem, w0):
        return {"dual": problem.to_dual(w0), "elapsed": jnp.zeros((), w0.dtype)}, None  # line 2

    def local_model(self, problem, dual, elapsed):
        """Return the model of a client at which a gradient is taken."""
        return problem.retrieve(dual, elapsed)  # line 9

    def received_model(self, problem, server, client, data):
        return self.local_model(problem, server["dual"], server["elapsed"])

    def local(self, problem, server, client, data):
        def step(state, batch):
            z, elapsed = state
            w = self.local_model(problem, z, server["elapsed"] + elapsed)  # lines 8-9
            g = problem.gradient(w, batch)  # line 10
            return z - self.client_lr * g, elapsed + self.client_lr  # line 11

        zero = jnp.zeros_like(server["elapsed"])  # rounding swallows small steps that a large sum takes one by one
        z, elapsed = data.steps(step, (server["dual"], zero))  # lines 6-7
        return {"dual": z - server["dual"], "elapsed": elapsed}, client

    def server(self, problem, server, mean):
        return {name: server[name] + self.server_lr * mean[name] for name in server}  # lines 12-13

    def output(self, problem, server):
        return problem.retrieve(server["dual"], server["elapsed"])  # line 14


@dataclass(frozen=True)
class FedDualAvgOSP(FedDualAvg):
    """FedDualAvg-OSP: FedDualAvg without the client's prox.

    Gradients are taken at the unthresholded dual while the server's threshold grows without bound. The method therefore
    relies on early stopping: the output of a long run goes to a minimizer of psi, which is zero for a norm.
    """

    source = "section 5 of @yuan2021"
    traits = replace(FedDualAvg.traits, psi_sides=("server",), exact_with_one_step="smooth")
    tends_to_minimum_of_psi = True

    def local_model(self, problem, dual, elapsed):
        return problem.to_primal(dual)  # line 9 with psi = 0


@dataclass(frozen=True)
class FastFedDA(Algorithm):
    """Fast-FedDA: dual averaging with a memory of the iterates.

    Each iterate enters the sum of the iterates once. The released code adds each iterate twice, which moves the fixed
    point.
    """

    source = "@bao2022"

    mu: AutoNonNegative = AUTO
    gamma: AutoPositive = AUTO

    traits = Traits(needs_convex_psi=True, exact_with_one_step="composite", growing_broadcasts=True)

    def auto(self, constants):
        return {"mu": constants.strong_convexity, "gamma": 2 * constants.smoothness}

    def init(self, problem, w0):
        return {"gradients": 0 * w0, "iterates": 0 * w0, "start": w0, "count": jnp.zeros((), w0.dtype)}, w0

    def broadcast(self, server):
        return {name: server[name] for name in ("gradients", "iterates", "count")}

    def point(self, problem, sums):
        """Return argmin_w <G, w> / t + mu / 4t sum ||w - w_i||^2 + gamma / 2t ||w - w_0||^2 + psi(w)."""
        count = jnp.maximum(sums["count"], 1)
        strength = self.mu / 2 * jnp.minimum(sums["count"], 1) + self.gamma / count
        pull = self.mu / 2 * sums["iterates"] + self.gamma * sums["start"] - sums["gradients"]
        return problem.prox(pull / (count * strength), jnp.minimum(sums["count"], 1) / strength)

    def received_model(self, problem, server, client, data):
        return self.point(problem, server | {"start": client})

    def local(self, problem, server, client, data):
        def step(sums, batch):
            w = self.point(problem, sums)
            return sums | {
                "gradients": sums["gradients"] + problem.gradient(w, batch),
                "iterates": sums["iterates"] + w,
                "count": sums["count"] + 1,
            }

        sums = data.steps(step, server | {"start": client})
        return {name: sums[name] - server[name] for name in ("gradients", "iterates", "count")}, client

    def server(self, problem, server, mean):
        return server | {name: server[name] + mean[name] for name in mean}

    def output(self, problem, server):
        return self.point(problem, server)
