"""An algorithm of one's own whose clients take their whole data beside their minibatches."""

from dataclasses import dataclass

from fcorun.algorithms import FedAvg, Traits


@dataclass(frozen=True)
class SVRG(FedAvg):
    """FedAvg whose local gradients have less variance: each is corrected by that at the start, on all data."""

    traits = Traits(psi_sides=(), hierarchy="some")

    def local(self, problem, server, client, data):
        whole = problem.gradient(server, data.whole)

        def step(w, batch):
            return w - self.client_lr * (problem.gradient(w, batch) - problem.gradient(server, batch) + whole)

        return data.steps(step, server) - server, client
