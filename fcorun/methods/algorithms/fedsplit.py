"""Federated operator splitting, and its accelerated form for least squares."""

from dataclasses import dataclass, replace

import jax.numpy as jnp

from fcorun.base.config import AUTO, AutoNonNegative, AutoPositive, NonNegative, Relaxation
from fcorun.base.errors import UserError
from fcorun.methods.algorithms.proximal import ProximalAlgorithm, balanced_prox_step
from fcorun.methods.algorithms.traits import EXACT_BY_WHOLE_DATA


@dataclass(frozen=True)
class FedSplit(ProximalAlgorithm):
    """FedSplit, with psi on the server.

    With psi = 0 the server's prox is the identity and this is the algorithm as printed. l and L bound the curvature of
    the clients' losses. For l > 0 and relaxation=2, exact solutions with the step "auto" contract by
    1 - 2 / (sqrt(L / l) + 1) a round. For l = 0, relaxation=1 is the safe choice.
    """

    source = "algorithm 1 of @pathak2020"

    step: AutoPositive = AUTO
    relaxation: Relaxation = 2.0
    anchor: NonNegative = 0.0

    @property
    def traits(self):
        exact = "" if self.anchor else "composite"
        return replace(EXACT_BY_WHOLE_DATA, proximal=True, exact=exact, uploads="points")

    def auto(self, constants):
        return {"step": balanced_prox_step(constants, self.anchor)}

    def init(self, problem, w0):
        return w0, {"z": w0, "start": w0}

    def local(self, problem, server, client, data):
        x, z, pull = server, client["z"], self.step * self.anchor
        v = (2 * x - z + pull * client["start"]) / (1 + pull)  # the prox of f + lambda / 2 ||. - x_1||^2 is one of f
        half = self.prox(problem, data, v, self.step / (1 + pull))  # line 1a
        z = z + self.relaxation * (half - x)  # line 1b
        return z, client | {"z": z}

    def server(self, problem, server, mean):
        return problem.prox(mean, self.step)  # line 2


@dataclass(frozen=True)
class FedSplitAccelerated(ProximalAlgorithm):
    """Splitting of Douglas and Rachford with Nesterov's momentum, for least squares and a convex psi, on the server.

    With quadratic losses and a step s < 1 / L, the splitting is a gradient method in a fixed metric on a convex
    function with the same minimum, the envelope of Patrinos, Stella and Bemporad. In this metric the envelope is
    1-smooth, by a calculation of ours, and mu s / (1 + mu s)-strongly convex. So the theorems of accelerated gradient
    methods hold: after k rounds the envelope is within 2 ||u_0 - u*||^2 / (s (k + 1)^2) of the optimum of F + psi, also
    where losses are not strongly convex, and where they are, the error falls by 1 - sqrt(mu s / (1 + mu s)) a round.
    Without momentum the first bound falls as 1 / k. Other losses have no such theorem and are refused.

    We know the paper in part: its relaxation is (1 - s L) / (1 + s L), and here it is 1. FedSplit with a well chosen
    step, longer than 1 / L, may need fewer rounds. In the first round all clients start at w_0.
    """

    source = "accelerated splitting of @patrinos2014, with longer steps"
    traits = replace(EXACT_BY_WHOLE_DATA, proximal=True, uploads="points")

    step: AutoPositive = AUTO
    mu: AutoNonNegative = AUTO

    @property
    def needs_quadratic_losses(self):
        return True

    def auto(self, constants):
        return {"step": 0.95 / constants.smoothness, "mu": constants.strong_convexity}

    def resolve_auto(self, constants):
        resolved = super().resolve_auto(constants)
        if resolved.step * constants.smoothness >= 1:
            raise UserError(f"`algo.step={resolved.step:g}` must be less than 1 / L, which is "
                            f"{1 / constants.smoothness:.4g} for these losses: lower it, or leave it out")  # fmt: skip
        return resolved

    def init(self, problem, w0):
        return w0, {"u": w0, "x": w0, "y": w0, "rounds": jnp.zeros((), w0.dtype)}

    def local(self, problem, server, client, data):
        ratio = jnp.sqrt(self.mu * self.step / (1 + self.mu * self.step))
        largest = (1 - ratio) / (1 + ratio)
        momentum = jnp.minimum((client["rounds"] - 1) / (client["rounds"] + 2), largest)
        x = client["u"] + server - client["y"]
        u = x + momentum * (x - client["x"])  # in the first round x is w_0 still
        y = self.prox(problem, data, u, self.step)
        return 2 * y - u, {"u": u, "x": x, "y": y, "rounds": client["rounds"] + 1}

    def server(self, problem, server, mean):
        return problem.prox(mean, self.step)
