"""The sums over rows from which intervals follow, each of which is a sum over clients.

The parameters are one vector theta (p,): the weights of the d features and, last, the intercept of a model that has
one. A row i has the features x_i (p,), with a 1 for an intercept, the weight omega_i in F, and the derivatives u_i and
h_i of its loss in its prediction, the first and the second. Who holds all rows of some clients computes the sums of
these rows; the sums over all rows are sums of such sums. If clients have intercepts of their own, which no parameter
is, all sums are those at the best intercepts, and x_i is centred at its client.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fcorun.methods.objectives.cox import Cox
from fcorun.methods.objectives.objective import LinearModel

_NEAR_SHARE = 0.01  # of a sum of squared distances: rows with no more of it do not count
_FEATURES_TOGETHER = 32  # along which the losses of clients are differentiated


class ModelRows(NamedTuple):
    """Rows of a linear model of one output.

    Attributes:
        x: the features (n, p), with a column of ones for an intercept.
        y: the targets (n,).
        weight: the weights in F (n,).
        offset: the terms added to the predictions (n,).
        client: the client of each row (n,); None: all rows are of one client.
    """

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    offset: np.ndarray
    client: np.ndarray | None = None

    def take(self, rows: np.ndarray | slice) -> "ModelRows":
        """Return some rows, with all that belongs to them."""
        return ModelRows(*(None if values is None else values[rows] for values in self))  # type: ignore[arg-type]


class DerivativeSums(NamedTuple):
    """The weighted sum of the losses of rows at a point, and its derivatives, without any penalty or ridge.

    Attributes:
        loss: the weighted sum of the losses; of Cox's model, the negative log partial likelihood.
        gradient: its gradient (p,).
        hessian: its Hessian (p, p).
    """

    loss: float
    gradient: np.ndarray
    hessian: np.ndarray


class SquaredScores(NamedTuple):
    """The estimate of the variance of the gradient: the sum of s s' over scores s that are independent of each other.

    Attributes:
        meat: the sum of s s' (p, p). A score is the part of a row in the gradient, omega u x, or the sum over the rows
            of a cluster.
        count: the number of scores.
    """

    meat: np.ndarray
    count: int


class MomentSums(NamedTuple):
    """Sums over rows that describe the features.

    Attributes:
        rows: the number of rows with a weight.
        weight: the sum of omega, 1 over all rows.
        squared_weight: the sum of omega^2, over all rows 1 / (the effective number of rows).
        first: the sum of omega (x - center), (p,).
        second: the sum of omega (x - center)^2, (p,).
    """

    rows: int
    weight: float
    squared_weight: float
    first: np.ndarray
    second: np.ndarray


class ValueCounts(NamedTuple):
    """Counts of the rows at two values of each feature. They add up to all rows if the feature has no other value.

    Of a feature with more values, the lower one is that of most rows, and the rows far from it (``find_far_rows``) are
    at the higher one; at sites, these are 0 and all others.

    Attributes:
        rows: the number of rows with a weight.
        target: the sum of their targets; of two classes, and of times to events, the number of events.
        at_low, at_high: the number of rows at the lower and at the higher value (p,).
        target_at_low, target_at_high: the sums of the targets of these rows (p,); of two classes, and of times to
            events, the number of events.
    """

    rows: int
    target: float
    at_low: np.ndarray
    at_high: np.ndarray
    target_at_low: np.ndarray
    target_at_high: np.ndarray


class ClusterCounts(NamedTuple):
    """The number of clusters with rows at a value of each feature.

    Attributes:
        rows: the clusters with rows at the value (p,).
        events, rest: those with an event in these rows, and those with a row without an event among them (p,).
    """

    rows: np.ndarray
    events: np.ndarray
    rest: np.ndarray

    @classmethod
    def of_rows(cls, has_value: np.ndarray, has_event: np.ndarray, cluster: np.ndarray) -> "ClusterCounts":
        """Count the clusters (n,) of rows that have the value of each feature, (n, p), and an event or none, (n,)."""
        order = np.argsort(cluster, kind="stable")
        names = cluster[order]
        begins = np.flatnonzero(np.append(True, names[1:] != names[:-1]))

        def count(mask: np.ndarray) -> np.ndarray:
            return np.logical_or.reduceat(mask[order], begins).sum(axis=0)

        return cls(count(has_value), count(has_value & has_event[:, None]), count(has_value & ~has_event[:, None]))


class RowSums(ABC):
    """The sums over all rows, wherever these are.

    Attributes:
        loss_error: the largest error of a loss, 0 unless masks round it.
        hides_few: whether the counts of ``two_values`` leave out sites with few rows.
        usual_place: the rows that these counts have at the higher value of a feature with more than two, in words.
    """

    @property
    def loss_error(self) -> float:
        return 0.0

    @property
    def hides_few(self) -> bool:
        return False

    @property
    def usual_place(self) -> str:
        return "far from the most frequent value"

    @abstractmethod
    def derivatives(self, theta: np.ndarray) -> DerivativeSums:
        """Return the loss, its gradient and its Hessian at ``theta`` (p,)."""

    @abstractmethod
    def scores(self, theta: np.ndarray) -> SquaredScores:
        """Return the sum of squared scores at ``theta`` (p,)."""

    @abstractmethod
    def moments(self, center: np.ndarray) -> MomentSums:
        """Return the moments of the features around ``center`` (p,)."""

    @abstractmethod
    def two_values(self) -> tuple[np.ndarray, ValueCounts]:
        """Return whether each feature is known to have two values (p,), and the counts of the rows at these.

        Features of more values have the counts that ``ValueCounts`` describes.
        """

    @abstractmethod
    def count_clusters(self) -> dict[str, ClusterCounts]:
        """Return the counts of clusters at the two values, ``low`` and ``high``; none if the rows are independent."""

    @abstractmethod
    def restrict(self, parameter_numbers: np.ndarray) -> Self:
        """Return the sums of the model whose parameters are those with the indices ``parameter_numbers`` alone."""


@dataclass(frozen=True, eq=False)
class PooledSums(RowSums):
    """The sums over rows that are in the memory of this process.

    Attributes:
        objective: the losses.
        rows: all rows.
        cluster: the number of each row's cluster (n,), or None if the rows are independent.
    """

    objective: LinearModel
    rows: ModelRows
    cluster: np.ndarray | None = None

    def derivatives(self, theta: np.ndarray) -> DerivativeSums:
        return sum_derivatives(self.objective, theta, self.rows)

    def scores(self, theta: np.ndarray) -> SquaredScores:
        scores = score_rows_or_clusters(self.objective, theta, self.rows, self.cluster)
        return SquaredScores(scores.T @ scores, len(scores))

    def moments(self, center: np.ndarray) -> MomentSums:
        return sum_moments(self.rows, center)

    def two_values(self) -> tuple[np.ndarray, ValueCounts]:
        has_two, at_low, at_high, y = self._find_values()
        counts = ValueCounts(
            rows=len(y),
            target=float(y.sum()),
            at_low=at_low.sum(axis=0),
            at_high=at_high.sum(axis=0),
            target_at_low=y @ at_low,
            target_at_high=y @ at_high,
        )
        return has_two, counts

    def count_clusters(self) -> dict[str, ClusterCounts]:
        if self.cluster is None:
            return {}
        _, at_low, at_high, y = self._find_values()
        cluster = self.cluster[self.rows.weight > 0]
        values = {"low": at_low, "high": at_high}
        return {name: ClusterCounts.of_rows(mask, y > 0, cluster) for name, mask in values.items()}

    def _find_values(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return which features have two values (p,), the rows with a weight at each of these, (n, p), and targets.

        The rows of other features are those at the most frequent value, and those far from it. The targets (n,) of
        times to events are 1 for an event, else 0.
        """
        has_weight = self.rows.weight > 0
        x = self.rows.x[has_weight]
        y = self.rows.y[has_weight]
        if isinstance(self.objective, Cox):
            y = (y > 0).astype(float)
        low = x.min(axis=0, initial=np.inf)
        high = x.max(axis=0, initial=-np.inf)
        slack = 1e-9 * (high - low)
        at_low = x <= low + slack
        at_high = x >= high - slack
        has_two = (at_low | at_high).all(axis=0) & ~at_low.all(axis=0)
        for feature in np.flatnonzero(~has_two & (len(x) > 0)):
            values, counts = np.unique(x[:, feature], return_counts=True)
            distance = x[:, feature] - values[counts.argmax()]
            at_low[:, feature] = distance == 0
            at_high[:, feature] = find_far_rows(distance)
        return has_two, at_low, at_high, y

    def take(self, mask: np.ndarray) -> Self:
        """Return the sums over the rows of a mask (n,), whose weights sum to one again."""
        rows = self.rows.take(mask)
        cluster = None if self.cluster is None else self.cluster[mask]
        return replace(self, rows=rows._replace(weight=rows.weight / rows.weight.sum()), cluster=cluster)

    def restrict(self, parameter_numbers: np.ndarray) -> Self:
        return replace(self, rows=self.rows._replace(x=self.rows.x[:, parameter_numbers]))


