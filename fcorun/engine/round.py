"""One communication round of one run: the work of a cohort's clients, and what server or edges make of it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fcorun.algorithms.base import Algorithm, LocalData, Tree
from fcorun.engine.schedule import Schedule
from fcorun.problem.problem import Problem
from fcorun.problem.work import Work

Outcome = tuple[Tree, Tree, jax.Array, jax.Array]  # the server's state, the clients' (S, ...), their work, the server's


@dataclass(frozen=True)
class Round:
    """Who takes part, and with what.

    Attributes:
        problem, on_server: the problem, and as the server sees it.
        x, y: the rows of all clients.
        own, whole: of each client of the cohort its numbers of the regularizer, and its whole data or None.
        weight: of each, (S,).
        parallel: whether clients are a ``vmap``, or else a ``scan``.
        frozen: whether the server's model stays as it is.
    """

    algorithm: Algorithm
    problem: Problem
    on_server: Problem
    schedule: Schedule
    x: jax.Array
    y: jax.Array
    own: dict[str, jax.Array]
    whole: Any
    weight: jax.Array
    parallel: bool
    frozen: bool = False

    def star(self, server: Tree, clients: Tree, rows: jax.Array, chances: jax.Array) -> Outcome:
        """A round of all clients with the server; ``rows`` (S, K, B)."""
        received, counted = self.algorithm.broadcast(server), Work()
        share = self.weight / self.weight.sum()
        mean, clients, spent = self._local((clients, rows), chances, share, lambda _: received)
        if self.frozen:
            return server, clients, spent, jnp.zeros_like(spent[0])
        server = self.algorithm.server(replace(self.on_server, work=counted), server, mean)
        return server, clients, spent, counted.totals()

    def tree(
        self, server: Tree, clients: Tree, rows: jax.Array, chances: jax.Array, edge_of: jax.Array, count: int
    ) -> Outcome:
        """The same with ``count`` edges between, whose work is added to the server's; ``rows`` (R, S, K, B).

        ``edge_of`` (S,) is the edge of each client.
        """
        algorithm, counted = self.algorithm, Work()
        weights = jnp.where(edge_of == jnp.arange(count)[:, None], self.weight, 0)  # (edges, S)
        total = weights.sum(axis=1)
        shares = weights / jnp.where(total > 0, total, 1)[:, None]

        def at_edge(edge, mean):
            counted = Work()
            return algorithm.edge(replace(self.on_server, work=counted), edge, mean), counted.totals()

        def one_round(state, inputs):
            edges, clients, spent, work = state
            rows, chances = inputs

            def received(edge):
                return algorithm.broadcast(jax.tree.map(lambda v: v[edge], edges))

            means, clients, more = self._local((clients, rows, edge_of), chances, shares, received)
            edges, counts = jax.vmap(at_edge)(edges, means)
            counts = jnp.where(total[:, None] > 0, counts, 0).sum(axis=0, dtype=jnp.int32)
            return (edges, clients, spent + more, work + counts), None

        edges = jax.tree.map(lambda v: jnp.broadcast_to(v, (count, *v.shape)), server)
        idle = (jnp.zeros((len(edge_of), 3), jnp.int32), jnp.zeros(3, jnp.int32))
        (edges, clients, spent, work), _ = lax.scan(one_round, (edges, clients, *idle), (rows, chances))
        share = total / total.sum()  # none for an edge without clients in the cohort
        mean = jax.tree.map(lambda v: jnp.tensordot(share, v, axes=1), algorithm.report(edges))
        server = algorithm.cloud(replace(self.on_server, work=counted), server, mean)
        return server, clients, spent, work + counted.totals()

    def _local(
        self, each: tuple, chances: jax.Array, shares: jax.Array, received: Callable[[Any], Tree]
    ) -> tuple[Tree, Tree, jax.Array]:
        """The weighted means of the uploads, the clients' new states, and their work.

        ``shares`` (S,) give one mean, (E, S) one for each edge. ``each`` holds of each client its state, its rows and,
        on a tree, its edge; ``received`` says what comes down from there.
        """
        schedule, dtype = self.schedule, self.weight.dtype

        def local(own, whole, client, rows, edge=None):
            work = Work()
            mine = replace(self.problem.with_numbers(own).on("client"), work=work)
            data = LocalData(
                self.x,
                self.y,
                rows,
                dtype,
                schedule.repeats,
                schedule.uneven,
                whole,
                self.frozen,
                chances.astype(dtype),
                work,
            )
            return *self.algorithm.local(mine, received(edge), client, data), work.totals()

        theirs = (self.own, self.whole, *each)
        if self.parallel:
            uploads, clients, spent = jax.vmap(local)(*theirs)
            return jax.tree.map(lambda u: jnp.tensordot(shares, u, axes=1), uploads), clients, spent

        def body(total, inputs):
            mine, share = inputs
            upload, *rest = local(*mine)
            total = jax.tree.map(lambda t, u: t + share.reshape(share.shape + (1,) * u.ndim) * u, total, upload)
            return total, tuple(rest)

        one_client = jax.tree.map(lambda v: v[0], theirs)
        uploads = jax.eval_shape(local, *one_client)[0]
        empty = jax.tree.map(lambda s: jnp.zeros((*shares.shape[:-1], *s.shape), s.dtype), uploads)
        mean, (clients, spent) = lax.scan(body, empty, (theirs, shares.T))
        return mean, clients, spent
