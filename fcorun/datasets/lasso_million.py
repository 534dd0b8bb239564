"""Federated LASSO with as many clients as one likes: the rows of each are made when a round needs them."""

from dataclasses import dataclass

import numpy as np

from fcorun.config import Count, Index, NonNegative
from fcorun.datasets.base import Dataset, FederatedData
from fcorun.datasets.synthetic import check_nonzeros, sample_clients, sampled_memory
from fcorun.rows.generated import GeneratedClients
from fcorun.system.random_streams import random_stream


@dataclass(frozen=True)
class LassoMillion(Dataset):
    """The law of ``fcorun.datasets.lasso``, drawn from the seed and a client's number alone.

    Client m draws a mean mu_m ~ N(0, mean_scale^2 I) and ``samples`` rows x = mu_m + delta, y = x'w + b + eps with
    delta ~ N(0, I) and eps ~ N(0, 1), by JAX's counter-based generator, anew and alike in each round that it takes
    part in; b ~ N(0, 1) is one number for all. No rows are stored but those that losses are measured on.

    Attributes:
        clients: number of clients, M.
        samples: rows of each client.
        features: number of features, d.
        nonzeros: how many of the d coefficients are 1, the others being 0.
        mean_scale: standard deviation of the clients' means; 0 makes all clients alike.
        evaluated: training figures are of the first so many clients, validation of as many who never train.
        seed: of the data alone.
    """

    source = "section 5.1 of @yuan2021, the law of the features reconstructed"

    clients: Count = 1_000_000
    samples: Count = 32
    features: Count = 128
    nonzeros: Count = 64
    mean_scale: NonNegative = 0.3
    evaluated: Count = 100
    seed: Index = 0

    def __post_init__(self):
        check_nonzeros(self, "nonzeros")

    def memory_needed(self) -> tuple[float, str]:
        return sampled_memory(self)

    def load(self) -> FederatedData:
        """The rows of ``evaluated`` clients, the population, and the true ``weights`` (d,) and ``bias`` ()."""
        import jax

        weights = (np.arange(self.features) < self.nonzeros).astype(np.float32)
        bias = random_stream(self.seed, "lasso_million", "truth").standard_normal(dtype=np.float32)

        def rows_of(number):
            mean, noise, error = jax.random.split(jax.random.fold_in(jax.random.key(self.seed), number), 3)
            x = self.mean_scale * jax.random.normal(mean, (self.features,), "float32")
            x = x[None] + jax.random.normal(noise, (self.samples, self.features), "float32")
            return x, x @ weights + bias + jax.random.normal(error, (self.samples,), "float32")

        truth = {"weights": weights, "bias": np.asarray(bias)}
        return sample_clients(GeneratedClients(self.clients, self.samples, rows_of), self.evaluated, truth=truth)
