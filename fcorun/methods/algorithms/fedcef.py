"""Federated composite error feedback, FedCEF."""

from dataclasses import dataclass

from fcorun.methods.algorithms.algorithm import Traits
from fcorun.methods.algorithms.compressed_gradient import ef21_step
from fcorun.methods.algorithms.fedcomposite import FedComposite


@dataclass(frozen=True)
class FedCEF(FedComposite):
    """FedCEF: local steps that decouple gradient and prox, with compressed control variates.

    We know the abstract of the paper and not its algorithm. The abstract names the parts: a decoupled proximal update,
    error feedback with control variates, and a downlink of the model before the prox, from which clients reconstruct
    the global control variate. We put these parts together as in composite federated learning with heterogeneous data
    (Zhang, Hu and Johansson 2024, ``algo=fedcomposite``), to which the method reduces with ``uplink=identity``:
    ``gradients`` is what the server knows of a client's mean gradient, and moves by the compressed difference. So
    steps, the first round and constants may differ from the paper. All clients should take equally many steps.
    """

    source = "after the abstract of @qiu2026"

    traits = Traits(partial=False, exact="composite", uploads="points", feedback="ef21")

    def auto(self, constants):
        steps = constants.local_steps * self.server_lr
        return {"client_lr": min(ef21_step(constants) / steps, 1 / constants.smoothness)}

    def local(self, problem, server, client, data):
        start, _, gradients, elapsed = self.corrected_steps(problem, server, client, data)
        new_client = client | {"prox": start, "total_step": self.server_lr * elapsed}
        return {"gradient": gradients, "elapsed": elapsed}, new_client

    def after_sending(self, client, message):
        return client | {"gradients": message["gradient"]}  # moves by the compressed difference to the mean gradient

    def server(self, problem, server, mean):
        total_step = self.server_lr * mean["elapsed"]
        x = server["prox"] - total_step * mean["gradient"]  # x_(r+1), by the mean control variate
        return {"x": x, "prox": problem.prox(x, total_step)}
