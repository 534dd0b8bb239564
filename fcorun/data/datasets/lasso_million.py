"""Federated LASSO with any number of clients: each client's rows are generated when a round needs them."""

from dataclasses import dataclass

import numpy as np

from fcorun.base.config import Count
from fcorun.base.system.random_streams import random_stream
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.datasets.synthetic import GeneratedClients, check_nonzeros


@dataclass(frozen=True)
class LassoMillion(GeneratedClients):
    """Synthetic data of the law of ``fcorun.data.datasets.lasso``, drawn from the seed and a client's number alone.

    JAX's counter-based generator draws the same rows in each round of a client's participation. All clients share b.
    Only the rows for evaluation are stored.
    """

    source = "section 5.1 of @yuan2021, the law of the features reconstructed"

    features: Count = 128
    nonzeros: Count = 64

    def __post_init__(self):
        super().__post_init__()
        check_nonzeros(self, "nonzeros")

    def load(self) -> FederatedData:
        """Return rows of ``evaluated`` clients, the generated clients, and the true ``weights`` (d,), ``bias`` ()."""
        import jax

        weights = (np.arange(self.features) < self.nonzeros).astype(np.float32)
        bias = random_stream(self.seed, "lasso_million", "truth").standard_normal(dtype=np.float32)

        def generate_rows(number):
            mean, noise, error = jax.random.split(jax.random.fold_in(jax.random.key(self.seed), number), 3)
            x = self.mean_scale * jax.random.normal(mean, (self.features,), "float32")
            x = x[None] + jax.random.normal(noise, (self.samples, self.features), "float32")
            return x, x @ weights + bias + jax.random.normal(error, (self.samples,), "float32")

        truth = {"weights": weights, "bias": np.asarray(bias)}
        return self.assemble(generate_rows, truth=truth)
