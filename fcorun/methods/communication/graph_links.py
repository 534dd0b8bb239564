"""Graphs of nodes: their edges, and the weights by which nodes mix the messages of their neighbours."""

import csv
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.errors import UserError

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


def read_edges(path: str, clients: Sequence[str]) -> np.ndarray:
    """Return the edges of a CSV file, (E, 2), whose columns client and neighbour hold names of ``clients``.

    Raises UserError for a file that cannot be read, and for other names.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            pairs = [(row["client"], row["neighbour"]) for row in table]
            absent = {"client", "neighbour"} - {*(table.fieldnames or ())}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"`topology.graph={path}` cannot be read ({error}): give ring, torus, complete, erdos_renyi, "
                        "or a CSV file of edges") from error  # fmt: skip
    except KeyError as error:
        absent, pairs = {error.args[0]}, []
    if absent:
        raise UserError(f"`topology.graph={path}` has no column '{min(absent)}': give the columns client and neighbour")
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
