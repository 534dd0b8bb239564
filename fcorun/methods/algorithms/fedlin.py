"""Local steps along the mean gradient of all clients, of a length that does not depend on their number."""

from dataclasses import dataclass

from fcorun.base.config import AUTO, AutoPositive
from fcorun.methods.algorithms.algorithm import Traits
from fcorun.methods.algorithms.mean_gradient import MeanGradientAlgorithm


@dataclass(frozen=True)
class FedLin(MeanGradientAlgorithm):
    """FedLin without sparsification: exact however many steps a client takes. FedLin ignores psi.

    ``client_lr`` is the length of all steps of a client in a round together. "auto" is of the order of the paper's
    theorem, 1 / (6 L), and at most 1 / L of any minibatch, which a client may take in one step.
    """

    source = "algorithm 1 of @mitra2021"

    client_lr: AutoPositive = AUTO

    traits = Traits(psi_sides=(), partial=False, exact="smooth", robust_to_uneven_steps=True, uploads="points")

    def auto(self, constants):
        return {"client_lr": min(1 / (6 * constants.client_smoothness), 1 / constants.smoothness)}

    def local(self, problem, server, client, data):
        shift = server - client["gradient"]  # of the mean gradient from the client's own at w
        step_length = self.client_lr / data.n_steps

        def step(w, batch):
            return w - step_length * (problem.gradient(w, batch) + shift)

        return data.steps(step, client["w"]) - client["w"], client

    def server(self, problem, server, mean):
        return server | {"w": server["w"] + mean}
