"""Frank-Wolfe steps of the server on mean gradients, and of the clients, who send extreme points of the set."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from fcorun.base.config import AUTO, AutoPositive, Positive
from fcorun.methods.algorithms.algorithm import Algorithm, Traits


@dataclass(frozen=True)
class FrankWolfe(Algorithm):
    """Frank-Wolfe on F: the server steps towards the minimizer of the mean gradient over the constraint set.

    With ``privacy`` the gradients are clipped and their mean is noisy. For the l1 ball, whose extreme points score as
    the entries of the gradient, this is the private Frank-Wolfe method of Talwar, Thakurta and Zhang, with Gaussian
    noise on the scores in the place of Laplacian noise. A solution after R rounds has at most R nonzero entries. With
    ``order`` 1 it is their mean, which forgets noise the least fast; 2 is usual.

    A client with several minibatches sends the mean of their gradients at the server's point. With cohorts of some
    clients the error of the mean gradient does not vanish.
    """

    source = "algorithm 1 of @jaggi2013; with privacy, algorithm 1 of @talwar2015 with Gaussian noise"
    traits = Traits(
        needs=("linear_minimizer",),
        psi_sides=("server",),
        needs_convex_psi=True,
        robust_to_uneven_steps=True,
        uploads="points",
        public_uploads=(),
        gradient_steps=True,
        gradient_uploads="dual",
    )
    needs_bounded_domain = True
    is_sublinear = True
    client_lr: ClassVar[float] = 1.0  # the factor of a gradient in its message, by which noise that hides rows scales

    order: Positive = 2.0

    def init(self, problem, w0):
        return {"x": w0, "round": jnp.ones((), w0.dtype)}, None

    def broadcast(self, server):
        return server["x"]

    def local(self, problem, server, client, data):
        def subtract_gradient(total, batch):
            return total - problem.gradient(server, batch)

        return data.steps(subtract_gradient, 0 * server) / data.n_steps, client

    def server(self, problem, server, mean):
        x, number = server["x"], server["round"]
        step = self.order / (number + self.order - 1)
        return {"x": x + step * (problem.linear_minimizer(-mean) - x), "round": number + 1}

    def output(self, problem, server):
        return server["x"]


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
