"""Methods of few rounds by second derivatives: proximal Newton, and least squares by sums of products."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from fcorun.base.config import Count, NonNegative, Positive
from fcorun.base.metrics import Metric
from fcorun.methods.algorithms.algorithm import Algorithm
from fcorun.methods.algorithms.traits import EXACT_BY_WHOLE_DATA
from fcorun.methods.problem.inner_solvers import StoppingRule
from fcorun.methods.problem.penalized_quadratic import (
    bound_model_decrease,
    hessian,
    minimize_model,
    pack_symmetric,
    unpack_symmetric,
)

_DECREASE = 1e-4  # the share of the predicted decrease that Armijo's rule requires


@dataclass(frozen=True)
class Newton(Algorithm):
    """Proximal Newton: clients send their loss, gradient and Hessian at v, and the server minimizes the model plus psi.

    The server goes a step t along the direction to that minimum, and proposes the point v that it reaches. The loss at
    v, which arrives with the next messages, decides by Armijo's rule: the server accepts v, or halves t and keeps the
    direction.

    The solution is the proposed point. For losses without a bound on their curvature, where a proposal may be far off,
    it is the last accepted point.

    The squared decrement is twice the decrease that the model allows from the accepted point to its minimum, which is
    d'Hd without psi: twice the distance of the objective from the minimum, up to terms of higher order. It has
    what the server's solver leaves, too (``bound_model_decrease``). It is noise squared once a run has converged, and
    the run ends there.
    """

    source = "the method of @lee2014, whose quadratic model is a sum over clients"
    traits = replace(EXACT_BY_WHOLE_DATA, hessian="linear model")

    backtracks = True
    declared_metrics = (Metric("newton_decrement", "squared Newton decrement", higher=False, log=True),)
    metrics_of_server = True
    certificate = "newton_decrement"

    step: Positive = 1.0
    iterations: Count = 10_000
    tolerance: NonNegative = 1e-12

    def init(self, problem, w0):
        unknown = jnp.full((), jnp.finfo(w0.dtype).max, w0.dtype)  # before the first step
        scalars = {"value": unknown, "decrease": jnp.zeros((), w0.dtype), "decrement": unknown}
        return {"w": w0, "direction": 0 * w0, "t": jnp.ones((), w0.dtype), **scalars}, None

    def broadcast(self, server):
        return server["w"] + server["t"] * server["direction"]

    def local(self, problem, server, client, data):
        loss, gradient = jax.value_and_grad(problem.loss)(server, data.whole)
        return (loss, gradient, pack_symmetric(hessian(problem, server, data.whole))), client

    def server(self, problem, server, mean):
        loss, gradient, packed = mean
        v = self.broadcast(server)
        value = loss + problem.psi(v)
        rounding = 10 * jnp.finfo(v.dtype).eps * jnp.abs(value)
        target = server["value"] + _DECREASE * server["t"] * server["decrease"] + rounding

        def accept():
            matrix = unpack_symmetric(packed, sum(values.size for values in v.values()))
            minimum = minimize_model(problem, gradient, matrix, v, StoppingRule(self.iterations, 0.0, self.tolerance))
            direction = minimum - v
            decrease = gradient.dot(direction) + problem.psi(minimum) - problem.psi(v)
            decrement = bound_model_decrease(problem, gradient, matrix, v, minimum)
            return {"w": v, "direction": direction, "t": self.step * jnp.ones_like(loss), "value": value,
                    "decrease": decrease, "decrement": decrement}  # fmt: skip

        def halve():
            return server | {"t": server["t"] / 2}

        return lax.cond(jnp.isfinite(value) & (value <= target), accept, halve)

    def output(self, problem, server):
        return self.broadcast(server) if problem.objective.has_curvature_bound else server["w"]

    def metrics(self, problem, server, clients):
        is_known = server["decrement"] < jnp.finfo(server["decrement"].dtype).max
        return {"newton_decrement": jnp.where(is_known, server["decrement"], jnp.nan)}


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
