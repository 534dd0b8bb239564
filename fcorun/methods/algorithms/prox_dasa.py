"""Prox-DASA-GT: decentralized proximal steps along averages of tracked gradients."""

from dataclasses import dataclass
from typing import Annotated

from fcorun.base.config import AUTO, AutoPositive
from fcorun.methods.algorithms.algorithm import Traits
from fcorun.methods.algorithms.gossip import GossipAlgorithm

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
