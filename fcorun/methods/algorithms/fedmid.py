"""Federated mirror descent, with the prox on both sides or on the server alone, and hard thresholding by it."""

from dataclasses import dataclass, replace

import jax.numpy as jnp

from fcorun.methods.algorithms.algorithm import Traits, TwoRateAlgorithm


@dataclass(frozen=True)
class FedMiD(TwoRateAlgorithm):
    """FedMiD: clients take mirror steps, and the server averages them in the primal space.

    The upload consists of the update and the client's summed rates eta_c K. If clients take unequal numbers of steps, K
    of line 10 is their weighted mean.
    """

    source = "algorithm 2 of @yuan2021"
    traits = Traits(
        mirrored=True,
        hierarchy="some",
        exact_with_one_step="smooth",
        public_uploads=("elapsed",),
        gradient_steps=True,
    )

    def local_model(self, problem, dual):
        """Return the model of a client after a step that led to this dual point."""
        return problem.retrieve(dual, self.client_lr)

    def local(self, problem, server, client, data):
        def step(state, batch):
            w, elapsed = state
            g = problem.gradient(w, batch)  # line 7
            w = self.local_model(problem, problem.to_dual(w) - self.client_lr * g)  # line 8
            return w, elapsed + self.client_lr

        w, elapsed = data.steps(step, (server, jnp.zeros((), server.dtype)))  # lines 5-6
        return {"update": w - server, "elapsed": elapsed}, client

    def server(self, problem, server, mean):
        z = problem.to_dual(server) + self.server_lr * mean["update"]  # lines 9-10
        return problem.retrieve(z, self.server_lr * mean["elapsed"])  # line 10


@dataclass(frozen=True)
class FedMiDOSP(FedMiD):
    """FedMiD-OSP: FedMiD without the client's prox."""

    source = "section 5 of @yuan2021"
    traits = replace(FedMiD.traits, psi_sides=("server",), exact_with_one_step="composite", gradient_uploads="primal")

    def local_model(self, problem, dual):
        return problem.to_primal(dual)  # line 8 with psi = 0


@dataclass(frozen=True)
class FedHT(FedMiDOSP):
    """Fed-HT: gradient steps on the clients, whose mean the server thresholds.

    With ``reg=l0_ball`` and ``server_lr`` 1 the method is as printed; it is FedMiD-OSP, whose prox is then the hard
    threshold. Any other psi has its own prox.
    """

    source = "@tong2020"
    traits = Traits(psi_sides=("server",), exact_with_one_step="composite")


@dataclass(frozen=True)
class FedIterHT(FedMiD):
    """FedIter-HT: the clients threshold after each step, and the server thresholds their mean.

    The method is FedMiD as FedHT is FedMiD-OSP.
    """

    source = "@tong2020"
    traits = Traits(exact_with_one_step="smooth")
