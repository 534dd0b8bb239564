"""Gaussian noise in each round, on clipped messages of clients, or in each local step on clipped gradients of rows."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fcorun.base.cohorts import Cohort, count_participations, read_participation
from fcorun.base.errors import word
from fcorun.methods.communication.privacy import ClippedPrivacy
from fcorun.methods.communication.privacy_account import count_epsilon, find_noise
from fcorun.methods.problem.problem import fold_key

# times the longest sum of clipped messages, which never all agree: from there on FedDualAvg, which bears noise well,
# misses features, see docs/guide/privacy.md
LARGEST_NOISE = 0.5


@dataclass(frozen=True, kw_only=True)
class GaussianPrivacy(ClippedPrivacy):
    """Gaussian noise in each round, on clipped messages of clients.

    The mean of messages with weights p_m has noise of the deviation ``noise`` * ``clip`` * max p_m in each number, once
    at a trusted server; or each message has noise of the deviation ``noise`` * ``clip`` from its client, who then need
    not trust the server. Each round costs a client as if it took part, except where clients take turns
    (``clients_per_round=cyclic:0.1``), or where a trusted server draws each client by a probability that hides who does
    (``poisson:0.1``): then p_m are the weights over their expected sum. To hide that a client has other rows, rather
    than that its messages count as 0, takes twice the noise.
    On a tree each edge is a trusted server for its own clients, with p_m their weights in its mean, in each of its
    rounds; the root, other edges and their clients get what follows from these means.

    With ``unit=row`` the gradient of a local step is the mean of its rows' clipped gradients. If clients add the noise,
    each of these gradients has some, as large as the clip times the most by which a row counts in the mean (DP-SGD),
    and messages and states of clients, which follow from them, have no more. Each step that a row may be in costs as
    much as a round: shuffled minibatches and cohorts make none cheaper. A trusted server hides rows in one local step
    alone, where the message is the gradient times a rate: the noise of the mean is as large as the most by which a row
    counts there.

    Attributes:
        noise_by: server: one that is trusted, or each edge of a tree, adds noise to the mean; clients: each adds noise
            to its message, or with ``unit=row`` to the gradient of each of its local steps.
    """

    source = "@mcmahan2018, for rows @abadi2016, with the account of @balle2018"

    noise_by: Literal["server", "clients"] = "server"

    @property
    def at_clients(self):
        return self.noise_by == "clients"

    @property
    def goes_with_edges(self):
        return True

    def draw_noise(self, message, key, number):
        return self.draw_normal(message, fold_key(key, number))

    def find_epsilon(self, rounds, clients_per_round, times=1):
        rounds = times * count_participations(clients_per_round, rounds)
        return count_epsilon(self.noise, self.delta, rounds, self.amplifying_participation(clients_per_round))

    def find_noise(self, epsilon, rounds, clients_per_round, times=1):
        rounds = times * count_participations(clients_per_round, rounds)
        return find_noise(epsilon, self.delta, rounds, self.amplifying_participation(clients_per_round))

    def amplifying_participation(self, clients_per_round: Cohort | None) -> float | None:
        """Return the probability by which a client takes part that counts; None: each round counts in full."""
        return None if self.at_clients or self.hides_rows else read_participation(clients_per_round)

    def warn_of_noise(self, shares, n_parameters, count):
        assert self.noise is not None
        share = np.linalg.norm(shares) if self.at_clients else shares.max()
        # the sum of n noises is sqrt(n) times as long as one of them, and that of clipped messages at most n times
        ratio = self.noise * share * math.sqrt(n_parameters / count)
        if ratio <= LARGEST_NOISE:
            return ""
        cures = [f"more {self.unit}s", "fewer parameters"]
        cures.append("a smaller `privacy.noise`" if self.epsilon is None else "a larger `privacy.epsilon`")
        if self.at_clients:
            cures.append("`privacy.noise_by=server`")
        return word(f"the noise of all rounds adds up to {ratio:.2g} times the longest sum that clipped messages can "
                    f"have, which drowns what they say: take {', '.join(cures[:-1])} or {cures[-1]}")  # fmt: skip
