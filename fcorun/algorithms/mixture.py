"""A mixture of global and local models."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fcorun.algorithms.base import Algorithm, Traits
from fcorun.config import AUTO, AutoFraction, AutoPositive, NonNegative
from fcorun.errors import UserError
from fcorun.problem.inner_solvers import StoppingRule, Subproblem, gradient_descent


@dataclass(frozen=True)
class Mixture(Algorithm):
    """L2GD; it leaves psi out.

    It minimises the mean of f_m(x_m) + lambda / 2 ||x_m - x||^2, x the mean of the x_m, by a coin that all clients
    share: a gradient step of their own, or with probability p a pull towards x. It communicates when a pull follows a
    step, so a round is the steps up to there, and the pulls after it. Its global model is x.

    With a constant step it ends near the optimum; with ``variance_reduction``, as in their algorithm L2SGD+, at it:
    both parts of the gradient are kept from when they were last taken, and the means of two vectors are communicated.

    Attributes:
        lam: lambda; 0 is local training, and large values are consensus.
        step: their alpha / n; "auto" is 1 / (2 max(L / (1 - p), lambda / p)), with variance reduction a third of it.
        probability: p; "auto" is lambda / (L + lambda), at least 0.01.
    """

    source = "algorithm 1 of @hanzely2020"

    lam: NonNegative
    step: AutoPositive = AUTO
    probability: AutoFraction = AUTO
    variance_reduction: bool = False

    traits = Traits(psi_sides=(), partial=False, deterministic=True)

    def __post_init__(self):
        if isinstance(self.probability, float) and not 1e-4 <= self.probability <= 1 - 1e-4:
            raise UserError(f"algo.probability={self.probability:g} leaves out the pulls or the steps for thousands of "
                            "turns, or for ever: give a number from 0.0001 to 0.9999")  # fmt: skip

    def auto(self, known):
        p = self.probability
        if isinstance(p, str):
            p = min(max(self.lam / (known.smoothness + self.lam), 0.01), 1 - 1e-4)
        step = 1 / (2 * max(known.smoothness / (1 - p), self.lam / p))
        return {"probability": p, "step": step / 3 if self.variance_reduction else step}

    @property
    def works_in_row_span(self):
        return not self.variance_reduction

    def init(self, problem, w0):
        kept = {"gradient": 0 * w0, "pull": 0 * w0} if self.variance_reduction else {}
        server = {"x": w0, "gradient": 0 * w0} if self.variance_reduction else {"x": w0}
        return server, {"x": w0, "pulls": jnp.zeros((), jnp.int32), **kept}

    def pulled(self, server, client):
        """The client's state after the pulls of the last round."""
        rate = self.step * self.lam / self.probability
        if not self.variance_reduction:
            return client | {"x": server["x"] + (1 - rate) ** client["pulls"] * (client["x"] - server["x"])}

        def step(_, state):
            own, mean = state
            pull = self.lam * (own["x"] - mean)
            x = own["x"] - self.step * ((pull - own["pull"]) / self.probability + own["gradient"] + own["pull"])
            return own | {"x": x, "pull": pull}, mean - self.step * server["gradient"]

        return jax.lax.fori_loop(0, client["pulls"], step, (client, server["x"]))[0]

    def local(self, problem, server, client, data):
        rest, pulled = 1 - self.probability, self.pulled(server, client)
        count = data.geometric_steps(self.probability)
        pulls = data.geometric_steps(rest, draw=1)
        if not self.variance_reduction:
            f = Subproblem(problem, data.whole, pulled["x"], weight=0.0)
            x = gradient_descent(f, pulled["x"], StoppingRule(count, -1.0), self.step / rest)
            return {"x": x}, {"x": x, "pulls": pulls}

        def step(own):
            gradient = problem.gradient(own["x"], data.whole)
            move = (gradient - own["gradient"]) / rest + own["gradient"] + own["pull"]
            return own | {"x": own["x"] - self.step * move, "gradient": gradient}

        own = data.repeat(count, step, pulled)
        upload = {name: own[name] for name in server}
        return upload, own | {"pulls": pulls}

    def server(self, problem, server, mean):
        return mean

    def output(self, problem, server):
        return server["x"]

    def personal(self, problem, server, client):
        return self.pulled(server, client)["x"]
