"""One communication round of one run: the work of a cohort's clients, and what server or edges make of it."""

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
    """What is drawn for a round: rows (S, K, B), a random key a client (S, 2), two chances for all of them (2,).

    On a tree each has an axis more in front, the rounds of an edge.
    """

    rows: jax.Array
    keys: jax.Array
    shared_uniforms: jax.Array


class RoundOutcome(NamedTuple):
    """What a round leaves: the server's state, what each client keeps (S, ...), the work of each (S, 3) and that of
    server and edges (3,)."""

    server: PyTree
    client_states: PyTree
    client_work: jax.Array
    server_work: jax.Array

    def commit(self, state: PyTree, cohort: jax.Array, number: jax.Array, full_participation: bool) -> PyTree:
        """The state of a run after the round ``number``, if that is finite; one that has diverged stays as it was.

        ``every`` says that the cohort is all clients in their order.
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
    """Who takes part, and with what.

    Attributes:
        problem, on_server: the problem, and as the server sees it.
        x, y: the rows of all clients; ``beside``: their weights and offsets, where they have them.
        own: of each client of the cohort its numbers of the regularizer.
        whole: of all clients their whole data, or None; ``cohort`` (S,) says whose are taken, None: those of all.
        rows_of_client: all rows of each, (S, L) with -1 for none, where the whole data are taken and must be gathered.
        made: makes the rows x (n, d) and y (n,) of a client from its number, where they are not stored.
        weight: of each, (S,).
        clients: how they are computed.
        uplink: what happens to their uploads.
        frozen: whether the server's model stays as it is.
    """

    algorithm: Algorithm
    problem: Problem
    server_problem: Problem
    schedule: Schedule
    x: jax.Array
    y: jax.Array
    row_extras: dict[str, jax.Array]
    regularizer_numbers: dict[str, jax.Array]
    whole: Any
    cohort: jax.Array | None
    client_rows: jax.Array | None
    weights: jax.Array
    compute_cohort: CohortFunction
    uplink: Uplink
    frozen: bool = False
    generate_rows: Callable[[jax.Array], tuple[jax.Array, jax.Array]] | None = None

    def run_star(self, server: PyTree, kept: PyTree, drawn: RoundDraws) -> RoundOutcome:
        """A round of all clients with the server. What a client keeps is its state and its uplink's memory."""
        received = self.algorithm.broadcast(copy_tree(server))
        share = self.weights / self.weights.sum()
        local = self._local(drawn.shared_uniforms, lambda _: received)
        each = (self.regularizer_numbers, self._whose, kept, drawn.rows, drawn.keys, self.client_rows)
        mean, kept, spent = self.compute_cohort(local, each, share)
        if self.frozen:
            return RoundOutcome(server, kept, spent, jnp.zeros_like(spent[0]))
        server, at_server = count_operations(
            lambda: self.algorithm.server(self.server_problem, copy_tree(server), copy_tree(mean))
        )
        return RoundOutcome(server, kept, spent, at_server)

    def run_tree(self, server: PyTree, kept: PyTree, drawn: RoundDraws, edge_of: jax.Array, count: int) -> RoundOutcome:
        """The same with ``count`` edges between, whose work is added to the server's.

        ``edge_of`` (S,) is the edge of each client.
        """
        algorithm = self.algorithm
        weights = jnp.where(edge_of[None] == jnp.arange(count)[:, None], self.weights[None], 0)  # (edges, S)
        total = weights.sum(axis=1)
        shares = weights / jnp.where(total > 0, total, 1)[:, None]

        def at_edge(edge, mean):
            return count_operations(lambda: algorithm.edge(self.server_problem, copy_tree(edge), copy_tree(mean)))

        def one_round(state, drawn):
            edges, kept, spent, work = state

            def received(edge):
                return algorithm.broadcast(jax.tree.map(lambda v: v[edge], edges))

            each = (self.regularizer_numbers, self._whose, kept, drawn.rows, drawn.keys, self.client_rows, edge_of)
            means, kept, more = self.compute_cohort(self._local(drawn.shared_uniforms, received), each, shares)
            edges, counts = vmap_runs(at_edge, (0, 0), edges, means, sequential=jax.config.jax_disable_jit)  # type: ignore[attr-defined]
            counts = jnp.where(total[:, None] > 0, counts, 0).sum(axis=0, dtype=jnp.int32)
            return (edges, kept, spent + more, work + counts), None

        edges = jax.tree.map(lambda v: jnp.broadcast_to(v, (count, *v.shape)), server)
        idle = (jnp.zeros((len(edge_of), 3), jnp.int32), jnp.zeros(3, jnp.int32))
        (edges, kept, spent, work), _ = lax.scan(one_round, (edges, kept, *idle), drawn)
        share = total / total.sum()  # none for an edge without clients in the cohort
        mean = jax.tree.map(lambda v: jnp.tensordot(share, v, axes=1), algorithm.edge_upload(edges))
        server, at_cloud = count_operations(lambda: algorithm.root(self.server_problem, copy_tree(server), mean))
        return RoundOutcome(server, kept, spent, work + at_cloud)

    @property
    def _whose(self) -> Any:
        """What says which whole data a client has: these themselves, or its number."""
        return self.whole if self.cohort is None else self.cohort

    def _local(self, chances: jax.Array, received: Callable[[Any], PyTree]) -> Callable[..., tuple]:
        """The function that computes one client; ``received(edge)`` says what comes down to it."""
        schedule, dtype = self.schedule, self.weights.dtype

        def local(own, whose, kept, rows, key, rows_of_client, edge=None):
            client, memory = copy_tree(kept)
            problem = self.problem.with_numbers(own).for_side("client")
            x, y = (self.x, self.y) if self.generate_rows is None else self.generate_rows(whose)
            data = LocalData(
                x=x,
                y=y,
                **self.row_extras,  # type: ignore[arg-type]
                rows=rows,
                dtype=dtype,
                full_batch_steps=schedule.full_batch_steps,
                uneven_steps=schedule.uneven_steps,
                frozen=self.frozen,
                key_bits=key,
                shared_uniforms=chances.astype(dtype),
            )
            if rows_of_client is not None:
                data = data.with_whole_data(rows_of_client)
            elif self.cohort is None:
                data = replace(data, whole=whose)
            elif self.whole is not None:
                data = replace(data, whole=jax.tree.map(lambda v: v[whose], self.whole))
            found, work = count_operations(
                lambda: self.algorithm.local(problem, copy_tree(received(edge)), client, data)
            )
            upload, client = found
            upload, memory = self.uplink.send(upload, memory, key)
            return upload, (client, memory), work

        return local


def copy_tree(tree: PyTree) -> PyTree:
    """The same arrays in containers of their own: a function that changes what it is given changes nothing else."""
    return jax.tree.map(lambda leaf: leaf, tree)
