"""Gaussian noise in each round, on clipped messages of clients or clipped gradients of rows."""

from dataclasses import dataclass, fields, replace
from typing import Annotated, Literal

import jax
import jax.numpy as jnp

from fcorun.base.cohorts import read_participation
from fcorun.base.config import Level, Positive
from fcorun.base.errors import UserError
from fcorun.methods.communication.privacy import NOT_PRIVATE, Privacy
from fcorun.methods.communication.privacy_account import count_epsilon, find_noise, load_accountant
from fcorun.methods.problem.problem import Problem, fold_key, wrap_key
from fcorun.methods.problem.row_clipping import RowClippedProblem


@dataclass(frozen=True, kw_only=True)
class GaussianPrivacy(Privacy):
    """Gaussian noise in each round, on clipped messages of clients.

    The mean of messages with weights p_m has noise of the deviation ``noise`` * ``clip`` * max p_m in each number, once
    at a trusted server; or each message has noise of the deviation ``noise`` * ``clip`` from its client, who then need
    not trust the server. Each round costs a client as if it took part, except where a trusted server draws each client
    by a probability that hides who does (``clients_per_round=poisson:0.1``): then p_m are the weights over their
    expected sum. To hide that a client has other rows, rather than that its messages count as 0, takes twice the noise.

    With ``unit=row`` a client takes one local step, whose gradient is the mean of its rows' clipped gradients. The
    noise is then as large as the clip times the most by which a row counts in the mean, or in its client's message,
    times the rate of the step. Each round costs a row as if it were in a batch: a cohort by a probability hides no row,
    since its client's other rows tell whether the client takes part, and neither do minibatches.

    Attributes:
        clip: the norm to which the message of a client is clipped, or the gradient of a row, all its arrays together.
        unit: client, to hide that a client takes part; row, to hide that a row does.
        noise: the deviation of the noise over the clip; null: that of ``epsilon``, or 1 without it.
        epsilon: what all rounds may cost, from which the noise is found; null: the noise is given, and epsilon follows.
        delta: at most 1 / M, for rows 1 / N.
        noise_by: server: one that is trusted adds noise to the mean; clients: each adds noise to its message.
        key: seed: the noise follows from the seed of the run, for simulations, since who knows the seed can take the
            noise away; secret: from a key of the operating system, which is in the checkpoint until the run ends.
    """

    source = "@mcmahan2018, with the account of @balle2018"

    clip: Positive = 1.0
    unit: Annotated[Literal["client", "row"], "default outside identity"] = "client"
    noise: Positive | None = None
    epsilon: Positive | None = None
    delta: Level = 1e-5
    noise_by: Literal["server", "clients"] = "server"
    key: Literal["seed", "secret"] = "seed"

    @property
    def at_clients(self):
        return self.noise_by == "clients"

    @property
    def hides_rows(self):
        return self.unit == "row"

    @property
    def has_secret_key(self):
        return self.key == "secret"

    def check(self, plugins, names, settings):
        super().check(plugins, names, settings)
        if self.noise is not None and self.epsilon is not None:
            raise UserError("`privacy.epsilon` and `privacy.noise` follow from each other: give one of them")
        load_accountant()

    def check_clients(self, n_clients, n_rows, participation, names):
        super().check_clients(n_clients, n_rows, participation, names)
        count = n_rows if self.hides_rows else n_clients
        if self.delta > 1 / count:
            raise UserError(f"`privacy.delta={self.delta:g}` allows that the data of one of {count} {self.unit}s are "
                            f"told to everybody: give at most {1 / count:.2g}")  # fmt: skip

    def resolve(self, settings):
        if self.noise is not None:
            return self
        if self.epsilon is None:
            return replace(self, noise=1.0)
        participation = self._counted_participation(read_participation(settings.clients_per_round))
        return replace(self, noise=find_noise(self.epsilon, self.delta, max(settings.rounds, 1), participation))

    def clip_message(self, message):
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(message)))
        factor = self.clip / jnp.maximum(norm, self.clip)
        return jax.tree.map(lambda leaf: factor * leaf, message)

    def clip_rows(self, problem):
        if not self.hides_rows:
            return problem
        return RowClippedProblem(
            **{field.name: getattr(problem, field.name) for field in fields(Problem)}, clip=self.clip
        )

    def draw_noise(self, message, key, number):
        leaves, structure = jax.tree.flatten(message)
        noise = []
        for leaf, own_key in zip(leaves, jax.random.split(wrap_key(fold_key(key, number)), len(leaves)), strict=True):
            # the same in either precision; the mean of four has longer tails and a finer grid than one draw, as the
            # attack by rounded noise of Holohan and Braghin (2021, arXiv 2107.10138) asks for
            assert self.noise is not None
            drawn = jax.random.normal(own_key, (4, *leaf.shape), jnp.float32).sum(axis=0) / 2
            noise.append((self.noise * self.clip * drawn).astype(leaf.dtype))
        return structure.unflatten(noise)

    def find_epsilon(self, rounds, participation):
        return count_epsilon(self.noise, self.delta, rounds, self._counted_participation(participation))

    def _counted_participation(self, participation: float | None) -> float | None:
        """Return the probability by which a client takes part that counts; None: each round counts in full."""
        return None if self.at_clients or self.hides_rows else participation

    def describe(self, rounds, settings):
        hidden = "the gradients of one row" if self.hides_rows else "the messages of one client"
        participation = read_participation(settings.clients_per_round)
        content = {
            "unit": self.unit,
            "neighbours": f"{hidden} counted as 0; number and weights of clients are public",
            "epsilon": self.find_epsilon(rounds, participation),
            "delta": self.delta,
            "noise": self.noise,
            "clip": self.clip,
            "noise_by": self.noise_by,
            "amplified_by": self._counted_participation(participation),
            "key": self.key,
            "not_private": list(NOT_PRIVATE),
        }
        source = "a secret key" if self.has_secret_key else "the seed, as a simulation"
        sentence = (f"what the server sent is private for {hidden} counted as 0, with epsilon "
                    f"{content['epsilon']:.3g} and delta {self.delta:g}, by noise from {source}; not private are "
                    f"{', '.join(NOT_PRIVATE)}")  # fmt: skip
        return sentence, {"privacy": content}
