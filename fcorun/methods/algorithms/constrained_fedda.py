"""Federated dual averaging within an l1 ball around a point, in one stage, or in stages of shrinking balls."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from fcorun.base.config import BelowOne, Count, Positive
from fcorun.base.errors import UserError
from fcorun.base.metrics import Metric
from fcorun.methods.algorithms.algorithm import Traits, TwoRateAlgorithm
from fcorun.methods.problem.operation_counts import ONE_PROX, mark
from fcorun.methods.problem.problem import Vector

_BISECTIONS = 60  # of the multiplier of the ball: its interval shrinks to rounding


@dataclass(frozen=True)
class ConstrainedFedDA(TwoRateAlgorithm):
    """C-FedDA: FedDualAvg around a center, within the l1 ball of ``radius`` there. The center is the start.

    ``radius`` must exceed the l1 distance of the solution from the start: see the metric radius_share.
    """

    source = "@bao2022, put together from its abstract"
    is_reconstructed = True
    traits = Traits(needs=("l1_and_ridge",), exact_with_one_step="composite", growing_broadcasts=True)
    declared_metrics = (Metric("radius_share", "l1 distance from the center over the radius", higher=False),)
    metrics_of_server = True

    radius: Positive = 1000.0

    def init(self, problem, w0):
        if problem.regularized != ("weights",):
            raise UserError("the l1 ball is around the coefficients of a linear model: choose another `algo`")
        zero = jnp.zeros((), w0.dtype)
        return {"center": w0, "dual": 0 * w0, "elapsed": zero, "radius": zero + self.radius, "round": zero}, None

    def broadcast(self, server):
        return {name: server[name] for name in ("center", "dual", "elapsed", "radius")}

    def point(self, problem, stage, dual, elapsed):
        """Return argmin elapsed psi(w) - <dual, w> + ||w - center||^2 / 2 within the ball around the center."""
        v = stage["center"] + dual
        target, center = v["weights"], stage["center"]["weights"]
        penalties = problem.regularizer.l1_and_ridge(target.shape[0])
        l1, ridge = (elapsed * jnp.reshape(values, (-1, *[1] * (target.ndim - 1))) for values in penalties)

        def distance_at(multiplier):
            return jnp.abs(prox_of_two_distances(target, center, l1, ridge, multiplier) - center).sum()

        def bisect(_, interval):
            low, high = interval
            middle = (low + high) / 2
            is_outside = distance_at(middle) > stage["radius"]
            return jnp.where(is_outside, middle, low), jnp.where(is_outside, high, middle)

        largest = (jnp.abs(target - center) + l1 + ridge * jnp.abs(center)).max()  # at which the center is optimal
        _, multiplier = lax.fori_loop(0, _BISECTIONS, bisect, (jnp.zeros_like(largest), largest))
        multiplier = jnp.where(distance_at(0.0) <= stage["radius"], 0, multiplier)
        weights = prox_of_two_distances(target, center, l1, ridge, multiplier)
        return mark(Vector({**v, "weights": weights}), ONE_PROX)

    def received_model(self, problem, server, client, data):
        return self.point(problem, server, server["dual"], server["elapsed"])

    def local(self, problem, server, client, data):
        def step(state, batch):
            dual, elapsed = state
            w = self.point(problem, server, dual, server["elapsed"] + elapsed)
            return dual - self.client_lr * problem.gradient(w, batch), elapsed + self.client_lr

        dual, elapsed = data.steps(step, (server["dual"], jnp.zeros_like(server["elapsed"])))
        return {"dual": dual - server["dual"], "elapsed": elapsed}, client

    def server(self, problem, server, mean):
        moved = {name: server[name] + self.server_lr * mean[name] for name in mean}
        return server | moved | {"round": server["round"] + 1}

    def output(self, problem, server):
        return self.point(problem, server, server["dual"], server["elapsed"])

    def metrics(self, problem, server, clients):
        distance = jnp.abs(self.output(problem, server)["weights"] - server["center"]["weights"]).sum()
        return {"radius_share": distance / server["radius"]}


@dataclass(frozen=True)
class MultiStageFedDA(ConstrainedFedDA):
    """MC-FedDA: stages of C-FedDA, each around the solution of the last, in a ball of ``shrink`` times its radius.

    All stages together reach radius / (1 - shrink) from the start. Once the balls are small, nothing moves any more.
    """

    source = "@bao2022, put together from its abstract"
    is_reconstructed = True
    traits = Traits(needs=("l1_and_ridge",), growing_broadcasts=True)

    stage_rounds: Count = 50
    shrink: BelowOne = 0.5

    def server(self, problem, server, mean):
        server = super().server(problem, server, mean)
        zero = jnp.zeros_like(server["elapsed"])
        next_stage = {
            "center": self.output(problem, server),
            "dual": 0 * server["dual"],
            "elapsed": zero,
            "radius": self.shrink * server["radius"],
            "round": zero,
        }
        ends = server["round"] == self.stage_rounds
        return jax.tree.map(lambda new, old: jnp.where(ends, new, old), next_stage, server)


def prox_of_two_distances(v, center, l1, ridge, multiplier):
    """Return argmin_w (w - v)^2 / 2 + l1 |w| + ridge w^2 / 2 + multiplier |w - center|, entry by entry.

    It is the median of the kinks and of the minima of the three parabolas: Li and Osher (Inverse Problems and Imaging
    2009), section 2.
    """
    low, high = jnp.minimum(center, 0), jnp.maximum(center, 0)
    difference = jnp.where(center > 0, multiplier - l1, l1 - multiplier)  # the slope between the kinks
    right, between, left = ((v + slope) / (1 + ridge) for slope in (-l1 - multiplier, difference, l1 + multiplier))
    return jnp.minimum(left, jnp.minimum(jnp.maximum(low, between), jnp.maximum(high, right)))
