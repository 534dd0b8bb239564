"""The decomposition of quadratic losses, once for each client."""

from collections.abc import Callable
from typing import Any

import numpy as np

from fcorun.data.datasets.dataset import FederatedData
from fcorun.methods.objectives.objective import Objective
from fcorun.methods.problem.curvature import row_weights, scaled_features
from fcorun.methods.problem.problem import Quadratic, Vector

_MAX_NUMBERS = 2**28  # in all bases together


def decompose_losses(
    objective: Objective, data: FederatedData, shapes: dict[str, tuple[int, ...]], dtype
) -> Quadratic | None:
    """Return the mean loss of each client on this host, stacked along a leading axis M.

    Returns None if the losses are not quadratic, or if the decomposition is too large.
    """
    size = sum(int(np.prod(shape)) for shape in shapes.values())
    if not can_decompose(objective, data, size):
        return None
    quadratic: Callable[..., Any] = objective.quadratic  # type: ignore[attr-defined]
    largest_rank = int(_ranks(objective, data, size).max())
    clients = data.train.most_clients_of_a_host
    bases = np.zeros((clients, largest_rank, size), dtype)
    curvatures = np.zeros((clients, largest_rank), dtype)
    linear = np.zeros((clients, largest_rank), dtype)
    constants = np.zeros(clients, dtype)
    for m, rows in enumerate(data.train.local_client_slices):
        y = data.train.y[rows].astype(np.float64)
        if data.train.offset is not None:  # the linear predictor is to approach the rest
            y = y - data.train.offset[rows]
        basis, curvature, slope, constant = quadratic(scaled_features(data, rows), y, **row_weights(data, rows))
        rank = len(curvature)
        bases[m, :rank] = basis
        curvatures[m, :rank] = curvature
        linear[m, :rank] = slope
        constants[m] = constant
    parameters, start = {}, 0
    for name, shape in shapes.items():
        stop = start + int(np.prod(shape))
        parameters[name] = bases[..., start:stop].reshape(*bases.shape[:2], *shape)
        start = stop
    full_passes = np.ones(clients, np.int32)
    return Quadratic(Vector(parameters), curvatures, linear, constants, full_passes)  # type: ignore[arg-type]


def can_decompose(objective: Objective, data: FederatedData, size: int) -> bool:
    """Return True if losses of ``size`` parameters are quadratic, and small enough to be decomposed."""
    if not hasattr(objective, "quadratic"):
        return False
    ranks = _ranks(objective, data, size)
    return len(ranks) * int(ranks.max()) * size <= _MAX_NUMBERS


def _ranks(objective: Objective, data: FederatedData, size: int) -> np.ndarray:
    return np.full(len(data.train.sizes), size) if objective.ridge else np.minimum(data.train.sizes, size)
