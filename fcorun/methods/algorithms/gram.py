"""Least squares by the matrices of sums of products."""

from dataclasses import dataclass, replace

from jax.flatten_util import ravel_pytree

from fcorun.base.config import Count, NonNegative
from fcorun.methods.algorithms.algorithm import EXACT_BY_WHOLE_DATA, Algorithm
from fcorun.methods.problem.inner_solvers import StoppingRule
from fcorun.methods.problem.penalized_quadratic import hessian, minimize_model, pack_symmetric, unpack_symmetric


@dataclass(frozen=True)
class Gram(Algorithm):
    """Gram: clients send X'X and X'y in the first round, and the server alone solves the problem.

    Messages are the Hessian and the gradient at w = 0, whose weighted means are those of F. Later rounds change
    nothing.
    """

    source = "textbook, solved by the method of @beck2009"
    traits = replace(EXACT_BY_WHOLE_DATA, hessian="constant")
    computed_rounds = 1

    iterations: Count = 10_000
    tolerance: NonNegative = 1e-12

    @property
    def has_common_uploads(self):
        return type(self).local is Gram.local

    def broadcast(self, server):
        return ()  # a request without numbers

    def received_model(self, problem, server, client, data):
        return problem.zeros(data.dtype)

    def local(self, problem, server, client, data):
        zero = problem.zeros(data.dtype)
        return (problem.gradient(zero, data.whole), pack_symmetric(hessian(problem, zero, data.whole))), client

    def server(self, problem, server, mean):
        slopes, packed = mean
        flat, unravel = ravel_pytree(server)
        matrix = unpack_symmetric(packed, len(flat))
        gradient = slopes + unravel(matrix @ flat)
        return minimize_model(problem, gradient, matrix, server, StoppingRule(self.iterations, 0.0, self.tolerance))
