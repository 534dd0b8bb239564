"""One communication round of one run: the local work of a cohort's clients, and the update of the server or edges."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fcorun.algorithms.base import Algorithm, LocalData, PyTree
from fcorun.communication.base import Uplink
from fcorun.engine.clients import CohortFunction
from fcorun.engine.devices import vmap_runs
from fcorun.engine.schedule import Schedule
from fcorun.problem.operation_counts import count_operations
from fcorun.problem.problem import Problem


class RoundDraws(NamedTuple):
    """The random draws of a round. On a tree each has one more leading axis, the rounds of an edge.

    Attributes:
        rows: the rows of each client's batches, (S, K, B).
        keys: the bits of a random key for each client, (S, 2).
        shared_uniforms: two uniform numbers for all clients, (2,).
    """

    rows: jax.Array
    keys: jax.Array
    shared_uniforms: jax.Array


class RoundOutcome(NamedTuple):
    """The result of a round.

    Attributes:
        server: the server's state.
        client_states: the state and uplink memory of each client, with a leading axis S.
        client_work: the work of each client, (S, 3).
        server_work: the work of the server and of edges, (3,).
    """

    server: PyTree
    client_states: PyTree
    client_work: jax.Array
    server_work: jax.Array

    def commit(self, state: PyTree, cohort: jax.Array, number: jax.Array, full_participation: bool) -> PyTree:
        """Return the state of a run after the round ``number``; a state that is not finite is not committed.

        A run that has diverged keeps its state. With ``full_participation`` the cohort is all clients in order.
        """
        finite = jnp.array(
            [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((self.server, self.client_states))]
        ).all()
        alive = (state["diverged"] == 0) & finite

        def keep(new, old):
            return jnp.where(alive, new, old)

        def keep_cohort(old, new):
            return keep(new, old) if full_participation else old.at[cohort].set(keep(new, old[cohort]))

        return {
            "server": jax.tree.map(keep, self.server, state["server"]),
            "clients": jax.tree.map(keep_cohort, state["clients"], self.client_states),
            "diverged": jnp.where(state["diverged"] + finite == 0, number + 1, state["diverged"]),
        }


@dataclass(frozen=True, kw_only=True)
class Round:
    """The cohort of a round, its data, and the functions that compute it.

    Attributes:
        problem, server_problem: the problem of the clients, and the problem as the server sees it.
        rows_of_client: returns x (N, d) and y (N,) of the rows among which the indices of a client's rows count.
        row_extras: the weights and offsets of all rows, where they have them.
        regularizer_numbers: the regularizer's numbers of each client of the cohort.
        whole: the whole data of all clients, or None.
        cohort: the clients whose data in ``whole`` are used, (S,); None: all clients.
        client_rows: all rows of each client, (S, L) with -1 for none, where whole data are used and must be gathered.
        weights: the weight of each client of the cohort, (S,).
        compute_cohort: computes the clients of the cohort.
        uplink: transforms uploads.
        frozen: whether the server's model is fixed.
    """

    algorithm: Algorithm
    problem: Problem
    server_problem: Problem
    schedule: Schedule
    rows_of_client: Callable[[Any], tuple[jax.Array, jax.Array]]
    row_extras: dict[str, jax.Array]
    regularizer_numbers: dict[str, jax.Array]
    whole: Any
    cohort: jax.Array | None
    client_rows: jax.Array | None
    weights: jax.Array
    compute_cohort: CohortFunction
    uplink: Uplink
    frozen: bool = False

    def run_star(self, server: PyTree, client_states: PyTree, draws: RoundDraws) -> RoundOutcome:
        """Compute a round of the cohort with the server. A client's state includes its uplink's memory."""
        broadcast = self.algorithm.broadcast(copy_tree(server))
        shares = self.weights / self.weights.sum()
        compute = self._client_function(draws.shared_uniforms, lambda _: broadcast)
        inputs = self._cohort_inputs(client_states, draws)
        mean, client_states, client_work = self.compute_cohort(compute, inputs, shares)
        if self.frozen:
            return RoundOutcome(server, client_states, client_work, jnp.zeros_like(client_work[0]))
        server, server_work = count_operations(
            lambda: self.algorithm.server(self.server_problem, copy_tree(server), copy_tree(mean))
        )
        return RoundOutcome(server, client_states, client_work, server_work)

    def _cohort_inputs(self, client_states: PyTree, draws: RoundDraws) -> tuple:
        """Return the inputs of the cohort's clients, in the order of the arguments of the client's function."""
        return (
            self.regularizer_numbers,
            self._whole_or_cohort,
            client_states,
            draws.rows,
            draws.keys,
            self.client_rows,
        )

    def run_tree(
        self, server: PyTree, client_states: PyTree, draws: RoundDraws, edge_of: jax.Array, n_edges: int
    ) -> RoundOutcome:
        """Compute a round of the cohort with ``n_edges`` edges, whose work is added to the server's.

        ``edge_of`` (S,) is the edge of each client.
        """
        algorithm = self.algorithm
        weights = jnp.where(edge_of[None] == jnp.arange(n_edges)[:, None], self.weights[None], 0)  # (edges, S)
        edge_weights = weights.sum(axis=1)
        shares = weights / jnp.where(edge_weights > 0, edge_weights, 1)[:, None]

        def update_edge(edge, mean):
            return count_operations(lambda: algorithm.edge(self.server_problem, copy_tree(edge), copy_tree(mean)))

        def run_edge_round(carry, draws):
            edges, client_states, client_work, edge_work = carry

            def broadcast_of(edge):
                return algorithm.broadcast(jax.tree.map(lambda v: v[edge], edges))

            compute = self._client_function(draws.shared_uniforms, broadcast_of)
            inputs = (*self._cohort_inputs(client_states, draws), edge_of)
            means, client_states, work = self.compute_cohort(compute, inputs, shares)
            untraced = jax.config.jax_disable_jit  # type: ignore[attr-defined]
            edges, counts = vmap_runs(update_edge, (0, 0), edges, means, sequential=untraced)
            counts = jnp.where(edge_weights[:, None] > 0, counts, 0).sum(axis=0, dtype=jnp.int32)
            return (edges, client_states, client_work + work, edge_work + counts), None

        edges = jax.tree.map(lambda v: jnp.broadcast_to(v, (n_edges, *v.shape)), server)
        no_work = (jnp.zeros((len(edge_of), 3), jnp.int32), jnp.zeros(3, jnp.int32))
        carry, _ = lax.scan(run_edge_round, (edges, client_states, *no_work), draws)
        edges, client_states, client_work, edge_work = carry
        shares_of_edges = edge_weights / edge_weights.sum()  # 0 for an edge without clients in the cohort
        uploads = algorithm.edge_upload(edges)
        mean = jax.tree.map(lambda v: jnp.tensordot(shares_of_edges, v, axes=1), uploads)
        server, root_work = count_operations(lambda: algorithm.root(self.server_problem, copy_tree(server), mean))
        return RoundOutcome(server, client_states, client_work, edge_work + root_work)

    @property
    def _whole_or_cohort(self) -> Any:
        """Return the clients' whole data, or the clients' numbers where the data are looked up by number."""
        return self.whole if self.cohort is None else self.cohort

    def _client_function(
        self, shared_uniforms: jax.Array, broadcast_of: Callable[[Any], PyTree]
    ) -> Callable[..., tuple]:
        """Return the function that computes one client; ``broadcast_of(edge)`` is the message it receives."""
        schedule, dtype = self.schedule, self.weights.dtype

        def compute(regularizer_numbers, whole_or_number, client_state, rows, key_bits, client_rows, edge=None):
            state, memory = copy_tree(client_state)
            problem = self.problem.with_numbers(regularizer_numbers).for_side("client")
            x, y = self.rows_of_client(whole_or_number)
            data = LocalData(
                x=x,
                y=y,
                **self.row_extras,  # type: ignore[arg-type]
                rows=rows,
                dtype=dtype,
                full_batch_steps=schedule.full_batch_steps,
                uneven_steps=schedule.uneven_steps,
                frozen=self.frozen,
                key_bits=key_bits,
                shared_uniforms=shared_uniforms.astype(dtype),
            )
            if client_rows is not None:
                data = data.with_whole_data(client_rows)
            elif self.cohort is None:
                data = replace(data, whole=whole_or_number)
            elif self.whole is not None:
                data = replace(data, whole=jax.tree.map(lambda v: v[whole_or_number], self.whole))
            (upload, state), work = count_operations(
                lambda: self.algorithm.local(problem, copy_tree(broadcast_of(edge)), state, data)
            )
            upload, memory = self.uplink.send(upload, memory, key_bits)
            return upload, (state, memory), work

        return compute


def copy_tree(tree: PyTree) -> PyTree:
    """Copy the containers of a pytree, not its arrays, so that a function can change only its own arguments."""
    return jax.tree.map(lambda leaf: leaf, tree)
