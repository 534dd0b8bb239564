"""Synthetic regression over clients whose features have different means; what lasso and lowrank have in common."""

import numpy as np

from fcorun.datasets.base import FederatedData, stream


def linear(
    name: str,
    weights: np.ndarray,
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

    x, y = draw("training", samples)
    x_val, y_val = draw("validation", validation_samples) if validation_samples else (None, None)
    return FederatedData(
        x=x,
        y=y,
        offsets=np.arange(clients + 1) * samples,
        x_val=x_val,
        y_val=y_val,
        offsets_val=np.arange(clients + 1) * validation_samples if validation_samples else None,
        truth={"weights": weights, "bias": np.asarray(bias)},
        clients=tuple(f"client{m}" for m in range(clients)),
        shape=weights.shape if weights.ndim > 1 else (),
    ).validate()
