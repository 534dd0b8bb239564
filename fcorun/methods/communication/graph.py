"""The graph topology: clients that send messages to their neighbours, without a server."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.config import Fraction, Index
from fcorun.base.errors import UserError
from fcorun.base.metrics import Metric
from fcorun.base.system.files import file_digest
from fcorun.data.tables.readers import read_option_file
from fcorun.methods.algorithms.algorithm import Algorithm
from fcorun.methods.algorithms.gossip import GossipAlgorithm
from fcorun.methods.communication.contracts import (
    Channel,
    Identity,
    RoundOutcome,
    RoundState,
    Topology,
    refuse_integers,
)

MAX_NODES = 4096  # the eigenvalues of W take the cube of the number of nodes
MAX_DRAWN = 2**16  # weights in a round: a thousand rounds of them are 0.5 GB
_EDGE_STREAM = 7  # of random numbers, beside those of fcorun.engine.schedule
_DENSE_SHARE = 4  # a node with more than a fourth of all nodes as neighbours: a product with a matrix is faster


class GraphLinks(NamedTuple):
    """The links of M nodes with at most D - 1 neighbours.

    Attributes:
        neighbours: each node, and then its neighbours, (M, D); padded by the node itself.
        mixing: the weights of their messages, (M, D), 0 for padding; rows sum to one.
        node_weights: the weights of the nodes in F, (M,), which sum to one.
    """

    neighbours: np.ndarray
    mixing: np.ndarray
    node_weights: np.ndarray

    @property
    def n_edges(self) -> int:
        """The number of directed edges that carry messages."""
        return int((self.mixing[:, 1:] > 0).sum())


# ---------------------------------------------------------------- edges


def ring_edges(n_nodes: int) -> np.ndarray:
    """Return the edges of a ring, (E, 2)."""
    nodes = np.arange(n_nodes)
    return np.stack([nodes, (nodes + 1) % n_nodes], axis=1)


def complete_edges(n_nodes: int) -> np.ndarray:
    """Return the edges between all pairs of nodes, (E, 2)."""
    return np.stack(np.triu_indices(n_nodes, 1), axis=1)


def torus_edges(n_nodes: int) -> np.ndarray:
    """Return the edges of a grid with opposite sides joined, (E, 2), as nearly square as the number of nodes allows.

    Raises UserError for a prime number of nodes.
    """
    rows = max(rows for rows in range(1, math.isqrt(n_nodes) + 1) if n_nodes % rows == 0)
    if rows == 1 and n_nodes > 3:
        raise UserError(f"`topology.graph=torus` needs rows and columns, and the number of clients, {n_nodes}, is a "
                        "prime: give `topology.graph=ring`")  # fmt: skip
    grid = np.arange(n_nodes).reshape(rows, -1)
    neighbours = [np.roll(grid, -1, axis=axis) for axis in (0, 1)]
    return np.concatenate([np.stack([grid.ravel(), other.ravel()], axis=1) for other in neighbours])


def random_edges(n_nodes: int, probability: float, seed: int) -> np.ndarray:
    """Return the edges of an Erdos-Renyi graph, (E, 2): each pair is joined with this probability."""
    pairs = complete_edges(n_nodes)
    return pairs[np.random.default_rng(seed).random(len(pairs)) < probability]


def _check_is_file(path: str) -> None:
    """Raise UserError for a ``graph`` that is neither a choice nor a file."""
    if not Path(path).is_file():
        raise UserError(f"`topology.graph={path}` is no choice, and no file that can be read: give ring, torus, "
                        "complete, erdos_renyi, or a CSV file of edges")  # fmt: skip


def read_edges(path: str, clients: Sequence[str]) -> np.ndarray:
    """Return the edges of a CSV file, (E, 2), whose columns client and neighbour hold names of ``clients``.

    Raises UserError for a file that cannot be read, and for other names.
    """
    _check_is_file(path)
    columns = ("client", "neighbour")
    rows = read_option_file(path, "topology.graph", columns, "the columns client and neighbour")
    pairs = [(row["client"], row["neighbour"]) for row in rows]
    alone = next((one or other for one, other in pairs if not (one and other)), None)
    if alone is not None:
        raise UserError(f"`topology.graph={path}` has a row of client {alone} without a neighbour: give both, or leave "
                        "the row out")  # fmt: skip
    number = {name: index for index, name in enumerate(clients)}
    unknown = next((name for pair in pairs for name in pair if name not in number), None)
    if unknown is not None:
        raise UserError(f"`topology.graph={path}` names client {unknown}, which the data do not have: leave it out, or "
                        f"give names of the data, such as {clients[0]}")  # fmt: skip
    return np.array([[number[name] for name in pair] for pair in pairs], int).reshape(-1, 2)


# ---------------------------------------------------------------- links


def find_unreachable(edges: np.ndarray, n_nodes: int) -> int | None:
    """Return a node that no path joins to node 0; None for a connected graph."""
    reached = np.arange(n_nodes) == 0
    while True:
        grown = reached.copy()
        grown[edges[reached[edges[:, 0]], 1]] = True
        grown[edges[reached[edges[:, 1]], 0]] = True
        if grown.all():
            return None
        if (grown == reached).all():
            return int((~reached).argmax())
        reached = grown


def link_nodes(edges: np.ndarray, node_weights: np.ndarray) -> GraphLinks:
    """Return the links of these edges with Metropolis-Hastings weights.

    Node i with weight p_i and d_i neighbours takes min(1 / (d_i + 1), p_j / (p_i (d_j + 1))) of the message of its
    neighbour j, and the rest of its own. So p_i W_ij = p_j W_ji: mixing keeps the mean over nodes with weights p. Equal
    weights give a symmetric, doubly stochastic W.

    Args:
        edges: pairs of nodes in either order, (E, 2); repeated ones and loops count once and not at all.
        node_weights: positive weights, (M,), up to a factor.
    """
    n_nodes, weights = len(node_weights), node_weights / node_weights.sum()
    joined = {(int(i), int(j)) for pair in edges for i, j in (pair, pair[::-1]) if i != j}
    lists: list[list[int]] = [[] for _ in range(n_nodes)]
    for i, j in sorted(joined):
        lists[i].append(j)
    degrees = np.array([len(neighbours) for neighbours in lists])
    table = np.repeat(np.arange(n_nodes)[:, None], degrees.max(initial=0) + 1, axis=1)
    for i, neighbours in enumerate(lists):
        table[i, 1 : 1 + len(neighbours)] = neighbours
    is_neighbour = table != np.arange(n_nodes)[:, None]
    return GraphLinks(table, _metropolis_hastings(table, is_neighbour, weights), weights)


def draw_mixing(links: GraphLinks, probability: float, rng: np.random.Generator) -> np.ndarray:
    """Draw the edges that carry messages, each with this probability, and return their weights, (M, D).

    These are the Metropolis-Hastings weights of ``link_nodes`` for the drawn edges; other edges have weight 0.
    """
    nodes = np.arange(len(links.neighbours))[:, None]
    first, second = np.minimum(nodes, links.neighbours), np.maximum(nodes, links.neighbours)
    _, edge_of = np.unique(first * len(nodes) + second, return_inverse=True)  # a loop of a node pads its row
    carries = (rng.random(edge_of.max() + 1) < probability)[edge_of.reshape(links.neighbours.shape)]
    return _metropolis_hastings(links.neighbours, carries & (links.neighbours != nodes), links.node_weights)


def _metropolis_hastings(table: np.ndarray, joined: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the weights of the messages of each node and its neighbours in ``table``, where ``joined``, all (M, D)."""
    per_message = weights / (joined.sum(axis=1) + 1)
    mixing = np.minimum(per_message[:, None], per_message[table]) / weights[:, None]
    mixing[~joined] = 0
    mixing[:, 0] = 1 - mixing[:, 1:].sum(axis=1)
    return mixing


