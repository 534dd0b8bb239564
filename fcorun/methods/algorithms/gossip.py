"""Base class of algorithms for a graph of nodes without a server."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

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
