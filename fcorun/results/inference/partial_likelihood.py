"""The sums over rows of Cox's partial likelihood, stratified by client, and the scores of single rows.

With the weights omega, the predictions p, and the risk set R(t) of the rows of a client whose time is at least t, an
event i adds omega_i (log S_i - p_i) to the loss, where S_i is the sum of omega exp(p) over R(t_i). Let xbar_i be the
mean of x over R(t_i) with the weights omega exp(p). The gradient is the sum of omega_i (xbar_i - x_i) over events, the
Hessian that of omega_i times the covariance of x in R(t_i). All sums of a client take O(n p^2), by cumulative sums over
its rows in the order of their times.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fcorun.results.inference.model_rows import DerivativeSums, ModelRows

_MAX_RANGE = 600.0  # of the predictions of a client, so that exp of a difference neither overflows nor underflows


class RiskSets(NamedTuple):
    """The rows of a client, from the latest time to the earliest, with their risk sets. Features are centred.

    Attributes:
        rows: the numbers of the rows (m,).
        x: the features (m, p).
        event_weight: omega of an event, 0 of a censored row (m,).
        risk: omega exp(p), divided by its largest exp(p), (m,).
        total: the sum of ``risk`` over the risk set of each row (m,).
        mean: the mean of x over the risk set of each row (m, p).
        first: the position of the first row that has the same time as each row (m,).
        log_ratio: log S - p of each row, for weights divided by their mean over the client (m,).
    """

    rows: np.ndarray
    x: np.ndarray
    event_weight: np.ndarray
    risk: np.ndarray
    total: np.ndarray
    mean: np.ndarray
    first: np.ndarray
    log_ratio: np.ndarray

    def accumulate(self, values: np.ndarray) -> np.ndarray:
        """Return for each row the sum of ``values`` (m, ...) over the rows whose time is at most the row's own."""
        return np.cumsum(values[::-1], axis=0)[::-1][self.first]


def sum_partial_likelihood(theta: np.ndarray, rows: ModelRows) -> DerivativeSums:
    """Return the negative log partial likelihood and its derivatives at ``theta``.

    The loss is infinite where the predictions of a client differ by more than 600, and the derivatives are NaN.
    """
    n_parameters = len(theta)
    loss, gradient, hessian = 0.0, np.zeros(n_parameters), np.zeros((n_parameters, n_parameters))
    prediction = rows.x @ theta + rows.offset
    for numbers in _iterate_clients(rows):
        if not np.ptp(prediction[numbers]) <= _MAX_RANGE:
            return DerivativeSums(np.inf, np.full_like(gradient, np.nan), np.full_like(hessian, np.nan))
        sets = _find_risk_sets(rows, prediction, numbers)
        expected = sets.risk * sets.accumulate(sets.event_weight / sets.total)
        loss += float(sets.event_weight @ sets.log_ratio)
        gradient += (expected - sets.event_weight) @ sets.x
        hessian += (sets.x.T * expected) @ sets.x - (sets.mean.T * sets.event_weight) @ sets.mean
    return DerivativeSums(loss, gradient, hessian)


def score_rows(theta: np.ndarray, rows: ModelRows) -> np.ndarray:
    """Return the part of each row in the gradient, (n, p): 0 without a weight, and at clients without an event.

    The part of a row is omega times the derivative of the gradient in omega: for an event omega (xbar - x), and for
    each event that the row is at risk of, its share of the risk set times omega_i (x - xbar_i). Parts of different rows
    are asymptotically independent, also if the model is wrong (Lin and Wei, JASA 1989).
    """
    scores = np.zeros_like(rows.x)
    prediction = rows.x @ theta + rows.offset
    for numbers in _iterate_clients(rows):
        sets = _find_risk_sets(rows, prediction, numbers)
        cumulative_hazard = sets.accumulate(sets.event_weight / sets.total)
        cumulative_hazard_times_mean = sets.accumulate((sets.event_weight / sets.total)[:, None] * sets.mean)
        at_risk = sets.risk[:, None] * (cumulative_hazard[:, None] * sets.x - cumulative_hazard_times_mean)
        scores[sets.rows] = at_risk - sets.event_weight[:, None] * (sets.x - sets.mean)
    return scores


def _iterate_clients(rows: ModelRows) -> Iterator[np.ndarray]:
    """Yield the numbers of the rows with a weight of each client that has an event."""
    present = np.flatnonzero(rows.weight > 0)
    client = np.zeros(len(rows.y), int) if rows.client is None else rows.client
    by_client = present[np.argsort(client[present], kind="stable")]
    starts = np.flatnonzero(np.diff(client[by_client])) + 1
    for numbers in np.split(by_client, starts):
        if (rows.y[numbers] > 0).any():
            yield numbers


def _find_risk_sets(rows: ModelRows, prediction: np.ndarray, numbers: np.ndarray) -> RiskSets:
    """Return the risk sets of the rows of a client."""
    time = np.abs(rows.y[numbers])
    order = np.argsort(-time, kind="stable")
    numbers, time = numbers[order], time[order]
    starts = np.flatnonzero(np.append(True, time[1:] != time[:-1]))
    position = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(time))))
    first, last = starts[position], np.append(starts[1:], len(time))[position] - 1
    weight, p = rows.weight[numbers], prediction[numbers]
    x = rows.x[numbers] - np.average(rows.x[numbers], axis=0, weights=weight)
    risk = weight * np.exp(p - p.max())
    total = np.cumsum(risk)[last]
    return RiskSets(
        rows=numbers,
        x=x,
        event_weight=np.where(rows.y[numbers] > 0, weight, 0.0),
        risk=risk,
        total=total,
        mean=np.cumsum(risk[:, None] * x, axis=0)[last] / total[:, None],
        first=first,
        log_ratio=np.log(total / weight.mean()) + p.max() - p,
    )
