"""Local gradient steps, after which each coordinate of the model is sent by some clients of the cohort."""

import math
from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import AUTO, AutoFraction, AutoPositive, Count
from fcorun.base.errors import UserError
from fcorun.methods.algorithms.algorithm import Algorithm, LocalData, Traits
from fcorun.methods.problem.problem import Problem, Vector


@dataclass(frozen=True)
class TAMUNA(Algorithm):
    """TAMUNA, which ignores psi; where all clients send everything it is Scaffnew, ProxSkip with psi = 0.

    A round consists of the steps up to a communication, a geometric random number that the cohort shares. Each
    coordinate is then sent by s of the c clients, and the server takes the mean of the s numbers. In a second exchange
    the cohort receives the new model, by which each client corrects h at the coordinates that it sent.

    The clients that send coordinate k are those of the places k s, k s + 1, ..., k s + s - 1 (mod c) in a random order
    of the cohort, so that none sends more than ceil(s d / c) of d numbers. Those are the bytes that count. The "auto"
    probability and the gain chi of h are those of the theorem for n clients of equal weight.
    """

    source = "algorithm 1 of @condat2023, with full gradients"

    step: AutoPositive = AUTO
    probability: AutoFraction = AUTO
    senders: Count = 2

    traits = Traits(psi_sides=(), deterministic=True, exact="smooth", uploads="exact")
    needs_equal_weights = True
    divides_cohort = True

    def __post_init__(self):
        if isinstance(self.probability, float) and not self.probability:
            raise UserError("`algo.probability=0` never communicates: give more than 0")
        if self.senders < 2:
            raise UserError(f"`algo.senders={self.senders}` compares no clients at a coordinate: give 2 or more")

    @property
    def least_clients(self):
        return self.senders

    def auto(self, constants):
        convexity = constants.strong_convexity / (constants.largest_share * self.senders * constants.smoothness)
        return {"step": 1 / constants.smoothness, "probability": math.sqrt(min(max(convexity, 1e-4), 1))}

    def init(self, problem, w0):
        return w0, {"x": w0, "h": 0 * w0}

    def first_local(self, problem, server, client, data):
        def step(x):
            return x - self.step * (problem.gradient(x, data.whole) - client["h"])

        x = data.repeat(data.geometric_steps(self.probability), step, server)
        # the mean over the cohort of these messages is that over the senders of a coordinate
        return problem.cohort_size / self.senders * self._mask(problem, x, data) * x, client | {"x": x}

    def first_server(self, problem, server, mean):
        return mean

    def local(self, problem, server, client, data):
        n, s = problem.n_clients, self.senders
        chi = n * (s - 1) / (s * (n - 1))
        correction = self.probability * chi / self.step * self._mask(problem, server, data) * (server - client["x"])
        return (), client | {"h": client["h"] + correction}

    def server(self, problem, server, mean):
        return server

    def upload_bytes_for(self, problem, upload):
        if not upload:
            return 0  # the second exchange
        d = sum(values.size for values in upload.values())
        return math.ceil(self.senders * d / problem.cohort_size) * upload.dtype.itemsize

    def _mask(self, problem: Problem, model: Vector, data: LocalData) -> Vector:
        """Return 1 at the coordinates that the client sends, and 0 at others."""
        mask, first, c = {}, 0, problem.cohort_size
        for name, values in model.items():
            coordinates = jnp.arange(first, first + values.size).reshape(values.shape)
            distance = (data.place - coordinates % c * self.senders) % c
            mask[name] = (distance < self.senders).astype(values.dtype)
            first += values.size
        return Vector(mask)