def find_far_rows(distances: np.ndarray) -> np.ndarray:
    """Return the mask of the fewest rows that make up almost all of the sum of squared distances, (n,).

    A score is a distance times a residual, so that the others hardly count: a filled gap near the usual value is no row
    from which a coefficient follows.
    """
    sizes = np.abs(distances)
    largest = sizes.max(initial=0.0)
    if largest == 0:
        return np.zeros(len(sizes), bool)
    squares = (sizes / largest) ** 2  # which do not overflow
    order = np.argsort(squares)
    is_far = np.zeros(len(squares), bool)
    is_far[order] = np.cumsum(squares[order]) > _NEAR_SHARE * squares.sum()
    return is_far


def sum_derivatives(objective: LinearModel, theta: np.ndarray, rows: ModelRows) -> DerivativeSums:
    """Return the sums of the loss and its derivatives over rows. Call under enable_x64."""
    if isinstance(objective, Cox):
        loss, gradient, hessian = _sum_client_losses(objective, theta, *rows.take(rows.weight > 0))
        return DerivativeSums(float(loss), np.asarray(gradient), np.asarray(hessian))
    loss, slope, curvature = derivatives_in_prediction(objective, theta, rows)
    weighted = _weigh(rows.weight, curvature)
    x = center_at_clients(rows, weighted) if objective.client_intercepts else rows.x
    gradient = _weigh(rows.weight, slope) @ x
    return DerivativeSums(float(_weigh(rows.weight, loss).sum()), gradient, (x.T * weighted) @ x)


