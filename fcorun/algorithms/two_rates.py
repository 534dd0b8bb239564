"""Base class of algorithms with one rate on the clients and one on the server."""

from dataclasses import dataclass

from fcorun.algorithms.base import Algorithm, ProblemConstants
from fcorun.config import AUTO, AutoPositive

MAX_DRIFT = 0.1  # the sum of a client's K steps as a fraction of 1 / L_m, the longest stable step; our choice


@dataclass(frozen=True, kw_only=True)
class TwoRateAlgorithm(Algorithm):
    """An algorithm of K local steps of ``client_lr`` whose server moves by ``server_lr`` times the mean of the steps.

    A round moves F by a step of K eta_c eta_s. "auto" makes this step 1 / L, with L the curvature of F, or of any
    client for cohorts of some clients. For K = 1 the rates are eta_c = 1 / L and eta_s = 1: (dual) gradient descent.
    For K > 1, eta_c is a tenth of 1 / (K L_m), with L_m the largest curvature of a client, and eta_s compensates.
    Theorem 1 of Karimireddy et al. (SCAFFOLD, ICML 2020) bounds the drift of FedAvg by the square of K eta_c alone, so
    that a small eta_c leads near the optimum if all clients take equally many steps. Otherwise clients with more steps
    weigh more, whatever the rates (Wang et al., FedNova, NeurIPS 2020).

    With minibatches, L is the expected smoothness of the rows that a round draws. Theorem 3.1 of Gower et al. (SGD:
    general analysis and improved rates, ICML 2019) allows a step of half of 1 / L. With reg.applied_by=client,
    the server takes the mean of the clients, eta_s = 1.

    Attributes:
        client_lr: eta_c; "auto" as above, and at most one over the curvature of any minibatch.
        server_lr: eta_s; "auto" as above, and 1 where eta_c is a number.
    """

    client_lr: AutoPositive = AUTO
    server_lr: AutoPositive = AUTO

    @property
    def curvature_alternatives(self):
        return [f"a value for algo.{name}" for name in self.auto_fields if name != "server_lr"]

    def auto(self, constants):
        return auto_rates(self.client_lr, self.server_lr, constants)


def auto_rates(
    client_lr: float | str, server_lr: float | str, constants: ProblemConstants, server_gain: float = 1.0
) -> dict[str, float]:
    """Return values for the rates that are "auto".

    ``server_gain`` is the factor by which the server moves farther in the long run, by momentum for example.
    """
    if not isinstance(client_lr, str):
        return {"server_lr": 1 / server_gain}
    if not isinstance(server_lr, str):
        return {"client_lr": auto_client_lr(constants, server_lr * server_gain)}
    if constants.local_steps == 1 or constants.psi_on_clients_only:
        return {"client_lr": auto_client_lr(constants), "server_lr": 1 / server_gain}
    steps = constants.local_steps
    client = min(MAX_DRIFT / (steps * constants.client_smoothness), 1 / constants.smoothness)
    smoothness = constants.expected_smoothness(constants.cohort_smoothness)
    return {"client_lr": client, "server_lr": 1 / (steps * client * smoothness * server_gain)}


def auto_client_lr(constants: ProblemConstants, server_lr: float = 1.0) -> float:
    """Return the rate of the clients that makes a round, with ``server_lr`` on the server, a step of 1 / L."""
    steps = constants.local_steps
    if steps == 1:  # all clients start from one point, so that none drifts
        return 1 / (server_lr * constants.expected_smoothness(constants.cohort_smoothness))
    smoothness = constants.expected_smoothness(constants.client_smoothness)
    return min(1 / (steps * server_lr * smoothness), 1 / constants.smoothness)
