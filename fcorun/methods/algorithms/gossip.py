"""Algorithms for a graph of nodes without a server: the base class, NIDS and PG-EXTRA."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import jax.numpy as jnp

from fcorun.base.config import AUTO, AutoPositive
from fcorun.methods.algorithms.algorithm import EXACT_BY_WHOLE_DATA, Algorithm, Problem, PyTree

# the traits of methods that reach the optimum by one gradient and one prox a round
EXACT_GOSSIP = replace(
    EXACT_BY_WHOLE_DATA, psi_sides=("client",), hierarchy="graph", restores_domain=True, uploads="points"
)


@dataclass(frozen=True)
class GossipAlgorithm(Algorithm):
    """An algorithm of nodes that send messages to their neighbours, for ``topology=graph``.

    ``init`` returns the state of a node. In a round, each node computes ``local`` from its state and its rows, then
    ``adapt`` with the result, which nobody else receives. Then it sends its ``message`` to its neighbours, and ``mix``
    gets the mean of its own message and theirs with the weights W.

    Attributes:
        needs_fixed_graph: True if the method needs the same W in all rounds.
    """

    needs_fixed_graph: ClassVar[bool] = False

    @abstractmethod
    def adapt(self, problem: Problem, node: PyTree, upload: PyTree) -> PyTree:
        """Return a node's new state from the result of its own ``local``."""

    @abstractmethod
    def message(self, node: PyTree) -> PyTree:
        """Return the part of a node's state that the node sends to its neighbours."""

    @abstractmethod
    def mix(self, problem: Problem, node: PyTree, mean: PyTree) -> PyTree:
        """Return a node's new state from the weighted mean of its own message and those of its neighbours."""

    def server(self, problem, server, mean):
        return self.adapt(problem, server, mean)

    def edge_upload(self, edge):
        return self.message(edge)

    def root(self, problem, server, mean):
        return self.mix(problem, server, mean)


@dataclass(frozen=True)
class ExactGossipAlgorithm(GossipAlgorithm):
    """A method that reaches the optimum by one gradient and one prox of each node in a round.

    With unequal weights of the clients in F, W is self-adjoint in the inner product of these weights. That the methods
    are exact with unequal weights, too, is our observation, and tested.
    """

    needs_fixed_graph = True

    step: AutoPositive = AUTO

    def local(self, problem, server, client, data):
        return problem.gradient(server["x"], data.whole), client

    def output(self, problem, server):
        return server["x"]


@dataclass(frozen=True)
class NIDS(ExactGossipAlgorithm):
    """NIDS with equal steps and c = 1 / (2 alpha), so that its matrix is (I + W) / 2.

    The first round is a proximal gradient step of each node by itself, as in the authors' program: ``share``, the part
    of a message that is the neighbours' mean, is 0 then and 1/2 afterwards.
    """

    source = "NIDS of @li2019"
    traits = EXACT_GOSSIP

    @classmethod
    def suggest_for(cls, conditions):
        return "nids" if conditions.smooth or conditions.psi_applied_by != "server" else ""

    def auto(self, constants):
        return {"step": 1 / constants.smoothness}

    def init(self, problem, w0):
        share = jnp.zeros((), w0.dtype)
        return {"x": w0, "last": w0, "gradient": 0 * w0, "z": w0, "message": w0, "share": share}, None

    def adapt(self, problem, node, upload):
        message = 2 * node["x"] - node["last"] - self.step * (upload - node["gradient"])
        return node | {"message": message, "gradient": upload}

    def message(self, node):
        return node["message"]

    def mix(self, problem, node, mean):
        message, share = node["message"], node["share"]
        z = node["z"] - node["x"] + message + share * (mean - message)
        x = problem.prox(z, self.step)
        return node | {"x": x, "last": node["x"], "z": z, "share": jnp.full_like(share, 0.5)}


@dataclass(frozen=True)
class PGExtra(ExactGossipAlgorithm):
    """PG-EXTRA with the matrices W and (I + W) / 2. Without psi it is EXTRA.

    A node sends 2 x^k - x^(k-1) instead of x^k, so that it need not remember a mean; the iterates are the same.
    """

    source = "PG-EXTRA of @shi2015"
    traits = EXACT_GOSSIP

    def auto(self, constants):
        return {"step": 0.9 * (1 + constants.smallest_mixing_eigenvalue) / constants.smoothness}

    def init(self, problem, w0):
        return {"x": w0, "last": w0, "gradient": 0 * w0, "z": w0}, None

    def adapt(self, problem, node, upload):
        z = node["z"] - self.step * (upload - node["gradient"])
        return node | {"z": z, "gradient": upload}

    def message(self, node):
        return 2 * node["x"] - node["last"]

    def mix(self, problem, node, mean):
        z = node["z"] - node["x"] + (self.message(node) + mean) / 2
        return node | {"x": problem.prox(z, self.step), "last": node["x"], "z": z}
