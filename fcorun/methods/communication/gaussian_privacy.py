"""Gaussian noise in each round, on clipped messages of clients, or in each local step on clipped gradients of rows."""

from dataclasses import dataclass
from typing import Annotated, Literal

import jax
import jax.numpy as jnp

from fcorun.base.cohorts import count_participations, read_participation
from fcorun.base.errors import UserError
from fcorun.base.metrics import Metric
from fcorun.methods.communication.contracts import Star
from fcorun.methods.communication.privacy import CLIP, ClippedPrivacy, CountedMessage, find_norm, split_message
from fcorun.methods.problem.problem import fold_key

CLIP_RATE = 0.2  # of the logarithm of the clip, as in the paper on quantiles
COUNT_NOISE = 2.0  # the deviation of a count of messages over ``noise``
MESSAGE_NOISE = (1 - (2 * COUNT_NOISE) ** -2) ** -0.5  # of messages, so that with the count they cost ``noise``


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

    With a ``quantile`` the clip is that of the first round alone, and then follows that quantile of the clients' norms,
    with their weights in the mean, by geometric steps. Each client sends b_m = 1 if its norm is at most the clip, else
    b_m = 0, and the server adds noise of the deviation 2 ``noise`` max p_m to the mean of b_m. One b_m - 1/2 has the
    size 1/2, and messages have 1.033 times the noise, so that for ``noise`` z both together cost what messages with
    the noise alone do: (1.033 z)^-2 + (2 * 2 z)^-2 = z^-2. The paper has the deviation m / 20 for m clients in place
    of 2 z.

    Attributes:
        quantile: the part of the clients' weights whose messages shall not be clipped; null: the clip is constant.
        noise_by: server: one that is trusted, or each edge of a tree, adds noise to the mean; clients: each adds noise
            to its message, or with ``unit=row`` to the gradient of each of its local steps.
    """

    source = "@mcmahan2018, for rows @abadi2016, for quantiles @andrew2021, with the account of @balle2018"
    choices = ("clip", "quantile")

    quantile: Annotated[float | None, "positive", "less than 1", "default outside identity"] = None
    noise_by: Literal["server", "clients"] = "server"

    @property
    def declared_metrics(self):
        clip = (Metric(CLIP, "clip of the next round", log=True),) if self.adapts_clip else ()
        return (*super().declared_metrics, *clip)

    @property
    def at_clients(self):
        return self.noise_by == "clients"

    @property
    def goes_with_edges(self):
        return True

    @property
    def adapts_clip(self):
        return self.quantile is not None

    def check(self, plugins, names, settings):
        super().check(plugins, names, settings)
        excluded = {
            "`privacy.unit=row`": self.hides_rows,
            "`privacy.noise_by=clients`": self.at_clients,
            f"`topology={names['topology']}`": not isinstance(plugins["topology"], Star),
        }
        for option, is_given in excluded.items():
            if self.adapts_clip and is_given:
                raise UserError("`privacy.quantile` is of the norms of clients' messages, which one trusted server "
                                f"counts: leave it out, or {option}")  # fmt: skip

    def protect(self, upload, states, traits, key, number):
        sent, state = super().protect(upload, states, traits, key, number)
        if not self.adapts_clip:
            return sent, state
        message, _ = split_message(upload, traits)
        return CountedMessage(sent, jnp.where(find_norm(message) <= self.clip, 0.5, -0.5)), state

    def draw_noise(self, message, key, number):
        noise = self.draw_normal(message, fold_key(key, number))
        if not isinstance(noise, CountedMessage):
            return noise
        of_message = jax.tree.map(lambda values: MESSAGE_NOISE * values, noise.message)
        return CountedMessage(of_message, COUNT_NOISE / self.clip * noise.short)

    def adapt_clip(self, clip, short):
        assert self.quantile is not None
        return clip * jnp.exp(-CLIP_RATE * (short + 0.5 - self.quantile))

    def count_rounds(self, rounds, clients_per_round, times):
        return times * count_participations(clients_per_round, rounds), 1.0

    def amplifying_participation(self, clients_per_round):
        return None if self.at_clients or self.hides_rows else read_participation(clients_per_round)