def mixing_matrix(links: GraphLinks) -> np.ndarray:
    """Return the matrix W of the weights, (M, M)."""
    n_nodes = len(links.neighbours)
    matrix = np.zeros((n_nodes, n_nodes))
    np.add.at(matrix, (np.arange(n_nodes)[:, None], links.neighbours), links.mixing)
    return matrix


def mixing_eigenvalues(links: GraphLinks) -> np.ndarray:
    """Return the eigenvalues of W, (M,), ascending; they are real, since p_i W_ij = p_j W_ji."""
    root = np.sqrt(links.node_weights)
    symmetric = root[:, None] * mixing_matrix(links) / root
    return np.linalg.eigvalsh((symmetric + symmetric.T) / 2)


def mix_differences(links: GraphLinks, step: jax.Array | float, messages: jax.Array, received: jax.Array) -> jax.Array:
    """Return the messages of all nodes plus ``step`` times (W - I) times what others received of them, (M, ...).

    The mean of all nodes is that of the messages, whatever the others received.
    """
    return messages + jnp.asarray(step, messages.dtype) * (mix(links, received) - received)


def mix(links: GraphLinks, messages: jax.Array) -> jax.Array:
    """Return W times the messages of all nodes, (M, ...). The weights may be traced."""
    n_nodes, width = links.neighbours.shape
    if width * _DENSE_SHARE > n_nodes:
        if isinstance(links.mixing, np.ndarray):
            matrix = jnp.asarray(mixing_matrix(links), messages.dtype)
        else:
            matrix = jnp.zeros((n_nodes, n_nodes), messages.dtype)
            rows = np.arange(n_nodes)[:, None]
            matrix = matrix.at[rows, links.neighbours].add(jnp.asarray(links.mixing, messages.dtype))
        return jnp.tensordot(matrix, messages, axes=1)
    weights = jnp.asarray(links.mixing, messages.dtype).reshape(n_nodes, width, *[1] * (messages.ndim - 1))
    mean = weights[:, 0] * messages
    for k in range(1, width):
        mean += weights[:, k] * messages[links.neighbours[:, k]]
    return mean


