"""Sparse personal models in a hierarchy of clients, edges and the root."""

from dataclasses import dataclass, replace

from fcorun.base.config import UNSET, Positive
from fcorun.methods.algorithms.pfedmac_s import PFedMacS


@dataclass(frozen=True, kw_only=True)
class PFedMacSH(PFedMacS):
    """pFedMac-SH, on ``topology=tree``.

    An edge has a model x and the mean y of its clients. Clients start from y in the next round of the edge; in the
    paper each client starts from its own y. The client's step uses lambda_1; the authors' slides print lambda_2.
    Cohorts consist of clients; in the paper they consist of edges. The edge's step is as printed: it lacks the term
    - lambda_2 x of the gradient of the three-level problem, so that the algorithm does not converge to the optimum of
    that problem.
    """

    source = "algorithm 1 of @li2021pfedmac"

    edge_lam: Positive = UNSET
    edge_lr: Positive = UNSET

    @property
    def traits(self):
        return replace(super().traits, hierarchy="only")

    def init(self, problem, w0):
        return {"x": w0, "y": w0}, w0

    def broadcast(self, server):
        return server["y"]

    def edge(self, problem, edge, mean):
        y = edge["y"] + mean
        return {"x": edge["x"] - self.edge_lr * self.edge_lam * (edge["x"] - y), "y": y}

    def edge_upload(self, edge):
        return edge["x"]

    def root(self, problem, server, mean):
        x = (1 - self.server_lr) * server["x"] + self.server_lr * mean
        return {"x": x, "y": x}

    def output(self, problem, server):
        return server["x"]
