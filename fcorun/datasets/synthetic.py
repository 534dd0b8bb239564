"""What synthetic data sets have in common: clients of the same size, and regression on features of different means."""

from collections.abc import Callable
from typing import Any

import numpy as np

from fcorun.datasets.base import FederatedData, stream

Draw = Callable[[str, int], tuple[np.ndarray, np.ndarray]]


def linear(
    name: str,
    weights: np.ndarray,
    *,
    clients: int,
    samples: int,
    validation_samples: int,
    mean_scale: float,
    seed: int,
    scales: np.ndarray | float = 1.0,
) -> FederatedData:
    """y = <x, weights> + b + eps with x = scales * (mu_m + delta); b, delta, eps ~ N(0, 1), mu_m ~ N(0, mean_scale^2).

    ``samples`` rows of raveled float32 examples for each client, who draws its mu_m once, and ``validation_samples``
    rows with the same mu_m; the training rows do not depend on their number. ``name`` starts the random numbers.
    """
    truth, features = stream(seed, name, "truth"), weights.size
    bias = truth.standard_normal(dtype=np.float32)
    means = truth.standard_normal((clients, 1, features), dtype=np.float32) * np.float32(mean_scale)

    def draw(part: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
        rng = stream(seed, name, part)
        x = rng.standard_normal((clients, rows, features), dtype=np.float32)
        x += means
        x *= np.float32(scales)
        x = x.reshape(-1, features)
        return x, x @ weights.ravel() + bias + rng.standard_normal(len(x), dtype=np.float32)

    shape = weights.shape if weights.ndim > 1 else ()
    truth_of = {"weights": weights, "bias": np.asarray(bias)}
    return alike(draw, clients, samples, validation_samples, truth=truth_of, shape=shape)


def alike(draw: Draw, clients: int, samples: int, validation_samples: int, **fields: Any) -> FederatedData:
    """Data of clients with as many rows each. ``draw(part, rows)`` gives x and y of so many rows of each, in their
    order; ``fields`` are further ones of FederatedData."""
    x, y = draw("training", samples)
    x_val, y_val = draw("validation", validation_samples) if validation_samples else (None, None)
    each = np.arange(clients + 1)
    return FederatedData(
        x=x,
        y=y,
        offsets=each * samples,
        x_val=x_val,
        y_val=y_val,
        offsets_val=each * validation_samples if validation_samples else None,
        clients=tuple(f"client{m}" for m in range(clients)),
        **fields,
    ).validate()
