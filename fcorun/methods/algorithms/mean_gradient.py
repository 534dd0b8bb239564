"""Base class of algorithms whose clients receive the mean gradient of all clients before they compute."""

from dataclasses import dataclass

from fcorun.methods.algorithms.algorithm import Algorithm


@dataclass(frozen=True, kw_only=True)
class MeanGradientAlgorithm(Algorithm):
    """An algorithm with two exchanges in a round, of which the first gives all clients the mean gradient.

    In the first exchange the clients receive w and send their gradients there. In the second they receive the mean
    gradient, and remember w and their own gradient.
    """

    def init(self, problem, w0):
        zeros = problem.zeros(w0.dtype)
        return {"w": w0, "gradient": zeros}, {"w": w0, "gradient": zeros}

    def first_broadcast(self, server):
        return server["w"]

    def first_local(self, problem, server, client, data):
        gradient = problem.gradient(server, data.whole)
        return gradient, {"w": server, "gradient": gradient}

    def received_model(self, problem, server, client, data):
        return client["w"]

    def first_server(self, problem, server, mean):
        return server | {"gradient": mean}

    def broadcast(self, server):
        return server["gradient"]

    def output(self, problem, server):
        return server["w"]