def center_at_clients(rows: ModelRows, weighted_curvature: np.ndarray) -> np.ndarray:
    """Return the features (n, p) less their means at each client, by the weighted second derivatives of losses (n,).

    Sums of products of these features are the Schur complements that eliminate the intercepts of clients: the Hessian,
    and the sandwich of scores, of the other parameters alone. A feature that is constant at a client is exactly 0.
    """
    client = np.zeros(len(rows.y), int) if rows.client is None else np.unique(rows.client, return_inverse=True)[1]
    n_clients = client.max(initial=-1) + 1
    counted = np.flatnonzero(weighted_curvature > 0)
    reference = np.zeros(n_clients, int)
    reference[client[counted]] = counted
    x = (
        rows.x - rows.x[reference[client]]
    )  # from any row of the client: a sum of equal numbers is rounded, one of 0 not
    sums = np.zeros((n_clients, 1 + x.shape[1]))
    np.add.at(sums, client, weighted_curvature[:, None] * np.column_stack([np.ones(len(x)), x]))
    means = sums[:, 1:] / np.where(sums[:, :1] > 0, sums[:, :1], np.inf)  # a client without curvature is in no sum
    return x - means[client]


def score_rows_or_clusters(
    objective: LinearModel, theta: np.ndarray, rows: ModelRows, cluster: np.ndarray | None = None
) -> np.ndarray:
    """Return the score of each row with a weight, or of each cluster of such rows, (k, p). Call under enable_x64.

    ``cluster`` (n,) numbers the cluster of each row; None: each row with a weight is one.
    """
    has_weight = rows.weight > 0
    rows = rows.take(has_weight)
    if isinstance(objective, Cox):
        scores = np.asarray(_score_client_rows(objective, theta, *rows))
    else:
        _, slope, curvature = derivatives_in_prediction(objective, theta, rows)
        x = center_at_clients(rows, rows.weight * curvature) if objective.client_intercepts else rows.x
        scores = x * (rows.weight * slope)[:, None]
    if cluster is None:
        return scores
    names, cluster = np.unique(cluster[has_weight], return_inverse=True)
    sums = np.zeros((len(names), rows.x.shape[1]))
    np.add.at(sums, cluster, scores)
    return sums


