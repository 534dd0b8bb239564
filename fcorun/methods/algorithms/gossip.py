"""Algorithms for a graph of nodes without a server: the base class, NIDS, PG-EXTRA and Prox-DASA-GT."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import jax.numpy as jnp

from fcorun.base.config import AUTO, AutoPositive
from fcorun.methods.algorithms.algorithm import Algorithm, Problem, PyTree
from fcorun.methods.algorithms.traits import EXACT_BY_WHOLE_DATA, Traits

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


Averaging = Annotated[float, "or auto", "positive", "between 0 and 1"]


@dataclass(frozen=True)
class ProxDASA(GossipAlgorithm):
    """Prox-DASA-GT: each node keeps moving averages, and tracks the mean gradient of all nodes.

    A step moves x by the fraction ``averaging`` towards a proximal gradient point y = prox(x - step z), where z is a
    moving average of u, and u tracks the mean gradient by adding the change of the node's own. Nodes send x, z and u.
    At a fixed point u is the mean gradient, so that the method reaches the optimum of unlike nodes, whatever their
    numbers of steps, and also where the edges differ from round to round; this is our observation, and tested.

    As published, nodes communicate after each step, once or several times. Local steps between messages are our
    extension; with ``local_steps=1`` they are gone. In the authors' program z averages a node's own gradients and u is
    not read; here z averages u, as the method's name says.
    """

    source = "Prox-DASA-GT of @xiao2023, with local steps of ours"
    traits = Traits(
        psi_sides=("client",),
        partial=False,
        needs_convex_psi=True,
        hierarchy="graph",
        exact="composite",
        robust_to_uneven_steps=True,
        uploads="points",
    )

    step: AutoPositive = AUTO
    averaging: Averaging = AUTO

    def auto(self, constants):
        return {"step": 1 / constants.smoothness, "averaging": 0.5 / constants.local_steps}

    def init(self, problem, w0):
        zero = 0 * w0
        return {"x": w0, "z": zero, "u": zero, "gradient": zero}, None

    def local(self, problem, server, client, data):
        def step(node, batch):
            x, z, alpha = node["x"], node["z"], self.averaging
            y = problem.prox(x - self.step * z, self.step)
            gradient = problem.gradient(x, batch)
            u = node["u"] + gradient - node["gradient"]
            return {"x": x + alpha * (y - x), "z": z + alpha * (u - z), "u": u, "gradient": gradient}

        return data.steps(step, server), client

    def adapt(self, problem, node, upload):
        return upload

    def message(self, node):
        return {name: node[name] for name in ("x", "z", "u")}

    def mix(self, problem, node, mean):
        return node | mean

    def output(self, problem, server):
        return server["x"]
