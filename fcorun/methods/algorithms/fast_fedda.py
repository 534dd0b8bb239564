"""Fast federated dual averaging."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import AUTO, AutoNonNegative, AutoPositive
from fcorun.methods.algorithms.algorithm import Algorithm, Traits


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