def row_shares(objective: LinearModel, theta: np.ndarray, rows: ModelRows) -> np.ndarray:
    """Return how much each row counts in the gradient, and in the Hessian, (2, n). Call under enable_x64."""
    prediction = rows.x @ theta + rows.offset
    return np.asarray(_call(objective, "row_shares", (prediction, rows.y, rows.weight, rows.client)))


@partial(jax.jit, static_argnums=(0, 1))
def _call(objective: LinearModel, method: str, arguments: tuple) -> jax.Array:
    """Return what a method of an objective returns, compiled."""
    return getattr(objective, method)(*arguments)


def model_based_scores(sums: DerivativeSums, n_rows: int) -> SquaredScores:
    """Return the variance of the gradient of a likelihood at the true parameters, the Hessian divided by N.

    ``sums`` are the derivatives at the estimates, of so many rows with equal weights.
    """
    return SquaredScores(sums.hessian / n_rows, n_rows)


def sum_moments(rows: ModelRows, center: np.ndarray) -> MomentSums:
    """Return the moments of the features of rows around ``center`` (p,)."""
    deviation = rows.x - center
    return MomentSums(
        rows=int((rows.weight > 0).sum()),
        weight=float(rows.weight.sum()),
        squared_weight=float(rows.weight @ rows.weight),
        first=rows.weight @ deviation,
        second=rows.weight @ deviation**2,
    )


def standard_deviations(sums: RowSums, n_parameters: int) -> np.ndarray:
    """Return the weighted standard deviation of each feature (p,): 0 of a constant one. Takes two passes over rows."""
    first = sums.moments(np.zeros(n_parameters))
    mean = first.first / first.weight
    around_mean = sums.moments(mean)
    deviation = np.sqrt(around_mean.second / around_mean.weight)
    size = np.sqrt(first.second / first.weight)
    return np.where(deviation > 1e-10 * size, deviation, 0.0)


# The losses of a client's rows depend on each other. With the weights omega, the part of a row in the gradient is omega
# times the derivative of the gradient in omega. Such parts are asymptotically independent, also if the model is wrong
# (Lin and Wei, JASA 1989).


@partial(jax.jit, static_argnames="objective")
def _sum_client_losses(objective, theta, x, y, weight, offset, client):
    """Return the sum of the losses, its gradient (p,) and its Hessian (p, p)."""

    def loss(prediction):
        return weight @ objective.client_losses(prediction, y, weight, client)

    prediction = x @ theta + offset
    value, slope = jax.value_and_grad(loss)(prediction)
    return value, slope @ x, _derive_along_features(jax.grad(loss), prediction, x) @ x


@partial(jax.jit, static_argnames="objective")
def _score_client_rows(objective, theta, x, y, weight, offset, client):
    """Return the part of each row in the gradient, (n, p)."""

    def derive_in_weights(prediction):
        return weight * jax.grad(lambda omega: omega @ objective.client_losses(prediction, y, omega, client))(weight)

    return _derive_along_features(derive_in_weights, x @ theta + offset, x).T


def _derive_along_features(compute, prediction, x):
    """Return the derivatives of a function of the predictions along each feature, (p, n)."""
    return lax.map(lambda feature: jax.jvp(compute, (prediction,), (feature,))[1], x.T, batch_size=_FEATURES_TOGETHER)


def derivatives_in_prediction(
    objective: LinearModel, theta: np.ndarray, rows: ModelRows
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the loss of each row and its two derivatives in the prediction, each (n,).

    With intercepts of clients, these are added to the predictions.
    """
    prediction = jnp.asarray(rows.x @ theta + rows.offset)
    y = jnp.asarray(rows.y)
    if objective.client_intercepts:
        prediction = _call(objective, "add_client_intercepts", (prediction, y, rows.weight, rows.client))
    loss, slope, curvature = _differentiate(objective.with_known_intercepts, prediction, y)
    return np.asarray(loss), np.asarray(slope), np.asarray(curvature)


@partial(jax.jit, static_argnames="objective")
def _differentiate(
    objective: LinearModel, prediction: jax.Array, y: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    def slopes(p):
        return jax.grad(lambda q: objective.loss(q, y).sum())(p)

    return objective.loss(prediction, y), slopes(prediction), jax.grad(lambda p: slopes(p).sum())(prediction)


def _weigh(weight: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the values times their weights; rows of weight 0 may have values that are not finite."""
    return np.where(weight > 0, weight * values, 0.0)
