"""NIDS: decentralized proximal gradient steps whose length does not depend on the graph."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import AUTO, AutoPositive
from fcorun.methods.algorithms.gossip import EXACT_GOSSIP, GossipAlgorithm


@dataclass(frozen=True)
class NIDS(GossipAlgorithm):
    """NIDS with equal steps and c = 1 / (2 alpha), so that its matrix is (I + W) / 2.

    The first round is a proximal gradient step of each node by itself, as in the authors' program: ``share``, the part
    of a message that is the neighbours' mean, is 0 then and 1/2 afterwards. With unequal weights of the clients in F,
    W is self-adjoint in the inner product of these weights. That the method is exact with unequal weights, too, is our
    observation, and tested.
    """

    source = "NIDS of @li2019"
    traits = EXACT_GOSSIP
    needs_fixed_graph = True

    step: AutoPositive = AUTO

    @classmethod
    def suggest_for(cls, conditions):
        return "nids" if conditions.smooth or conditions.psi_applied_by != "server" else ""

    def auto(self, constants):
        return {"step": 1 / constants.smoothness}

    def init(self, problem, w0):
        share = jnp.zeros((), w0.dtype)
        return {"x": w0, "last": w0, "gradient": 0 * w0, "z": w0, "message": w0, "share": share}, None

    def local(self, problem, server, client, data):
        return problem.gradient(server["x"], data.whole), client

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

    def output(self, problem, server):
        return server["x"]
