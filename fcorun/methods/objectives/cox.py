"""Cox's proportional hazards, stratified by client."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import xlogy

from fcorun.base.errors import UserError
from fcorun.methods.objectives.objective import LinearModel, LossDerivatives, Margins

_NO_WEIGHT = -1e30  # the logarithm of a weight of 0, finite so that derivatives are


@dataclass(frozen=True)
class Cox(LinearModel):
    """Negative log partial likelihood of times to events, by client: the mean over rows of d (log S(t) - p).

    d is 1 for an event and 0 for a censored row, p = x'w, and S(t) is the sum of v exp(p) over the rows of the client
    whose time is at least t, the risk set. Events at equal times share a risk set. v is the weight of a row divided by
    the mean weight of its client: whole weights act as repeated rows.

    Each client has its own baseline hazard, which takes the place of an intercept. A target is a signed time: t for an
    event at t, -t for a row that is censored at t. exp(w) is the hazard ratio of one unit of a feature.
    """

    source = "@cox1972, with the ties of @breslow1974"
    convex = True
    is_log_likelihood = True
    tasks = ("survival",)
    unbounded_reason = "alone or together they are largest at each event among the rows at risk, or smallest at each"

    intercept: bool = False

    def __post_init__(self):
        if self.intercept:
            raise UserError("`objective=cox` has no intercept, since each client has a baseline hazard of its own: "
                            "leave `objective.intercept` out")  # fmt: skip

    def check_targets(self, y, y_val):
        if any((split == 0).any() for split in (y, y_val)):
            raise ValueError("a time is 0, whose sign does not tell an event from a censored row: give a small number "
                             "in its place, or times and events apart, which may be 0")  # fmt: skip
        if len(y) and not (y > 0).any():  # a site may have held-out rows alone
            raise ValueError("all training rows are censored, and a partial likelihood needs an event: check the "
                             "column of events, where 1 is an event")  # fmt: skip

    def margins(self, x, y, client):
        """Return the differences of the rows at risk from an event, whose row must have the largest prediction of all.

        The last event before a row takes the place of all earlier ones, by a chain from each event to the one before.
        Events at equal times are in each other's risk set.
        """
        order = np.lexsort((-y, np.abs(y), client))  # by client and time, at equal times events first
        x, y, client = x[order], y[order], client[order]
        number = np.arange(len(y))
        begins_client = np.diff(client, prepend=-1) != 0
        begins_time = begins_client | (np.diff(np.abs(y), prepend=-1) != 0)
        heads_risk_set = begins_time & (y > 0)
        first_of_client = np.maximum.accumulate(np.where(begins_client, number, 0))
        head = np.maximum.accumulate(np.where(heads_risk_set, number, -1))
        head = np.where(heads_risk_set, np.append(-1, head[:-1]), head)
        differences = x[head] - x
        is_at_risk = head >= first_of_client
        is_tied = (y > 0) & ~heads_risk_set
        return Margins(falling=differences[is_at_risk & ~is_tied], fixed=differences[is_at_risk & is_tied])

    @property
    def has_curvature_bound(self):
        return True

    def second_derivative_bounds(self, outputs):
        return 0.0, math.inf  # of a single row: ``curvature`` bounds the loss of a client

    def loss(self, prediction, y):
        return self.client_losses(prediction, y, jnp.ones_like(prediction))

    def client_losses(self, prediction, y, weight, client=None):
        log_risk = log_risk_sums(prediction, y, weight, client)
        return jnp.where((y > 0) & (weight > 0), log_risk - prediction, 0)

    def row_shares(self, prediction, y, weight, client=None):
        """Return how much each row counts in the gradient and in the Hessian, (2, n).

        In the gradient these are the events that the row is expected to have, less its own event; in the Hessian the
        expected events, which other terms of risk sets are sums of.
        """
        slope = jax.grad(lambda p: weight @ self.client_losses(p, y, weight, client))(prediction)
        expected_events = slope + jnp.where(y > 0, weight, 0)
        return jnp.where(weight > 0, jnp.abs(jnp.stack([slope, expected_events])), 0)

    def client_conjugates(self, prediction, y, weight, scale, client=None):
        """Return for each row a bound on the conjugate of its loss at ``scale`` times its gradient in the predictions.

        With the probabilities q_j = v_j exp(p_j) / S(t) of the rows at risk, the gradient of log S(t) - p is q minus
        the unit vector of the row. The conjugate at ``scale`` s times that is the sum of r_j log(r_j / v_j) for
        r = s q + (1 - s) times that vector. The conjugate of a sum is at most the sum of conjugates.
        """
        log_risk, mean = jax.jvp(lambda p: log_risk_sums(p, y, weight, client), (prediction,), (prediction,))
        is_event = (y > 0) & (weight > 0)
        client = jnp.zeros(len(weight), jnp.int32) if client is None else client
        order = jnp.argsort(client)
        sorted_weights = _log_relative_weight(weight[order], _differs_from_previous(client[order]))
        log_weight = jnp.zeros_like(sorted_weights).at[order].set(sorted_weights, unique_indices=True)
        log_weight = jnp.where(is_event, log_weight, 0)
        log_share = jnp.where(is_event, prediction - log_risk, 0)  # log(q_j / v_j) of the row itself
        row_share = scale * jnp.exp(log_share + log_weight)
        mixed = row_share + 1 - scale
        others = scale * (mean - log_risk) - row_share * log_share + xlogy(scale - row_share, scale)
        return jnp.where(is_event, others + xlogy(mixed, mixed) - mixed * log_weight, 0)

    def derivatives(self, prediction, y, weight, client):
        """Return the sum of the losses and its derivatives, in NumPy.

        With the expected events a of the rows, and the mean m_t of the features in the risk set of each time t of
        events, whose weights add up to d_t, the Hessian is X' diag(a) X - sum_t d_t m_t m_t'.
        """
        rows = np.lexsort((-np.abs(y), client))
        rows = rows[weight[rows] > 0]
        is_new_client = np.diff(client[rows], prepend=-1) != 0
        is_new_time = is_new_client | (np.diff(np.abs(y[rows]), prepend=0) != 0)
        first = np.flatnonzero(is_new_client)
        sizes = np.diff(first, append=len(rows))
        first_of_time = np.flatnonzero(is_new_time)
        last_of_time = np.append(first_of_time[1:], len(rows)) - 1
        time_of_row = np.cumsum(is_new_time) - 1

        def add_up(values: np.ndarray) -> np.ndarray:
            """Return the sums over the rows of a client up to each row: with falling times those over risk sets."""
            return np.concatenate([np.cumsum(part, axis=-1) for part in np.split(values, first[1:], axis=-1)], axis=-1)

        def add_up_later(values: np.ndarray) -> np.ndarray:
            """Return the sums over the rows of a client from each row on, which has these rows in its risk set."""
            return np.concatenate([np.cumsum(part[::-1])[::-1] for part in np.split(values, first[1:])])

        own_weight = weight[rows]
        event_weight = np.where(y[rows] > 0, own_weight, 0)
        largest = np.repeat(np.maximum.reduceat(prediction[rows], first), sizes)
        risk = own_weight * np.exp(prediction[rows] - largest)
        risk_of_time = np.maximum(add_up(risk)[last_of_time], np.finfo(float).tiny)
        mean_weight = np.repeat(np.add.reduceat(own_weight, first) / sizes, sizes)
        log_risk = np.log(risk_of_time)[time_of_row] + largest - np.log(mean_weight)
        events = np.add.reduceat(event_weight, first_of_time)
        hazard = np.zeros(len(rows))
        hazard[last_of_time] = events / risk_of_time  # all rows of a time are at risk at its events
        expected = np.zeros(len(y))
        expected[rows] = risk * add_up_later(hazard)
        slope = expected - np.where(y > 0, weight, 0)

        has_event = events > 0
        last_of_event = last_of_time[has_event]
        risk_of_event = risk_of_time[has_event]
        root = np.sqrt(events[has_event])

        def eliminate(features: np.ndarray) -> np.ndarray:
            return add_up(features[:, rows] * risk)[:, last_of_event] / risk_of_event * root

        def eliminate_transposed(of_events: np.ndarray) -> np.ndarray:
            shares = np.zeros(len(rows))
            shares[last_of_event] = of_events * root / risk_of_event
            restored = np.zeros(len(y))
            restored[rows] = risk * add_up_later(shares)
            return restored

        loss = float(event_weight @ (log_risk - prediction[rows]))
        return LossDerivatives(loss, slope, expected, eliminate, eliminate_transposed)

    def curvature(self, features, outputs, weight=None, y=None):
        """Return bounds on the eigenvalues of the Hessian of a client's loss: a mean of covariances in risk sets.

        The covariance of an event's risk set, whatever the probabilities of its rows, is at most the largest squared
        distance of a row from a fixed point, here the mean of the client. Without targets ``y`` every row may be an
        event with all rows at risk.
        """
        weight = np.ones(len(features)) if weight is None else weight
        y = np.ones(len(features)) if y is None else y
        present = weight > 0
        center = np.average(features, axis=0, weights=weight)
        squared_distance = np.where(present, np.square(features - center).sum(axis=1), 0)
        order = np.argsort(-np.abs(y), kind="stable")
        time = np.abs(y)[order]
        largest = np.maximum.accumulate(squared_distance[order])
        at_risk = np.searchsorted(-time, -time, side="right") - 1  # the last row of the risk set
        event_weight = np.where(y[order] > 0, weight[order], 0)
        return self.ridge, float(event_weight @ largest[at_risk]) / len(features) + self.ridge


def log_risk_sums(prediction: jax.Array, y: jax.Array, weight: jax.Array, client: jax.Array | None = None) -> jax.Array:
    """Return the logarithm of the sum of v exp(p) over each row's risk set, (n,), in O(n log n).

    The risk set of a row are the rows of its client with ``weight`` whose time |y| is at least the row's own.
    ``client`` (n,) is the client of each row, None: all rows are of one client. The sums are accumulated client by
    client from the latest time on, relative to their largest term, so that no exp overflows.
    """
    n = len(y)
    time = jnp.abs(y)
    client = jnp.zeros(n, jnp.int32) if client is None else client
    order = jnp.lexsort((-time, client))
    begins_client = _differs_from_previous(client[order])
    begins_time = begins_client | _differs_from_previous(time[order])
    log_weight = _log_relative_weight(weight[order], begins_client)

    def add_row(state, row):  # a sequential scan: a parallel one takes as long on a CPU, and seconds to compile
        largest, total = state  # the sum is exp(largest) times total
        value, begins = row
        new_largest = jnp.where(begins, value, jnp.maximum(largest, value))
        new_largest = lax.stop_gradient(new_largest)  # jnp.logaddexp here has wrong second derivatives at equal values
        kept_share = lax.stop_gradient(jnp.where(begins, 0, jnp.exp(largest - new_largest)))
        total = kept_share * total + jnp.exp(value - new_largest)
        return (new_largest, total), (new_largest, total)

    rows = (log_weight + prediction[order], begins_client)
    start = (jnp.full((), _NO_WEIGHT, prediction.dtype), jnp.zeros((), prediction.dtype))
    _, (largest, total) = lax.scan(add_row, start, rows)
    log_sum = largest + jnp.log(total)
    number_of_time = jnp.cumsum(begins_time) - 1
    last_of_time = jax.ops.segment_max(jnp.arange(n), number_of_time, n, indices_are_sorted=True)
    return jnp.zeros_like(log_sum).at[order].set(log_sum[last_of_time[number_of_time]], unique_indices=True)


def _differs_from_previous(values: jax.Array) -> jax.Array:
    """Return whether each value differs from the one before; True for the first, (n,)."""
    return jnp.concatenate([jnp.ones(min(len(values), 1), bool), values[1:] != values[:-1]])


def _log_relative_weight(weight: jax.Array, begins_client: jax.Array) -> jax.Array:
    """Return the logarithm of weights of rows sorted by client, divided by the mean positive weight of the client."""
    number = jnp.cumsum(begins_client) - 1
    n, present = len(weight), weight > 0
    total = jax.ops.segment_sum(weight, number, n, indices_are_sorted=True)[number]
    count = jax.ops.segment_sum(present.astype(weight.dtype), number, n, indices_are_sorted=True)[number]
    return jnp.where(present, jnp.log(jnp.where(present, weight * count / jnp.where(present, total, 1), 1)), _NO_WEIGHT)