# ---------------------------------------------------------------- topology


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
    names_beside_file = (*_EDGES, "erdos_renyi")
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
        uplink = f"`uplink={names['uplink']}`"
        if algo.traits.hierarchy == "only":
            raise UserError(f"`algo={algo_name}` works with edges, and `topology={name}` has none: give "
                            "`topology=tree`")  # fmt: skip
        if algo.has_personal_models:
            raise UserError(f"`algo={algo_name}` makes a model for each client from that of a server, and "
                            f"`topology={name}` has none: leave it out")  # fmt: skip
        if algo.has_two_exchanges:
            raise UserError(f"`algo={algo_name}` has two exchanges in a round, and `topology={name}` one: leave it out")
        counted = [method for method in ("upload_bytes", "upload_bytes_for", "edge_upload_bytes")
                   if getattr(type(algo), method) is not getattr(Algorithm, method)]  # fmt: skip
        if counted and "edge_upload_bytes" not in counted:
            raise UserError(f"{counted[0]} of `algo={algo_name}` counts uploads to a server, and `topology={name}` has "
                            "none: define edge_upload_bytes(self, upload), of the message to a neighbour")  # fmt: skip
        if type(plugins["uplink"]).receive is not Channel.receive:
            raise UserError(f"{uplink} changes means at a server, and `topology={name}` has none: leave uplink out")
        if self.redraws_links and isinstance(algo, GossipAlgorithm) and algo.needs_fixed_graph:
            raise UserError(f"`algo={algo_name}` needs the same edges in all rounds: leave "
                            "`topology.edge_probability` out, or choose another `algo`")  # fmt: skip
        if self.redraws_links and not isinstance(plugins["uplink"], Identity):
            raise UserError(f"{uplink} sends differences to what all neighbours know, and `topology.edge_probability` "
                            "lets some miss them: leave one of them out")  # fmt: skip

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
        if self.graph in self.names_beside_file:
            return None
        _check_is_file(self.graph)
        return file_digest(Path(self.graph))[:16]
