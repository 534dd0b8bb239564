"""Federated SVRG."""

from dataclasses import dataclass, replace

from fcorun.base.config import AUTO, AutoPositive
from fcorun.methods.algorithms.algorithm import EXACT_BY_WHOLE_DATA, auto_client_lr
from fcorun.methods.algorithms.mean_gradient import MeanGradientAlgorithm


@dataclass(frozen=True)
class FSVRG(MeanGradientAlgorithm):
    """Federated SVRG: in local steps, the mean gradient of all clients at w corrects the gradients of minibatches.

    At w, the server's model at the start of a round, a corrected gradient is the gradient of F for every minibatch.
    Therefore the optimum is a fixed point for any minibatches and any number of local steps. Three things differ from
    the paper: each local step applies the prox of psi; all clients take steps of one size, where the paper divides the
    step by the client's number of rows; and neither the differences of gradients nor the mean of the updates are scaled
    by how often a coordinate is not zero.
    """

    source = "@konecny2016 without its scaling of coordinates, psi = 0"

    client_lr: AutoPositive = AUTO

    traits = replace(
        EXACT_BY_WHOLE_DATA, psi_sides=("client",), deterministic=False, robust_to_uneven_steps=True, uploads="points"
    )

    def auto(self, constants):
        return {"client_lr": auto_client_lr(constants)}

    def local(self, problem, server, client, data):
        mean_gradient, anchor = server, client["w"]

        def step(w, batch):
            correction = mean_gradient - problem.gradient(anchor, batch)
            return problem.prox(w - self.client_lr * (problem.gradient(w, batch) + correction), self.client_lr)

        return data.steps(step, anchor) - anchor, client

    def server(self, problem, server, mean):
        return server | {"w": server["w"] + mean}
