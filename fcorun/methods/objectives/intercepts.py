"""The intercepts that minimize sums of losses at given predictions: of all rows together, or of each client's rows.

The sum of the losses is a convex function of each intercept alone, whose minimum is where the derivatives add up to 0.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

MAX_INTERCEPT_STEPS = 100
_BEST_INTERCEPT = 45  # in units of the rounding error: 1e-14 in float64


class LossSums(NamedTuple):
    """Sums over rows, each with its weight in F, of the loss and its derivatives in the prediction.

    Attributes:
        loss: the sum of the losses.
        slope: the sum of the first derivatives u.
        slope_size: the sum of |u|.
        curvature: the sum of the second derivatives.
    """

    loss: jax.Array
    slope: jax.Array
    slope_size: jax.Array
    curvature: jax.Array


class InterceptSearch(NamedTuple):
    """A search for the intercept that minimizes F: Newton's method, with bisection where a step leaves the bracket.

    Attributes:
        bias: the intercept at which ``loss_sums`` are to be computed next.
        low, high: the bracket of the best intercept; infinite sides are unknown.
        steps: the number of steps so far.
    """

    bias: jax.Array
    low: jax.Array | float = -jnp.inf
    high: jax.Array | float = jnp.inf
    steps: jax.Array | int = 0

    def advance(self, sums: LossSums, has_flat_losses: bool) -> "InterceptSearch":
        """Return the search after a step, given the sums over all rows at ``bias``.

        ``has_flat_losses`` is that of the objective.
        """
        bias, slope = self.bias, sums.slope
        xp = np if isinstance(bias, np.ndarray) else jnp
        low = xp.where(slope < 0, bias, self.low)
        high = xp.where(slope > 0, bias, self.high)
        step = -slope / sums.curvature
        longest = 2.0 ** (self.steps + 1)
        if has_flat_losses:  # from a flat part a step may overflow, or be so long that no bisection ends
            step = xp.clip(step, -longest, longest)
        newton = bias + step
        middle = xp.where(xp.isfinite(low + high), (low + high) / 2, bias - xp.sign(slope) * longest)
        inside = (newton > low) & (newton < high)
        bias = xp.where(inside, newton, middle)
        return InterceptSearch(bias, low, high, self.steps + 1)  # type: ignore[arg-type]


def has_best_intercept(sums: LossSums) -> jax.Array:
    """Return whether sums over all rows are those of the best intercept, up to rounding."""
    return abs(sums.slope) <= _BEST_INTERCEPT * jnp.finfo(sums.slope.dtype).eps * sums.slope_size


# The intercepts of clients, each of which minimizes the sum of the losses of its client's rows.

Losses = Callable[[Float[Array, " n"]], Float[Array, " n"]]


class ClientIntercepts(NamedTuple):
    """The intercepts of M clients.

    Attributes:
        values: the intercept of each client, (M,).
        mean: the mean of the finite ones, with the weights of the clients in F: the intercept of any other client.
        finite: whether the client has a finite best intercept, (M,). Rows of one class alone have none, nor have
            counts that are all 0.
    """

    values: Float[Array, " M"]
    mean: Float[Array, ""]
    finite: Float[Array, " M"]

    def for_rows(self, client: Int[Array, " n"]) -> Float[Array, " n"]:
        """Return the intercept of each row, (n,): the mean for rows of clients without a finite one, or without any."""
        is_known = (client >= 0) & (client < len(self.values))
        number = jnp.where(is_known, client, 0)
        return jnp.where(is_known & self.finite[number], self.values[number], self.mean)


def fit_client_intercepts(
    losses: Losses,
    prediction: Float[Array, " n"],
    weight: Float[Array, " n"],
    client: Int[Array, " n"],
    *,
    n_clients: int,
    far: Float[Array, " n"],
    has_flat_losses: bool,
) -> ClientIntercepts:
    """Return the intercepts that minimize the weighted sum of the losses of each client's rows.

    The derivative of an intercept in the predictions is that of the implicit function, so that sums of losses at the
    best intercepts have the right first and second derivatives.

    Args:
        losses: the loss of each row as a function of its prediction.
        weight: the weight of each row in F; rows of weight 0 do not count.
        client: the client of each row, from 0 to M - 1.
        far: a prediction of each row so large that the slopes there, and at -far, have the signs of their limits.
        has_flat_losses: that of the objective.
    """

    def add_up(values):
        weighted = jnp.where(weight > 0, weight * values, 0).astype(prediction.dtype)
        return jax.ops.segment_sum(weighted, client, n_clients)

    def derivatives(predictions):
        def slopes(points):
            return jax.grad(lambda p: losses(p).sum())(points)

        return slopes(predictions), jax.grad(lambda p: slopes(p).sum())(predictions)

    def sums_at(predictions, intercepts):
        slope, curvature = derivatives(predictions + intercepts[client])
        return LossSums(jnp.zeros_like(intercepts), add_up(slope), add_up(jnp.abs(slope)), add_up(curvature))

    def is_far(state):
        search, sums = state
        return (~has_best_intercept(sums)).any() & (search.steps < MAX_INTERCEPT_STEPS)

    def advance(state):
        search, sums = state
        moved = search.advance(sums, has_flat_losses)
        is_best = has_best_intercept(sums)

        def keep_best(old, new):
            return jnp.where(is_best, old, new.astype(old.dtype))

        bias = keep_best(search.bias, moved.bias)
        bracket = keep_best(search.low, moved.low), keep_best(search.high, moved.high)
        return InterceptSearch(bias, *bracket, moved.steps), sums_at(fixed_prediction, bias)

    fixed_prediction = lax.stop_gradient(prediction)
    weight = lax.stop_gradient(weight)
    total = add_up(jnp.ones_like(prediction))
    bias = -add_up(fixed_prediction) / jnp.where(total > 0, total, 1)  # from afar Newton's steps may be too many
    unknown = jnp.full_like(bias, jnp.inf)
    start = InterceptSearch(bias, -unknown, unknown, jnp.zeros((), jnp.int32))
    search, sums = lax.while_loop(is_far, advance, (start, sums_at(fixed_prediction, bias)))
    has_curvature = sums.curvature > 0
    newton_step = sums_at(prediction, search.bias).slope / jnp.where(has_curvature, sums.curvature, 1)
    values = search.bias - jnp.where(has_curvature, newton_step - lax.stop_gradient(newton_step), 0)
    falls_at_first = derivatives(-far)[0] < 0
    rises_at_last = derivatives(far)[0] > 0
    finite = (add_up(falls_at_first) > 0) & (add_up(rises_at_last) > 0)  # by the targets, whatever the predictions are
    share = jnp.where(finite, total, 0)
    mean = share @ values / jnp.maximum(share.sum(), jnp.finfo(share.dtype).tiny)
    return ClientIntercepts(values, mean, finite)


RowDerivatives = tuple[np.ndarray, np.ndarray, np.ndarray]  # the loss of each row, and its two derivatives, each (n,)


def find_intercepts(
    row_derivatives: Callable[[np.ndarray], RowDerivatives],
    prediction: Float[np.ndarray, " n"],
    weight: Float[np.ndarray, " n"],
    client: Int[np.ndarray, " n"],
    *,
    start: Float[np.ndarray, " M"],
    has_flat_losses: bool,
) -> Float[np.ndarray, " n"]:
    """Return for each row the intercept of its client that minimizes the losses of the client's rows, in NumPy.

    The search begins at ``start``, an intercept of each client.
    """
    n_clients = len(start)
    unknown = np.full(n_clients, np.inf)
    search = InterceptSearch(start, -unknown, unknown)  # type: ignore[arg-type]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for _ in range(MAX_INTERCEPT_STEPS):
            _, slope, curvature = row_derivatives(prediction + search.bias[client])
            values = (weight * slope, weight * abs(slope), weight * curvature)
            of_clients = [np.bincount(client, of_row, n_clients) for of_row in values]
            sums = LossSums(unknown, *of_clients)  # type: ignore[arg-type]
            is_best = has_best_intercept(sums)
            if is_best.all():
                break
            moved = search.advance(sums, has_flat_losses)
            search = moved._replace(bias=np.where(is_best, search.bias, moved.bias))
    return np.asarray(search.bias)[client]
