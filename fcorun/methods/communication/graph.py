"""The graph topology: clients that send messages to their neighbours, without a server."""

import hashlib
import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.config import Fraction, Index
from fcorun.base.errors import UserError
from fcorun.base.metrics import Metric
from fcorun.methods.algorithms.gossip import GossipAlgorithm
from fcorun.methods.communication.contracts import (
    Channel,
    Identity,
    RoundOutcome,
    RoundState,
    Topology,
    refuse_integers,
)
from fcorun.methods.communication.graph_links import (
    complete_edges,
    draw_mixing,
    find_unreachable,
    link_nodes,
    mix,
    mix_differences,
    mixing_eigenvalues,
    random_edges,
    read_edges,
    ring_edges,
    torus_edges,
)

MAX_NODES = 4096  # the eigenvalues of W take the cube of the number of nodes
MAX_DRAWN = 2**16  # weights in a round: a thousand rounds of them are 0.5 GB
_EDGE_STREAM = 7  # of random numbers, beside those of fcorun.engine.schedule
_EDGES = {"ring": ring_edges, "torus": torus_edges, "complete": complete_edges}


@dataclass(frozen=True)
class Graph(Topology):
    """A graph of clients without a server: each client is a node, and mixes the messages of its neighbours.

    In a round, every node runs the client's part of the algorithm from its own state, and the server's part on its own
    upload. Then nodes send their states, or what the algorithm makes of them, to their neighbours, and take means by
    the weights W, Metropolis-Hastings. The metrics are those of the mean of the nodes' states. Messages pass the
    uplink: a node sends the compressed difference to what its neighbours know of its message, as in CHOCO-SGD
    (Koloskova, Stich and Jaggi 2019, arXiv 1902.00340), and as in LEAD (Liu et al. 2021, arXiv 2007.00232) with NIDS.

    Attributes:
        graph: ring, torus, complete, erdos_renyi, or a CSV file of edges with the columns client and neighbour, which
            hold names of clients.
        probability: the probability of each edge of erdos_renyi. None means 2 log(M) / M for M clients, twice the
            probability from which on such graphs tend to be connected.
        seed: the seed of the edges of erdos_renyi.
        mixing_step: g in u_i + g sum_j W_ij (m_j - m_i), the mean of node i, where u_i is its message and m_j what
            node j's neighbours know of its message. None means 1 with exact messages, and with compressed ones the
            compressor's contraction a, E|C(v) - v|^2 <= (1 - a) |v|^2; this choice is ours.
        edge_probability: the probability with which an edge carries messages in a round, drawn anew for each edge and
            round by the seed of the run. The weights are those of the edges of the round. None means all edges in all
            rounds. On graph=complete each round has an Erdos-Renyi graph.
    """

    source = "weights of @xiao2007"
    bytes_depend_on_cohort = False
    file_field = "graph"
    declared_metrics = (
        Metric("worst_node_objective", "objective of the worst node", higher=False, log=True),
        Metric("consensus_distance", "distance of the nodes from their mean", log=True),  # at the start it is 0
    )

    graph: str = "ring"
    probability: Fraction | None = None
    seed: Index = 0
    mixing_step: Fraction | None = None
    edge_probability: Annotated[Fraction | None, "default outside identity"] = None

    def __post_init__(self):
        if self.edge_probability == 0:
            raise UserError("`topology.edge_probability=0` sends nothing: give a positive probability, or `null` for "
                            "all edges in all rounds")  # fmt: skip
        if self.mixing_step == 0:
            raise UserError("`topology.mixing_step=0` ignores all neighbours: give a positive number, or `null`")
        if self.graph != "erdos_renyi" and (self.probability is not None or self.seed):
            key = "seed" if self.probability is None else "probability"
            raise UserError(f"`topology.{key}` is of `topology.graph=erdos_renyi`, and `topology.graph={self.graph}` "
                            f"has no random edges: leave `topology.{key}` out")  # fmt: skip

    def check(self, plugins, names, settings):
        algo, algo_name, name = plugins["algo"], names["algo"], names["topology"]
        if not algo.traits.hierarchy:
            raise UserError(f"`algo={algo_name}` needs a server, and `topology={name}` has none: leave it out, or "
                            "choose an `algo` that takes `topology=graph`: `fcorun list algo` shows which "
                            "do")  # fmt: skip
        refusals = {
            f"`algo={algo_name}` works with edges, and `topology={name}` has none: give `topology=tree`": (
                algo.traits.hierarchy == "only"
            ),
            (
                f"`algo={algo_name}` makes a model for each client from that of a server, and `topology={name}` has "
                "none: leave it out"
            ): algo.has_personal_models,
            f"`algo={algo_name}` has two exchanges in a round, and `topology={name}` one: leave it out": (
                algo.has_two_exchanges
            ),
            (
                f"`uplink={names['uplink']}` changes means at a server, and `topology={name}` has none: leave uplink "
                "out"
            ): (type(plugins["uplink"]).receive is not Channel.receive),
            (
                f"`algo={algo_name}` needs the same edges in all rounds: leave `topology.edge_probability` out, or "
                "choose another `algo`"
            ): self.redraws_links and isinstance(algo, GossipAlgorithm) and algo.needs_fixed_graph,
            (
                f"`uplink={names['uplink']}` sends differences to what all neighbours know, and "
                "`topology.edge_probability` lets some miss them: leave one of them out"
            ): self.redraws_links and not isinstance(plugins["uplink"], Identity),
        }
        for sentence, applies in refusals.items():
            if applies:
                raise UserError(sentence)

    def connect(self, clients, weights):
        """Return the links. Raises UserError for a graph that is not connected, too large, or unfit for the clients."""
        n_nodes = len(clients)
        if n_nodes > MAX_NODES:
            raise UserError(f"`topology=graph` takes up to {MAX_NODES} clients, and the data have {n_nodes}: choose a "
                            "smaller data set, or leave topology out")  # fmt: skip
        if self.graph == "erdos_renyi":
            probability = self.probability
            if probability is None:
                probability = min(2 * math.log(max(n_nodes, 2)) / n_nodes, 1.0)
            edges = random_edges(n_nodes, probability, self.seed)
            advice = "raise `topology.probability`, or choose another `topology.seed`"
        elif self.graph in _EDGES:
            edges, advice = _EDGES[self.graph](n_nodes), ""
        else:
            edges, advice = read_edges(self.graph, clients), "add edges"
        unreachable = find_unreachable(edges, n_nodes)
        if unreachable is not None:
            raise UserError(f"`topology.graph={self.graph}` is not connected: no path joins {clients[0]} and "
                            f"{clients[unreachable]}; {advice}")  # fmt: skip
        links = link_nodes(edges, np.asarray(weights, float))
        if self.redraws_links and links.mixing.size > MAX_DRAWN:
            raise UserError(f"`topology.edge_probability` takes up to {MAX_DRAWN} weights in a round, and this graph "
                            f"has {links.mixing.size}: choose a graph with fewer edges, or leave it out")  # fmt: skip
        return links

    @property
    def redraws_links(self):
        return self.edge_probability is not None

    def draw_links(self, links, seed, numbers):
        """Return the weights of the edges that carry messages in these rounds, (T, M, D); None if all edges do."""
        if self.edge_probability is None:
            return None
        rngs = (np.random.default_rng([seed, _EDGE_STREAM, int(number)]) for number in numbers)
        return np.stack([draw_mixing(links, self.edge_probability, rng) for rng in rngs])

    def links_of_round(self, links, drawn):
        return links if drawn is None else links._replace(mixing=drawn)

    def traits_of_messages(self, traits):
        """Return the traits of states, which do not vanish at the optimum."""
        return traits if traits.uploads == "exact" else replace(traits, uploads="points")

    def count_receivers(self, links):
        return len(links.neighbours)

    def describe(self, links):
        """Return the spectral gap of W, one minus its second largest absolute eigenvalue: 0 never mixes, 1 at once.

        Edges that are drawn have no such gap.
        """
        if self.redraws_links:
            return {}
        others = np.abs(mixing_eigenvalues(links)[:-1])
        return {"spectral_gap": float(1 - others.max(initial=0.0))}

    def smallest_eigenvalue(self, links):
        return float(mixing_eigenvalues(links)[0])

    def initial_state(self, server, links, uploads):
        refuse_integers(server, "graph")
        return jax.tree.map(lambda v: jnp.broadcast_to(v, (len(links.neighbours), *v.shape)), server)

    def server_state(self, state, links):
        """Return the mean of the nodes' states, with their weights in F."""
        return jax.tree.map(lambda v: jnp.tensordot(jnp.asarray(links.node_weights, v.dtype), v, axes=1), state)

    def node_states(self, state):
        return state

    def run_round(self, parts, state):
        """Compute the clients, update each node by its own upload, and have the nodes mix their messages."""
        nodes, memory, clients = state
        (exchange,) = parts.exchanges
        uploads, clients, client_work = exchange.compute_clients(nodes, clients, parts.draws, None)
        present = jnp.ones(len(parts.links.neighbours), bool)
        nodes, memory, update_work = exchange.update_each(nodes, uploads, memory, parts.draws, present)
        messages = parts.algorithm.edge_upload(nodes)
        received, clients = parts.send_messages(messages, clients)
        links = self.links_of_round(parts.links, parts.draws.links)
        if received is messages and self.mixing_step is None:
            means = jax.tree.map(partial(mix, links), messages)
        else:
            step = parts.contraction(messages) if self.mixing_step is None else self.mixing_step
            means = jax.tree.map(partial(mix_differences, links, step), messages, received)
        nodes, mixing_work = parts.update_nodes(nodes, means)
        return RoundOutcome(RoundState(nodes, memory, clients), client_work, update_work + mixing_work)

    def round_bytes(self, cohort, links, sizes):
        """Return the bytes of a message along each directed edge as those that go up; nothing comes down."""
        return {"bytes_up": links.n_edges * sizes.edge_upload, "bytes_down": 0}

    def sources(self):
        if self.graph in _EDGES or self.graph == "erdos_renyi":
            return None
        try:
            return hashlib.sha256(Path(self.graph).read_bytes()).hexdigest()[:16]
        except OSError as error:
            raise UserError(f"`topology.graph={self.graph}` is no choice, and no file that can be read "
                            f"({error.strerror}): give ring, torus, complete, erdos_renyi, or a CSV file of edges"
                            ) from error  # fmt: skip
