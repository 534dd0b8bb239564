"""PG-EXTRA: decentralized proximal gradient steps with a correction that makes them exact."""

from dataclasses import dataclass

from fcorun.base.config import AUTO, AutoPositive
from fcorun.methods.algorithms.gossip import EXACT_GOSSIP, GossipAlgorithm


@dataclass(frozen=True)
class PGExtra(GossipAlgorithm):
    """PG-EXTRA with the matrices W and (I + W) / 2. Without psi it is EXTRA.

    A node sends 2 x^k - x^(k-1) instead of x^k, so that it need not remember a mean; the iterates are the same. With
    unequal weights of the clients in F, W is self-adjoint in the inner product of these weights. That the
    method is exact with unequal weights, too, is our observation, and tested.
    """

    source = "PG-EXTRA of @shi2015"
    traits = EXACT_GOSSIP
    needs_fixed_graph = True

    step: AutoPositive = AUTO

    def auto(self, constants):
        return {"step": 0.9 * (1 + constants.smallest_mixing_eigenvalue) / constants.smoothness}

    def init(self, problem, w0):
        return {"x": w0, "last": w0, "gradient": 0 * w0, "z": w0}, None

    def local(self, problem, server, client, data):
        return problem.gradient(server["x"], data.whole), client

    def adapt(self, problem, node, upload):
        z = node["z"] - self.step * (upload - node["gradient"])
        return node | {"z": z, "gradient": upload}

    def message(self, node):
        return 2 * node["x"] - node["last"]

    def mix(self, problem, node, mean):
        z = node["z"] - node["x"] + (self.message(node) + mean) / 2
        return node | {"x": problem.prox(z, self.step), "last": node["x"], "z": z}

    def output(self, problem, server):
        return server["x"]
