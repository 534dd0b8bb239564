"""The baselines: solutions on the rows of all clients and of one client, and local training of each client."""

from dataclasses import dataclass

from fcorun.base.config import AUTO, AutoPositive, Index
from fcorun.base.errors import UserError
from fcorun.methods.algorithms.algorithm import Algorithm, Baseline, Traits


@dataclass(frozen=True)
class Centralized(Baseline):
    """The solution on the pooled rows of all clients, certified in float64 by ``fcorun.methods.problem.solver``.

    ``fcorun.methods.problem.path_solver`` solves the paths of ``fcorun select``, where the losses have derivatives in
    NumPy and psi is an l1 norm plus squares.
    """

    source = "textbook, solved by the method of @beck2009"
    traits = Traits(mirrored=True)  # mirror maps do not change the problem

    def select_rows(self, offsets):
        return slice(None)


@dataclass(frozen=True)
class OneClient(Baseline):
    """The solution on the rows of one client, ``client`` counted from 0, evaluated on the rows of all clients."""

    source = "textbook, solved by the method of @beck2009"

    client: Index = 0

    picks_client = True
    traits = Traits(mirrored=True)  # mirror maps do not change the problem

    def select_rows(self, offsets):
        if self.client >= len(offsets) - 1:
            raise UserError(f"`algo.client={self.client}` must be less than the number of clients, {len(offsets) - 1}")
        return slice(int(offsets[self.client]), int(offsets[self.client + 1]))


@dataclass(frozen=True)
class Local(Algorithm):
    """Proximal gradient descent of each client on its own f + psi, without communication.

    Local training is the baseline of personalised methods, whose gains over it come from other clients. The clients
    share no model, so that metrics of a shared model are empty. With ``start`` and ``frozen=true`` local training is
    fine-tuning of a global model. "auto" is the longest proximal gradient step that lowers any loss of that curvature
    (Beck and Teboulle, SIAM J. Imaging Sci. 2009, lemma 2.3).
    """

    source = "textbook, proximal gradient steps"

    client_lr: AutoPositive = AUTO

    traits = Traits(psi_sides=("client",), personal_psi=True)
    trains_shared_model = False

    def auto(self, constants):
        return {"client_lr": 1 / constants.smoothness}

    def init(self, problem, w0):
        return w0, w0

    def broadcast(self, server):
        return ()

    def received_model(self, problem, server, client, data):
        return client

    def local(self, problem, server, client, data):
        def step(v, batch):
            return problem.prox(v - self.client_lr * problem.gradient(v, batch), self.client_lr)

        return (), data.steps(step, client)

    def server(self, problem, server, mean):
        return server

    def personal(self, problem, server, client):
        return client
