"""Least squares by the matrices of sums of products."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from fcorun.algorithms.base import Algorithm, Traits
from fcorun.config import Count, NonNegative
from fcorun.problem.inner_solvers import StoppingRule
from fcorun.problem.penalized_quadratic import hessian, minimize_model, pack_symmetric, unpack_symmetric


@dataclass(frozen=True)
class Gram(Algorithm):
    """Gram: clients send X'X and X'y in the first round, and the server alone solves the problem.

    Messages are the Hessian and the gradient at w = 0, whose weighted means are those of F. Later rounds send nothing:
    the server goes on from its point, until that stays where it is.

    Attributes:
        iterations: the largest number of iterations of the server's solver in a round.
        tolerance: the solver stops at this size of its step, relative to its first step, or where rounding stops it.
    """

    source = "textbook, solved by the method of @beck2009"
    traits = Traits(
        psi_sides=("server",),
        needs_convex_psi=True,
        partial=False,
        deterministic=True,
        exact="composite",
        hessian="constant",
        common_uploads=True,
    )
    sending_rounds = 1

    iterations: Count = 10_000
    tolerance: NonNegative = 1e-12

    def init(self, problem, w0):
        size = sum(values.size for values in w0.values())
        sums = (problem.zeros(w0.dtype), jnp.zeros(size * (size + 1) // 2, w0.dtype))
        return {"w": w0, "sums": sums, "received": jnp.zeros((), bool), "settled": jnp.zeros((), bool)}, None

    def broadcast(self, server):
        return server["received"]

    def broadcast_bytes(self, broadcast):
        return 0  # a request without numbers

    def local(self, problem, server, client, data):
        has_received = server
        zero = problem.zeros(data.dtype)

        def compute():
            return problem.gradient(zero, data.whole), pack_symmetric(hessian(problem, zero, data.whole))

        def send_nothing():
            return jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), jax.eval_shape(compute))

        return lax.cond(has_received, send_nothing, compute), client

    def server(self, problem, server, mean):
        sums = jax.tree.map(lambda stored, new: jnp.where(server["received"], stored, new), server["sums"], mean)
        old = server["w"]

        def solve():
            matrix = unpack_symmetric(sums[1], sum(values.size for values in old.values()))
            flat, unravel = ravel_pytree(old)
            gradient = sums[0] + unravel(matrix @ flat)
            return minimize_model(problem, gradient, matrix, old, StoppingRule(self.iterations, 0.0, self.tolerance))

        w = lax.cond(server["settled"], lambda: old, solve)
        smallest_move = jnp.maximum(self.tolerance, 10 * jnp.finfo(w.dtype).eps)
        settled = (w - old).norm() <= smallest_move * w.norm()
        return {"w": w, "sums": sums, "received": jnp.ones((), bool), "settled": settled}

    def output(self, problem, server):
        return server["w"]
