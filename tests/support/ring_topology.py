"""A topology of a user, without a server."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.config import Fraction
from fcorun.base.errors import UserError
from fcorun.methods.communication import Topology
from fcorun.methods.communication.contracts import RoundOutcome, RoundState


@dataclass(frozen=True)
class Ring(Topology):
    """A ring of clients without a server: each mixes its state and its update with those of two neighbours."""

    own: Fraction = 0.5

    source = "ours, for tests"
    bytes_depend_on_cohort = False

    def check(self, plugins, names, settings):
        super().check(plugins, names, settings)
        if settings.clients_per_round is not None:
            name = names["topology"]
            raise UserError(f"topology={name} has no server that draws cohorts: give clients_per_round=null")

    def connect(self, clients, weights):
        self_loop = np.eye(len(clients))
        neighbours = np.roll(self_loop, 1, axis=0) + np.roll(self_loop, -1, axis=0)
        return self.own * self_loop + (1 - self.own) / 2 * neighbours

    def count_receivers(self, links):
        return len(links)

    def initial_state(self, server, links, uploads):
        return jax.tree.map(lambda v: jnp.broadcast_to(v, (len(links), *v.shape)), server)

    def server_state(self, state, links):
        return jax.tree.map(lambda v: v.mean(axis=0), state)

    def run_round(self, parts, state):
        nodes, memory, clients = state
        mixing = jnp.asarray(parts.links, parts.weights.dtype)
        client_work, node_work = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
        for exchange in parts.exchanges:
            means, clients, work = exchange.compute_clients(nodes, clients, parts.draws, mixing, parts.clients)
            client_work += work
            nodes = jax.tree.map(lambda v: jnp.tensordot(mixing, v, axes=1), nodes)
            present = jnp.ones(len(mixing), bool)
            nodes, memory, work = exchange.update_each(nodes, means, memory, parts.draws, present)
            node_work += work
        return RoundOutcome(RoundState(nodes, memory, clients), client_work, node_work)

    def round_bytes(self, cohort, links, sizes):
        return {"bytes_up": 2 * sizes.bytes_up(len(cohort)), "bytes_down": 0}
