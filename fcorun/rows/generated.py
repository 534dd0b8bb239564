"""Clients by the million: the rows of each are made when a round needs them, from the client's number alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class GeneratedClients:
    """Clients of which nothing is stored. They go by their numbers, 0, ..., M - 1.

    Attributes:
        clients: how many there are, M.
        samples: the rows of each, n.
        rows_of: of a client's number, a traced int32, its rows x (n, d) and y (n,), traced by JAX; the same in runs in
            float64. Numbers from M on are clients of the same law that never train.
    """

    n_clients: int
    rows_per_client: int
    generate_rows: Callable[[Any], tuple[Any, Any]]

    def materialize(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows of ``count`` clients from number ``first`` on, one client's after the other's."""
        import jax
        import jax.numpy as jnp

        x, y = jax.jit(lambda numbers: jax.lax.map(self.generate_rows, numbers))(
            first + jnp.arange(count, dtype=jnp.int32)
        )
        return np.asarray(x).reshape(count * self.rows_per_client, -1), np.asarray(y).ravel()
