"""Clients by the million: each client's rows are generated from the client's number when a round needs them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class GeneratedClients:
    """Clients of which no rows are stored; a client is its number, 0, ..., M - 1.

    Attributes:
        n_clients: the number of clients, M.
        rows_per_client: the number of rows of each client, n.
        generate_rows: maps a client's number, a traced int32, to its rows x (n, d) and y (n,). JAX traces the function;
            it returns the same rows in runs in float64. Numbers from M on are clients of the same law that never train.
    """

    n_clients: int
    rows_per_client: int
    generate_rows: Callable[[Any], tuple[Any, Any]]

    def materialize(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Generate the rows of the clients ``first``, ..., ``first + count - 1``, one client after the other."""
        import jax
        import jax.numpy as jnp

        generate_all = jax.jit(lambda numbers: jax.lax.map(self.generate_rows, numbers))
        x, y = generate_all(first + jnp.arange(count, dtype=jnp.int32))
        return np.asarray(x).reshape(count * self.rows_per_client, -1), np.asarray(y).ravel()
