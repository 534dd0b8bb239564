"""Composite federated learning with heterogeneous data, and its form with compressed control variates."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.config import AUTO, AutoPositive, Positive
from fcorun.methods.algorithms.algorithm import Algorithm, Traits, auto_client_lr
from fcorun.methods.algorithms.compressed_gradient import ef21_step


@dataclass(frozen=True)
class FedComposite(Algorithm):
    """Composite federated learning with heterogeneous data.

    Clients decouple gradient and prox steps, and correct their drift without further communication. The first point P_0
    is w_0 itself instead of its prox, since the number K of local steps is not yet known. All clients should take
    equally many steps: K eta is then the same in each upload, and so in a combination of honest uploads by any rule.
    Uploads are changes from P_r, at which all clients start. Comments name the vectors of the paper, with
    eta~ = eta eta_g K.
    """

    source = "@zhang2024"

    client_lr: AutoPositive = AUTO
    server_lr: Positive = 1.0

    traits = Traits(
        needs_convex_psi=True,
        partial=False,
        exact="composite",
        uploads="changes",
        public_uploads=("elapsed",),
        gradient_steps=True,
    )

    def auto(self, constants):
        return {} if isinstance(self.client_lr, float) else {"client_lr": auto_client_lr(constants, self.server_lr)}

    def init(self, problem, w0):
        zero = jnp.zeros((), w0.dtype)
        return {"x": w0, "prox": w0}, {"prox": w0, "gradients": 0 * w0, "total_step": zero}

    def broadcast(self, server):
        return server["x"]

    def received_model(self, problem, server, client, data):
        return problem.prox(server, client["total_step"])

    def corrected_steps(self, problem, server, client, data):
        """Return P_r, the end of the local steps before the prox, their mean gradient, and the sum of their rates."""
        total_step = client["total_step"]  # eta~, 0 in the first round
        start = problem.prox(server, total_step)  # P_r = prox of eta~ psi at x_r
        # the mean gradient of all clients in the last round, 0 in the first round
        mean_gradient = (client["prox"] - server) / jnp.where(total_step > 0, total_step, 1)
        correction = mean_gradient - client["gradients"]  # c_m

        def step(state, batch):
            dual, z, gradients, elapsed = state  # z^, z, the sum of the gradients, k eta
            g = problem.gradient(z, batch)
            dual = dual - self.client_lr * (g + correction)
            elapsed = elapsed + self.client_lr
            return dual, problem.prox(dual, elapsed), gradients + g, elapsed

        dual, _, gradients, elapsed = data.steps(step, (start, start, 0 * start, jnp.zeros_like(total_step)))
        return start, dual, gradients * (self.client_lr / elapsed), elapsed

    def local(self, problem, server, client, data):
        start, dual, gradients, elapsed = self.corrected_steps(problem, server, client, data)
        new_client = {"prox": start, "gradients": gradients, "total_step": self.server_lr * elapsed}
        return {"dual": dual - start, "elapsed": elapsed}, new_client

    def server(self, problem, server, mean):
        x = server["prox"] + self.server_lr * mean["dual"]  # x_(r+1)
        return {"x": x, "prox": problem.prox(x, self.server_lr * mean["elapsed"])}

    def output(self, problem, server):
        return server["prox"]


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
    is_reconstructed = True

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
