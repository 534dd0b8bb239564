"""Draws, states and bytes of a round, as a topology gets and returns them."""

from typing import NamedTuple

import jax

from fcorun.algorithms.local_data import PyTree


class RoundDraws(NamedTuple):
    """The random draws of a round. With ``edge_rounds`` each has one more leading axis, the rounds of an edge.

    Attributes:
        rows: the rows of each client's batches, (S, K, B).
        keys: the bits of a random key for each client, (S, 2).
        shared_uniforms: two uniform numbers for all clients, (2,).
        server_key: the bits of a random key for the server, (2,), or None where nothing reads the key.
        links: the part of the links that ``Topology.draw_links`` draws for this round, or None.
    """

    rows: jax.Array
    keys: jax.Array
    shared_uniforms: jax.Array
    server_key: jax.Array | None = None
    links: PyTree = None


class RoundState(NamedTuple):
    """The states before or after a round.

    Attributes:
        server: the state of the topology: by default the server's state.
        memory: the memory of the uplink at the receivers of uploads, of the downlink at the server, and of the uplink
            at edges if they send by it, in this order.
        clients: the state of each client of the cohort, and the memory of the channel there, with a leading axis S.
    """

    server: PyTree
    memory: PyTree
    clients: PyTree


class RoundOutcome(NamedTuple):
    """The result of a round.

    Attributes:
        client_work: the work of each client, (S, 3).
        server_work: the work of the server and of edges, (3,).
    """

    state: RoundState
    client_work: jax.Array
    server_work: jax.Array


class MessageBytes(NamedTuple):
    """The bytes of messages.

    Attributes:
        uploads: of a client's upload in each exchange of a round.
        broadcasts: of what a client receives in each exchange of a round.
        edge_upload: of an edge's upload.
        edge_broadcast: of what an edge receives from the root.
        idle_clients: the clients of a cohort that do not communicate in the last exchange.
    """

    uploads: tuple[int, ...]
    broadcasts: tuple[int, ...]
    edge_upload: int = 0
    edge_broadcast: int = 0
    idle_clients: int = 0

    def bytes_up(self, cohort_size: int) -> int:
        """Return the bytes that a cohort sends in a round."""
        return cohort_size * sum(self.uploads) - self.idle_clients * self.uploads[-1]

    def bytes_down(self, cohort_size: int) -> int:
        """Return the bytes that a cohort receives in a round."""
        return cohort_size * sum(self.broadcasts) - self.idle_clients * self.broadcasts[-1]
