"""A user's algorithm whose clients use their whole data beside minibatches."""

from dataclasses import dataclass

from fcorun.methods.algorithms import FedAvg, Traits


@dataclass(frozen=True)
class SVRG(FedAvg):
    """FedAvg with variance reduction: each local gradient is corrected by the full gradient at the round's start."""

    traits = Traits(psi_sides=(), hierarchy="some")

    def local(self, problem, server, client, data):
        full_gradient = problem.gradient(server, data.whole)

        def step(w, batch):
            return w - self.client_lr * (problem.gradient(w, batch) - problem.gradient(server, batch) + full_gradient)

        return data.steps(step, server) - server, client
