"""A primal-dual method that may skip communication."""

from dataclasses import dataclass

from fcorun.algorithms.base import Traits, balanced_prox_step
from fcorun.algorithms.proximal import ProximalAlgorithm
from fcorun.config import AUTO, AutoPositive, Decay


@dataclass(frozen=True)
class FedPD(ProximalAlgorithm):
    """FedPD; it leaves psi out.

    A round ends with a communication; those that are skipped lie within it. Held at a constant ``skip``, it need not
    come to the optimum.

    Attributes:
        step: eta; "auto" is 1 / sqrt(l L).
        skip: the probability p with which clients go on without communicating, less than 1.
    """

    source = "algorithm 1 of @zhang2021"

    step: AutoPositive = AUTO
    skip: Decay = 0.0

    @property
    def traits(self):
        exact = "" if self.skip else "smooth"
        return Traits(psi_sides=(), partial=False, proximal=True, deterministic=True, exact=exact)

    def auto(self, known):
        return {"step": balanced_prox_step(known)}

    def init(self, problem, w0):
        return w0, 0 * w0

    def local(self, problem, server, client, data):
        def step(state):
            center, dual = state
            x = self.prox(problem, data, center - self.step * dual, self.step)  # argmin f + <dual, .> + ||. - c||^2/2s
            dual = dual + (x - center) / self.step
            return x + self.step * dual, dual

        return data.repeat(data.geometric_steps(1 - self.skip), step, (server, client))

    def server(self, problem, server, mean):
        return mean

    def output(self, problem, server):
        return server
