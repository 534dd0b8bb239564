"""Bounds on the curvature of losses: of any client, of any minibatch, and of F."""

from typing import Any

import numpy as np

from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.features import row_norms
from fcorun.methods.objectives.objective import Objective

# of the features of all rows, whose largest singular value bounds the curvature of F
_MAX_ENTRIES = 2**25
_MAX_SINGULAR_VALUES = 3000


def scaled_features(data: FederatedData, rows: slice) -> Any:
    """Return rows of the training examples as features in float64; sparse ones stay sparse."""
    return data.train.x[rows].astype(np.float64) * data.features.scale


def curvature_bounds(objective: Objective, data: FederatedData, full_batch: bool = True) -> tuple[float, float]:
    """Return bounds (l, L) on the curvature of any client's loss.

    Without ``full_batch`` the bounds also hold for any minibatch of a client. Raises AttributeError for an objective
    without bounds.
    """
    outputs = len(data.classes) if len(data.classes) > 2 else 1
    if not full_batch:
        return _bound_row_curvature(objective, data, outputs)
    bounds = _bound_client_curvatures(objective, data, outputs)
    return min(low for low, _ in bounds), max(high for _, high in bounds)


def bound_pooled_smoothness(objective: Objective, data: FederatedData, client_weighting: str) -> float:
    """Return an upper bound on the curvature of F, the mean of the clients' losses.

    The bound is never more than the mean of the bounds of the clients. If clients weigh as their rows do, a loss is
    that of a row alone, and the data are small enough, the bound is that of one client with all rows.
    """
    outputs = len(data.classes) if len(data.classes) > 2 else 1
    is_small = data.train.x.size <= _MAX_ENTRIES and min(data.train.x.shape) <= _MAX_SINGULAR_VALUES
    if client_weighting == "examples" and is_small and not objective.has_client_losses:
        weight = {}
        if data.train.weight is not None:
            weight = {"weight": data.train.weight * (len(data.train.weight) / data.train.weight.sum())}
        return objective.curvature(scaled_features(data, slice(None)), outputs, **weight)[1]  # type: ignore[attr-defined]
    client_weights = data.train.client_weights if client_weighting == "examples" else None
    bounds = [high for _, high in _bound_client_curvatures(objective, data, outputs)]
    return float(np.average(bounds, weights=client_weights))


def _bound_client_curvatures(objective: Objective, data: FederatedData, outputs: int) -> list[tuple[float, float]]:
    bounds = []
    for rows in map(slice, data.train.offsets[:-1], data.train.offsets[1:]):
        options = row_weights(data, rows)
        if objective.overrides_client_losses:  # which compare rows by their targets
            options["y"] = data.train.y[rows]
        bounds.append(objective.curvature(scaled_features(data, rows), outputs, **options))  # type: ignore[attr-defined]
    return bounds


def _bound_row_curvature(objective: Objective, data: FederatedData, outputs: int) -> tuple[float, float]:
    """Return bounds for the loss of any row, and so of any minibatch, from the lengths of the rows."""
    starts = range(0, len(data.train.y), 1000)
    lengths = np.concatenate([row_norms(scaled_features(data, slice(i, i + 1000))) for i in starts])
    steepest = lengths.max()
    lightest: dict[str, np.ndarray] = {}
    heaviest: dict[str, np.ndarray] = {}
    if data.train.relative_weight is not None:  # the row of the largest curvature, with or without a feature of ones
        row = np.argmax(data.train.relative_weight * (lengths**2 + getattr(objective, "intercept", False)))
        steepest = lengths[row]
        lightest = {"weight": data.train.relative_weight.min()[None]}
        heaviest = {"weight": data.train.relative_weight[[row]]}

    def bounds(length: float, weight: dict[str, np.ndarray]) -> tuple[float, float]:
        return objective.curvature(np.array([[length]]), outputs, **weight)  # type: ignore[attr-defined]

    low = bounds(0.0, lightest)[0]
    if objective.ridge:
        low = min(low, bounds(lengths.max(), lightest)[0])
    return low, bounds(steepest, heaviest)[1]


def row_weights(data: FederatedData, rows: slice) -> dict[str, np.ndarray]:
    """Return the weights of rows in a client's mean loss as a keyword argument; none for equal weights."""
    return {} if data.train.relative_weight is None else {"weight": data.train.relative_weight[rows]}
