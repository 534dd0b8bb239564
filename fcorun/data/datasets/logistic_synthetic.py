"""Synthetic logistic regression with Gaussian features."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fcorun.base.config import Count, NonNegative
from fcorun.base.system.random_streams import random_stream
from fcorun.data.datasets.synthetic import DrawSplit, EqualSizeClients
from fcorun.data.rows.rows import StoreRows


@dataclass(frozen=True)
class LogisticSynthetic(EqualSizeClients):
    """Synthetic data of a logistic model.

    Client j has a ~ N(0, I) and P(b = 1) = 1 / (1 + exp(-a'x_j)), else b = -1, with x_j = x0, uniform on the sphere of
    radius ``signal``. The option ``heterogeneity`` is ours: x_j = x0 + heterogeneity * u_j with u_j ~ N(0, I). The
    paper's supplement is not at hand; the laws are a reconstruction.
    """

    dtype = np.float64
    source = "figure 2a of @pathak2020, the laws reconstructed"

    clients: Count = 10
    samples: Count = 1000
    features: Count = 100
    signal: NonNegative = 1.0
    heterogeneity: NonNegative = 0.0

    def make_law(self) -> tuple[DrawSplit, dict[str, Any]]:
        """Return the law of d float64 features, with the true ``weights`` x0 (d,) and ``bias`` 0 ()."""
        truth_rng = random_stream(self.seed, "logistic_synthetic", "truth")
        center = truth_rng.standard_normal(self.features)
        center *= self.signal / np.linalg.norm(center)
        coefficients = center + self.heterogeneity * truth_rng.standard_normal((self.clients, self.features))

        def draw(split: str, rows: int, store: StoreRows) -> np.ndarray:
            rng = random_stream(self.seed, "logistic_synthetic", split)
            probability = np.empty((self.clients, rows))
            for m, weights in enumerate(coefficients):
                x = rng.standard_normal((rows, self.features))
                store(m, x)
                probability[m] = (1 + np.tanh(np.einsum("nd,d->n", x, weights) / 2)) / 2
            return (rng.random(probability.shape) < probability).ravel().astype(np.int32)

        truth = {"weights": center, "bias": np.zeros(())}
        return draw, {"task": "binary", "classes": (-1, 1), "truth": truth}
