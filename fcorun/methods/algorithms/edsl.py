"""Efficient distributed sparse learning."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fcorun.base.config import AUTO, AutoNonNegative, Index
from fcorun.methods.algorithms.algorithm import tree_bytes
from fcorun.methods.algorithms.mean_gradient import EXACT_BY_SHIFTED_LOSSES, ShiftedAlgorithm


@dataclass(frozen=True)
class EDSL(ShiftedAlgorithm):
    """EDSL: all clients send gradients, and one client solves the problem with psi, of which the gradient is shifted.

    As printed, ``mu`` is 0, and the strength of psi falls from round to round to the strength that is constant here.
    """

    source = "algorithm 1 of @wang2017, with mu = 0 and a constant strength"

    client: Index = 0
    mu: AutoNonNegative = AUTO

    picks_client = True
    traits = EXACT_BY_SHIFTED_LOSSES

    def local(self, problem, server, client, data):
        solves = data.client == self.client
        shift = client["gradient"] - server
        iterations = jnp.where(solves, self.iterations, 0)  # the other clients compute and send nothing
        w = self.solve(problem, data, client["w"], shift, mu=self.mu, iterations=iterations)
        return {"w": jax.tree.map(lambda v: jnp.where(solves, v, 0), w), "solves": solves.astype(w.dtype)}, client

    def count_local_clients(self, cohort_size):
        return 1

    def upload_bytes(self, upload):
        return tree_bytes(upload["w"] if "solves" in upload else upload)  # the mark of who solves is not sent

    def server(self, problem, server, mean):
        return server | {"w": mean["w"] / mean["solves"]}
