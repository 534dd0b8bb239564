"""L2GD: personal models that are pulled to their mean."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fcorun.base.config import AUTO, UNSET, AutoFraction, AutoPositive, NonNegative
from fcorun.base.errors import UserError
from fcorun.methods.algorithms.algorithm import Algorithm, Traits
from fcorun.methods.problem.inner_solvers import StoppingRule, Subproblem, gradient_descent


@dataclass(frozen=True)
class Mixture(Algorithm):
    """L2GD, which ignores psi.

    The algorithm minimizes the mean of f_m(x_m) + lambda / 2 ||x_m - x||^2 with x the mean of the x_m. Clients share
    the flips of a coin: with probability p each x_m is pulled towards x, else each client takes a gradient step. A pull
    after a step needs communication. A round is a sequence of steps, the communication, and the pulls after them. A
    client computes these pulls when its next round starts, or when its personal model is evaluated.

    With a constant step the algorithm ends near the optimum. With ``variance_reduction``, as in L2SGD+ of the same
    paper, it reaches the optimum: a client stores the last value J of its gradient and the last value Psi of its pull,
    and communicates the means of x_m and J.

    ``personal`` returns x_m after the pulls. ``output`` returns the mean x before the pulls. Pulls leave x as it is, so
    that ``output`` is the mean of the personal models. With ``variance_reduction`` each pull also moves x by the mean
    of J, which is 0 at the optimum: until then ``output`` and the mean of the personal models differ.
    """

    source = "algorithm 1 of @hanzely2020"

    lam: NonNegative = UNSET
    step: AutoPositive = AUTO
    probability: AutoFraction = AUTO
    variance_reduction: bool = False

    traits = Traits(psi_sides=(), partial=False, deterministic=True, uploads="points", reveals_personal=True)

    def __post_init__(self):
        if isinstance(self.probability, float) and not 1e-4 <= self.probability <= 1 - 1e-4:
            raise UserError(f"`algo.probability={self.probability:g}` makes thousands of flips, or all, pulls "
                            "alone or steps alone: give a number from 0.0001 to 0.9999")  # fmt: skip

    def auto(self, constants):
        p = self.probability
        if isinstance(p, str):
            p = min(max(self.lam / (constants.smoothness + self.lam), 0.01), 1 - 1e-4)
        step = 1 / (2 * max(constants.smoothness / (1 - p), self.lam / p))
        return {"probability": p, "step": step / 3 if self.variance_reduction else step}

    @property
    def works_in_row_span(self):
        return not self.variance_reduction

    def init(self, problem, w0):
        server = {"x": w0}
        client = {"x": w0, "pulls": jnp.zeros((), jnp.int32)}
        if self.variance_reduction:
            server |= {"gradient": 0 * w0}
            client |= {"gradient": 0 * w0, "pull": 0 * w0}  # J and Psi
        return server, client

    def apply_pulls(self, server, client):
        """Return the client's state after the pulls of the last round."""
        rate = self.step * self.lam / self.probability
        if not self.variance_reduction:
            return client | {"x": server["x"] + (1 - rate) ** client["pulls"] * (client["x"] - server["x"])}

        def apply_pull(_, state):
            client, mean = state
            pull = self.lam * (client["x"] - mean)
            direction = (pull - client["pull"]) / self.probability + client["gradient"] + client["pull"]
            client = client | {"x": client["x"] - self.step * direction, "pull": pull}
            return client, mean - self.step * server["gradient"]

        return jax.lax.fori_loop(0, client["pulls"], apply_pull, (client, server["x"]))[0]

    def received_model(self, problem, server, client, data):
        return self.apply_pulls(server, client)["x"]

    def local(self, problem, server, client, data):
        step_probability = 1 - self.probability
        client = self.apply_pulls(server, client)
        n_steps = data.geometric_steps(self.probability)
        n_pulls = data.geometric_steps(step_probability, draw=1)
        if not self.variance_reduction:
            loss = Subproblem(problem, data.whole, client["x"], weight=0.0)
            never = -1.0  # a norm of gradients at which no run stops
            x = gradient_descent(loss, client["x"], StoppingRule(n_steps, never), self.step / step_probability)
            return {"x": x}, {"x": x, "pulls": n_pulls}

        def step(client):
            gradient = problem.gradient(client["x"], data.whole)
            direction = (gradient - client["gradient"]) / step_probability + client["gradient"] + client["pull"]
            return client | {"x": client["x"] - self.step * direction, "gradient": gradient}

        client = data.repeat(n_steps, step, client)
        upload = {name: client[name] for name in server}
        return upload, client | {"pulls": n_pulls}

    def server(self, problem, server, mean):
        return mean

    def output(self, problem, server):
        return server["x"]

    def personal(self, problem, server, client):
        return self.apply_pulls(server, client)["x"]
