"""The tree topology: clients, edges and the root."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fcorun.base.config import Count, Index
from fcorun.base.errors import UserError
from fcorun.data.tables.readers import digest_option_file, read_option_file
from fcorun.methods.communication.contracts import Channel, RoundOutcome, RoundState, Topology, refuse_integers


@dataclass(frozen=True)
class Tree(Topology):
    """A topology whose clients communicate with an edge, and whose edges communicate with the server, the root.

    In a round, each edge with clients in the cohort starts from the root's state and makes ``rounds`` rounds with
    these clients, with minibatches of their own. Then the root takes the mean over the edges. Clients and edges have
    the weights of F.

    Each edge combines the uploads of its clients by ``aggregate``, and the root takes the mean of its edges.

    The uplink and the downlink are between an edge and its clients: an edge remembers what its clients know of its
    broadcasts. Messages between edges and the root are sent as they are.

    Attributes:
        edges: the number of edges. None means as many as ``map`` names, or without a map about the square root of the
            number of clients.
        rounds: the rounds of an edge with its clients in each round of the root.
        map: the edge of each client, counted from 0, or a CSV file with the columns client and edge, which hold their
            names. None divides the clients in their order into parts of equal size, up to one.
    """

    source = "with FedAvg, HierFAVG of @liu2020"

    has_downlink = True
    gathers_uploads = True
    file_field = "map"

    edges: Count | None = None
    rounds: Count = 1
    map: list[Index] | str | None = None

    @property
    def edge_rounds(self):
        return self.rounds

    def check(self, plugins, names, settings):
        if plugins["algo"].traits.hierarchy == "graph":
            super().check(plugins, names, settings)
        if not plugins["algo"].traits.hierarchy:
            raise UserError(f"`algo={names['algo']}` knows no edges: leave `topology={names['topology']}` out, or "
                            "choose an `algo` that takes `topology=tree`: `fcorun list algo` shows which "
                            "do")  # fmt: skip
        if settings.frozen:
            raise UserError("`frozen=true` leaves nothing to the edges: leave topology out")
        counts_bytes = type(plugins["downlink"]).counted_bytes is not Channel.counted_bytes
        if counts_bytes and settings.clients_per_round is not None:
            raise UserError(f"`downlink={names['downlink']}` counts what an edge sends to each of its clients, and "
                            f"with `topology={names['topology']}` needs all clients in every round: give "
                            "`clients_per_round=null`")  # fmt: skip

    def connect(self, clients, weights):
        """Return the edge of each client, (M,). Raises UserError for a map that does not fit the clients or edges."""
        n_clients = len(clients)
        if self.map is None:
            edges = self.edges or max(round(n_clients**0.5), 1)
            if edges > n_clients:
                raise UserError(
                    f"`topology.edges={edges}` is more than the {n_clients} clients: give at most {n_clients}"
                )
            return np.arange(n_clients) * edges // n_clients
        edge_of_client = self._read_map(self.map, clients) if isinstance(self.map, str) else self.map
        if len(edge_of_client) != n_clients:
            raise UserError(
                f"`topology.map` has {len(edge_of_client)} clients, and the data have {n_clients}: give an edge for "
                "each"
            )
        edges, with_clients = max(edge_of_client) + 1, set(edge_of_client)
        empty = next((edge for edge in range(edges) if edge not in with_clients), None)
        if empty is not None:
            raise UserError(f"`topology.map` leaves edge {empty} without clients: count the edges from 0 on")
        if self.edges not in (None, edges):
            raise UserError(
                f"`topology.edges={self.edges}`, and `topology.map` has {edges}: leave `topology.edges` out"
            )
        return np.asarray(edge_of_client)

    def count_receivers(self, links):
        return int(links.max()) + 1

    def count_listeners(self, links):
        return np.bincount(links)

    def find_receivers(self, links, n_clients):
        return links

    def run_round(self, parts, state):
        """Compute the rounds of the edges with their clients, and the root's mean; edges' work is the server's."""
        algorithm = parts.algorithm
        edge_of, n_edges = jnp.asarray(parts.links, jnp.int32)[parts.clients], self.count_receivers(parts.links)
        weights = jnp.where(edge_of[None] == jnp.arange(n_edges)[:, None], parts.weights[None], 0)  # (edges, S)
        edge_weights = weights.sum(axis=1)
        present = edge_weights > 0
        shares = weights / jnp.where(present, edge_weights, 1)[:, None]

        def run_edge_round(carry, draws):
            (edges, memory, clients), client_work, edge_work = carry
            client_counts, edge_counts = [], []
            for exchange in parts.exchanges:
                broadcasts, memory = exchange.send_broadcasts(edges, memory, draws, present)
                means, clients, counts = exchange.answer(broadcasts, clients, draws, shares, edge_of)
                client_counts.append(counts)
                edges, memory, counts = exchange.update_each(edges, means, memory, draws, present)
                edge_counts.append(counts)
            state = RoundState(edges, memory, clients)
            return (state, client_work + reduce(add, client_counts), edge_work + reduce(add, edge_counts)), None

        edges = jax.tree.map(lambda v: jnp.broadcast_to(v, (n_edges, *v.shape)), state.server)
        no_work = (jnp.zeros((len(edge_of), 3), jnp.int32), jnp.zeros(3, jnp.int32))
        carry = (state._replace(server=edges), *no_work)
        (end, client_work, edge_work), _ = lax.scan(run_edge_round, carry, parts.draws)
        shares_of_edges = edge_weights / edge_weights.sum()  # 0 for an edge without clients in the cohort
        uploads = algorithm.edge_upload(end.server)
        refuse_integers(uploads, "tree")
        mean = jax.tree.map(lambda v: jnp.tensordot(shares_of_edges, v, axes=1), uploads)
        server, root_work = parts.update_root(state.server, mean)
        return RoundOutcome(end._replace(server=server), client_work, edge_work + root_work)

    def round_bytes(self, cohort, links, sizes):
        """Return the bytes between clients and edges, and those between edges and the root, by level."""
        n_edges = len(np.unique(links[cohort]))
        return {
            "bytes_up": self.rounds * sizes.bytes_up(len(cohort)),
            "bytes_down": self.rounds * sizes.bytes_down(len(cohort)),
            "edge_bytes_up": n_edges * sizes.edge_upload,
            "edge_bytes_down": n_edges * sizes.edge_broadcast,
        }

    def sources(self):
        return digest_option_file(self.map, "topology.map") if isinstance(self.map, str) else None

    def _read_map(self, path: str, clients: Sequence[str]) -> list[int]:
        """Return the map of a CSV file; edges are numbered in the order of their names."""
        rows = read_option_file(path, "topology.map", ("client", "edge"), "the columns client and edge")
        pairs = [(row["client"], row["edge"]) for row in rows]
        counts = Counter(client for client, _ in pairs)
        repeated = next((client for client, count in counts.items() if count > 1), None)
        if repeated is not None:
            raise UserError(
                f"`topology.map={self.map}` has client {repeated} more than once: give one row for each client"
            )
        edge_names = dict(pairs)
        missing = next((name for name in clients if not edge_names.get(name)), None)
        if missing is not None:
            raise UserError(f"`topology.map={self.map}` has no edge for client {missing}: give a row for each client")
        edges = sorted({edge_names[name] for name in clients})
        return [edges.index(edge_names[name]) for name in clients]
