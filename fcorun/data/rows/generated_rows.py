"""Rows of many clients, up to millions, that are not stored but generated."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcorun.data.rows.rows import Rows


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class GeneratedRows(Rows):
    """Rows of many clients, up to millions, that are not stored but generated in JAX when a round needs them.

    A client is its number, 0, ..., M - 1. The rows of the first few clients are stored too, for evaluation: x, y,
    client and ``offsets`` are theirs.

    Attributes:
        population: the number of clients, M.
        rows_per_client: the number of rows of each client, n.
        generate: maps a client's number, a traced int32, to its rows x (n, d) and y (n,). JAX traces the function; it
            returns the same rows, up to rounding in float32, in runs in float64. Numbers from M on are clients of the
            same distribution that never train.
    """

    population: int
    rows_per_client: int
    generate: Callable[[Any], tuple[Any, Any]]

    @property
    def why_not_in_memory(self) -> str:
        return "are generated when a round needs them: choose a smaller data set"

    def can_be_sharded(self, n_hosts: int) -> bool:
        return False

    @property
    def n_clients(self) -> int:
        return self.population

    @property
    def n_rows(self) -> int:
        return self.population * self.rows_per_client

    @property
    def n_generated_clients(self) -> int:
        return self.population

    @property
    def n_initial_states(self) -> int:
        return 1

    def client_rows(self, x: Any, y: Any, client: Any) -> tuple[Any, Any]:
        return self.generate(client)

    def rows_in_memory(self, needed: int) -> int:
        return self.rows_per_client

    def host_index(self, cohort: Any, in_order: bool) -> Any:
        return cohort


def materialize_clients(
    generate: Callable[[Any], tuple[Any, Any]], first: int, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Generate the rows of the clients ``first``, ..., ``first + count - 1``, one client after the other."""
    import jax
    import jax.numpy as jnp

    generate_all = jax.jit(lambda numbers: jax.lax.map(generate, numbers))
    x, y = generate_all(first + jnp.arange(count, dtype=jnp.int32))
    return np.asarray(x).reshape(-1, x.shape[-1]), np.asarray(y).ravel()
