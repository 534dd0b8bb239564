"""Local gradient steps with a randomly skipped prox and communication."""

import math
from dataclasses import dataclass, replace

from fcorun.base.config import AUTO, AutoFraction, AutoPositive
from fcorun.base.errors import UserError
from fcorun.methods.algorithms.algorithm import Algorithm
from fcorun.methods.algorithms.traits import EXACT_BY_WHOLE_DATA


@dataclass(frozen=True)
class ProxSkip(Algorithm):
    """ProxSkip; with psi = 0 it is Scaffnew, algorithm 2 of its paper.

    A round consists of the steps up to a communication, a geometric random number that all clients share. The skipped
    prox is that of consensus and psi together.
    """

    source = "@mishchenko2022"

    step: AutoPositive = AUTO
    probability: AutoFraction = AUTO

    traits = replace(EXACT_BY_WHOLE_DATA, uploads="points")

    def __post_init__(self):
        if isinstance(self.probability, float) and not self.probability:
            raise UserError("`algo.probability=0` never communicates: give more than 0")

    def auto(self, constants):
        return {
            "step": 1 / constants.smoothness,
            "probability": math.sqrt(max(constants.strong_convexity / constants.smoothness, 1e-4)),
        }

    def init(self, problem, w0):
        return w0, {"x": w0, "h": 0 * w0}

    def local(self, problem, server, client, data):
        prox_step = self.step / self.probability
        # the update of h by the last communication, whose prox the client receives only now
        h = client["h"] + (server - client["x"]) / prox_step

        def step(x):
            return x - self.step * (problem.gradient(x, data.whole) - h)

        x = data.repeat(data.geometric_steps(self.probability), step, server)
        return x - prox_step * h, {"x": x, "h": h}

    def server(self, problem, server, mean):
        return problem.prox(mean, self.step / self.probability)
