"""Synthetic logistic regression with Gaussian features."""

from dataclasses import dataclass

import numpy as np

from fcorun.config import Count, Index, LaterIndex, NonNegative
from fcorun.datasets.base import FederatedData
from fcorun.datasets.synthetic import EqualSizeClients
from fcorun.rows.host_rows import ClientBuffer
from fcorun.system.random_streams import random_stream


@dataclass(frozen=True)
class LogisticSynthetic(EqualSizeClients):
    """Synthetic data of a logistic model.

    Client j has a ~ N(0, I) and P(b = 1) = 1 / (1 + exp(-a'x_j)), else b = -1, with x_j = x0, uniform on the sphere of
    radius ``signal``. Ours is ``heterogeneity``: x_j = x0 + heterogeneity * u_j with u_j ~ N(0, I). The paper's
    supplement is not at hand; the laws are a reconstruction.

    Attributes:
        clients: number of clients, m.
        samples: training rows of each client, n.
        features: number of features, d.
        signal: the norm of x0; 0 makes the labels tosses of a coin.
        heterogeneity: standard deviation of the clients' own coefficients about x0; 0 for one truth.
        validation_samples: validation rows of each client; 0 for none.
        test_samples: rows of each client that nothing but the scores at the end of a run sees.
        seed: of the data alone; training rows do not depend on the numbers of others.
    """

    itemsize = 8
    source = "figure 2a of @pathak2020, the laws reconstructed"

    clients: Count = 10
    samples: Count = 1000
    features: Count = 100
    signal: NonNegative = 1.0
    heterogeneity: NonNegative = 0.0
    validation_samples: Index = 0
    seed: Index = 0
    test_samples: LaterIndex = 0

    def load_shard(self, host: int, n_hosts: int) -> FederatedData:
        """m * n rows of d float64 features, and the true ``weights`` x0 (d,) and ``bias`` 0 ()."""
        truth = random_stream(self.seed, "logistic_synthetic", "truth")
        center = truth.standard_normal(self.features)
        center *= self.signal / np.linalg.norm(center)
        own = center + self.heterogeneity * truth.standard_normal((self.clients, self.features))

        def draw(split: str, rows: int, room: ClientBuffer) -> np.ndarray:
            rng, likely = random_stream(self.seed, "logistic_synthetic", split), np.empty((self.clients, rows))
            for m, weights in enumerate(own):
                x = rng.standard_normal(out=room(m))
                likely[m] = (1 + np.tanh(np.einsum("nd,d->n", x, weights) / 2)) / 2
            return (rng.random(likely.shape) < likely).ravel().astype(np.int32)

        known = {"weights": center, "bias": np.zeros(())}
        named = {"task": "binary", "classes": (-1, 1)}
        return self.assemble(draw, self.features, np.float64, host, n_hosts, **named, truth=known)
