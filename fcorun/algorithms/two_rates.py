"""What the methods have in common that have a rate on the clients and one on the server."""

from dataclasses import dataclass

from fcorun.algorithms.base import Algorithm, ProblemConstants
from fcorun.config import AutoPositive

DRIFT = 0.1  # how far a client's K steps may go, as a share of the longest step; our choice


@dataclass(frozen=True)
class TwoRateAlgorithm(Algorithm):
    """An algorithm of K local steps of ``client_lr`` and a server that goes ``server_lr`` times their mean.

    What a round moves is a step of K eta_c eta_s on F. "auto" makes that 1 / L, L the curvature of F, or of any client
    where the cohort is not all of them. For K = 1 that is eta_c = 1 / L and eta_s = 1: (dual) gradient descent. For
    more, eta_c is a tenth of 1 / (K L_m), L_m the largest curvature of a client, and eta_s makes up for it: theorem 1
    of Karimireddy et al. (SCAFFOLD, ICML 2020) bounds the drift of FedAvg by the square of K eta_c alone, so that
    with a small eta_c it ends near the optimum and not at a point of its own, if all take as many steps: else clients
    with more steps weigh more, whatever the rates (Wang et al., FedNova, NeurIPS 2020).

    With minibatches, L is the expected smoothness of the rows that a round draws, of which theorem 3.1 of Gower et al.
    (SGD: general analysis and improved rates, ICML 2019) allows half of one over it. Where clients alone apply psi, the
    server takes their mean, eta_s = 1.

    Attributes:
        client_lr: eta_c; "auto" as above, and at most one over the curvature of any minibatch.
        server_lr: eta_s; "auto" as above, and 1 where eta_c is given.
    """

    client_lr: AutoPositive
    server_lr: AutoPositive

    @property
    def curvature_alternatives(self):
        return [f"a value for algo.{name}" for name in self.auto_fields if name != "server_lr"]

    def auto(self, known):
        return auto_rates(self.client_lr, self.server_lr, known)


def auto_rates(
    client_lr: float | str, server_lr: float | str, known: ProblemConstants, server_gain: float = 1.0
) -> dict[str, float]:
    """Values for what is "auto" of the two; ``gain`` is how much farther the server goes in the long run."""
    if not isinstance(client_lr, str):
        return {"server_lr": 1 / server_gain}
    if not isinstance(server_lr, str):
        return {"client_lr": auto_client_lr(known, server_lr * server_gain)}
    if known.local_steps == 1 or known.psi_on_clients_only:
        return {"client_lr": auto_client_lr(known), "server_lr": 1 / server_gain}
    client = min(DRIFT / (known.local_steps * known.client_smoothness), 1 / known.smoothness)
    return {
        "client_lr": client,
        "server_lr": 1
        / (known.local_steps * client * known.expected_smoothness(known.cohort_smoothness) * server_gain),
    }


def auto_client_lr(known: ProblemConstants, server_lr: float = 1.0) -> float:
    """The rate of the clients with which a round, with this rate of the server, is a step of 1 / L."""
    if known.local_steps == 1:
        return 1 / (
            server_lr * known.expected_smoothness(known.cohort_smoothness)
        )  # all start from one point: nobody drifts
    return min(
        1 / (known.local_steps * server_lr * known.expected_smoothness(known.client_smoothness)), 1 / known.smoothness
    )
