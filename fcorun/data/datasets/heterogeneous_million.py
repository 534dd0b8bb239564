"""Classification with any number of clients, each with its own true model, generated when a round needs them."""

from dataclasses import dataclass

import numpy as np

from fcorun.base.config import Count, NonNegative
from fcorun.base.system.random_streams import random_stream
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.datasets.synthetic import GeneratedClients, check_nonzeros


@dataclass(frozen=True)
class HeterogeneousMillion(GeneratedClients):
    """Synthetic data of the law of ``fcorun.data.datasets.heterogeneous``, with two classes.

    Models, means, rows and labels are drawn from the seed and a client's number alone. Only the rows for evaluation are
    stored.
    """

    source = "ours"

    shared: NonNegative = 1.0
    dense: NonNegative = 0.5
    sparse: NonNegative = 1.0
    shared_nonzeros: Count = 8
    nonzeros: Count = 2

    def __post_init__(self):
        super().__post_init__()
        check_nonzeros(self, "nonzeros", "shared_nonzeros")

    def load(self) -> FederatedData:
        """Return the rows of ``evaluated`` clients, all generated clients, and as ``truth`` shared * s and 0."""
        import jax
        import jax.numpy as jnp

        d, rng = self.features, random_stream(self.seed, "heterogeneous_million", "shared")
        shared = rng.permutation(np.arange(d) < self.shared_nonzeros) * rng.choice([-1.0, 1.0], d) * self.shared
        shared = shared.astype(np.float32)

        def generate_rows(number):
            keys = jax.random.split(jax.random.fold_in(jax.random.key(self.seed), number), 6)
            support = jax.random.permutation(keys[0], jnp.arange(d) < self.nonzeros)
            model = shared + self.dense * jax.random.normal(keys[1], (d,), "float32") / d**0.5
            signs = jnp.where(jax.random.bernoulli(keys[2], jnp.float32(0.5), (d,)), 1.0, -1.0).astype("float32")
            model = model + self.sparse * support * signs  # drawn in float32 also in runs in float64
            x = self.mean_scale * jax.random.normal(keys[3], (d,), "float32")
            x = x[None] + jax.random.normal(keys[4], (self.samples, d), "float32")
            return x, (jax.random.logistic(keys[5], (self.samples,), "float32") < x @ model).astype("float32")

        truth = {"weights": shared, "bias": np.zeros((), np.float32)}
        return self.assemble(generate_rows, task="binary", classes=(0, 1), truth=truth)
