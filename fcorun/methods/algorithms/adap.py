"""Surrogate loss of a lead client, by first and second derivatives of all."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from fcorun.base.config import Count, Index, NonNegative
from fcorun.methods.algorithms.algorithm import Algorithm, LocalData
from fcorun.methods.algorithms.traits import EXACT_BY_WHOLE_DATA
from fcorun.methods.problem.inner_solvers import StoppingRule
from fcorun.methods.problem.operation_counts import tree_bytes
from fcorun.methods.problem.penalized_quadratic import hessian, minimize_model, pack_symmetric, unpack_symmetric
from fcorun.methods.problem.problem import Problem, Vector

_MODEL_STOP = StoppingRule(10_000, 0.0, 1e-12)
_DECREASE = 1e-4  # the share of the predicted decrease that Armijo's rule requires
_SHORTEST = 1e-6


@dataclass(frozen=True)
class ADAP(Algorithm):
    """ADAP with second derivatives: one client solves with psi, for its own loss corrected by derivatives of all.

    In the first round each client fits its own loss with psi, and the server takes the mean w. In the second round, all
    clients send gradient and Hessian at w, and the lead client adds the linear and the quadratic term to its loss that
    make the derivatives at w those of F. These two rounds are ADAP. Later rounds repeat the second one at
    the last solution.

    For least squares the corrected loss is F, so that two rounds are exact. For other losses the optimum is a fixed
    point. The corrected loss need not be convex; a step without a decrease is left out.

    These details follow the authors' code, since the text of the paper was not at hand. The strength of psi is given,
    where the authors choose it by cross-validation on the lead's rows. The line search of the solver is ours.
    """

    source = "ADAP2 of @liu2022, iterated"

    client: Index = 0
    iterations: Count = 50
    tolerance: NonNegative = 1e-10

    picks_client = True
    traits = replace(EXACT_BY_WHOLE_DATA, psi_sides=("client",), hessian="linear model")

    def init(self, problem, w0):
        size = sum(values.size for values in w0.values())
        sums = (0 * w0, jnp.zeros(size * (size + 1) // 2, w0.dtype))
        return {"w": w0, "sums": sums, "averaged": jnp.zeros((), bool)}, w0

    def first_broadcast(self, server):
        return {"w": server["w"], "averaged": server["averaged"]}

    def first_received_model(self, problem, server, client, data):
        w = server["w"]
        no_terms = (0 * w, jnp.zeros((ravel_pytree(w)[0].size,) * 2, w.dtype))
        return lax.cond(server["averaged"], lambda: w, lambda: self._solve(problem, data, w, *no_terms))

    def first_local(self, problem, server, client, data):
        w = server["w"]
        no_terms = (0 * w, jnp.zeros((ravel_pytree(w)[0].size,) * 2, w.dtype))

        def differentiate():
            return problem.gradient(w, data.whole), pack_symmetric(hessian(problem, w, data.whole))

        def fit():
            return self._solve(problem, data, w, *no_terms), pack_symmetric(no_terms[1])

        return lax.cond(server["averaged"], differentiate, fit), w

    def first_server(self, problem, server, mean):
        w = server["w"].map(lambda old, new: jnp.where(server["averaged"], old, new), mean[0])
        return server | {"w": w, "sums": mean}

    def broadcast(self, server):
        return {"sums": server["sums"], "averaged": server["averaged"]}

    def received_model(self, problem, server, client, data):
        return client

    def local(self, problem, server, client, data):
        gradient, packed = server["sums"]
        leads = (data.client == self.client) & server["averaged"]

        def solve():
            shift = gradient - problem.gradient(client, data.whole)
            size = ravel_pytree(client)[0].size
            matrix = unpack_symmetric(packed, size) - hessian(problem, client, data.whole)
            return self._solve(problem, data, client, shift, matrix)

        return {"w": lax.cond(leads, solve, lambda: 0 * client), "leads": leads.astype(client.dtype)}, client

    def server(self, problem, server, mean):
        share = jnp.where(server["averaged"], mean["leads"], 1)
        w = server["w"].map(lambda old, new: jnp.where(server["averaged"], new / share, old), mean["w"])
        return server | {"w": w, "averaged": jnp.ones((), bool)}

    def output(self, problem, server):
        return server["w"]

    def count_local_clients(self, cohort_size):
        return 1

    def upload_bytes(self, upload):
        return tree_bytes(upload["w"] if "leads" in upload else upload)  # marks are not sent

    def broadcast_bytes(self, broadcast):
        return tree_bytes({name: values for name, values in broadcast.items() if name != "averaged"})

    def round_bytes(self, number, uploads, broadcasts):
        return (uploads, broadcasts) if number else ((uploads[1], 0), (0, 0))  # fits are as long as the solution

    def _solve(self, problem: Problem, data: LocalData, start: Vector, shift: Vector, matrix: jax.Array) -> Vector:
        """Return argmin_u f(u) + <shift, u> + (u - start)' matrix (u - start) / 2 + psi(u)."""
        origin, unravel = ravel_pytree(start)
        rounding = 4 * jnp.finfo(start.dtype).eps

        def evaluate(u):
            move = ravel_pytree(u)[0] - origin
            return problem.line_search_loss(u, data.whole) + shift.dot(u) + move @ matrix @ move / 2 + problem.psi(u)

        def step(u):
            move = ravel_pytree(u)[0] - origin
            gradient = problem.gradient(u, data.whole) + shift + unravel(matrix @ move)
            curvature = matrix + hessian(problem, u, data.whole)
            d = minimize_model(problem, gradient, curvature, u, _MODEL_STOP) - u
            d = d.map(lambda v: jnp.where(jnp.isfinite(v), v, 0))
            value = evaluate(u)
            decrease = gradient.dot(d) + problem.psi(u + d) - problem.psi(u)

            def is_too_long(t):
                enough = evaluate(u + t * d) <= value + _DECREASE * t * decrease + rounding * jnp.abs(value)
                return ~enough & (t > _SHORTEST)

            t = lax.while_loop(is_too_long, lambda t: t / 2, jnp.ones((), u.dtype))
            size = jnp.where(t > _SHORTEST, d.norm(), 0)
            new = u + jnp.where(t > _SHORTEST, t, 0) * d
            return new, jnp.where(size <= 10 * rounding * new.norm(), 0.0, size)

        return StoppingRule(self.iterations, 0.0, self.tolerance).iterate(step, start)
