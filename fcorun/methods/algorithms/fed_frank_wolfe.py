"""Federated Frank-Wolfe: clients send extreme points of the constraint set."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import AUTO, AutoPositive
from fcorun.methods.algorithms.algorithm import Algorithm, Traits


@dataclass(frozen=True)
class FedFrankWolfe(Algorithm):
    """FedFW: Frank-Wolfe steps of each client on its loss plus a penalty on its distance from the server's point.

    Client m takes the step towards s_m, the minimizer of <g_m, s> over the constraint set, with the gradient g_m of
    loss plus penalty, and sends s_m alone: a vertex of the l1 ball, or a matrix of rank one for the nuclear-norm ball.
    The server takes the same step towards the mean of s_m, so that its point is the mean of the clients' points. The
    penalty grows as the square root of the rounds and draws the clients together; there is no projection and no line
    search.

    The suboptimality falls as k^(-1/2) for convex losses, the rate of the paper, and there is no round in which the
    optimum is reached. From public text we know the problem, the quadratic penalty, what clients send, and the rate.
    That the step is 2 / (k + 1) and the penalty grows as sqrt(k + 1) in round k = 1, 2, ... is what this rate needs,
    and our reconstruction. With the weights p_m of clients in F the penalty is
    penalty * sqrt(k + 1) / 2 * sum_m p_m ||x_m - x||^2.
    """

    source = "@dadras2024, steps reconstructed"
    traits = Traits(
        needs=("linear_minimizer",),
        psi_sides=("client",),
        partial=False,
        needs_convex_psi=True,
        deterministic=True,
        uploads="exact",
    )
    needs_bounded_domain = True
    is_sublinear = True

    penalty: AutoPositive = AUTO

    def auto(self, constants):
        return {"penalty": 0.01 * constants.smoothness}

    def init(self, problem, w0):
        return {"x": w0, "round": jnp.ones((), w0.dtype)}, w0

    def received_model(self, problem, server, client, data):
        return client

    def local(self, problem, server, client, data):
        number = server["round"]
        weight = self.penalty * jnp.sqrt(number + 1)
        gradient = problem.gradient(client, data.whole) + weight * (client - server["x"])
        extreme_point = problem.linear_minimizer(gradient)
        return extreme_point, client + _step(number) * (extreme_point - client)

    def upload_bytes_for(self, problem, upload):
        minimizer_bytes = problem.regularizer.minimizer_bytes
        return sum(minimizer_bytes(array.shape, array.dtype.itemsize) for array in upload.values())

    def server(self, problem, server, mean):
        x, number = server["x"], server["round"]
        return {"x": x + _step(number) * (mean - x), "round": number + 1}

    def output(self, problem, server):
        return server["x"]


def _step(number):
    """Return the length of a step in a round counted from 1: 1 in the first one, which forgets the start."""
    return 2 / (number + 1)
