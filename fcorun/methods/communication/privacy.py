"""Differential privacy of clients or rows: the contract of a mechanism, and what it refuses.

A client's message, the change that it sends with all arrays together, is clipped to a norm before the uplink, and noise
hides whose messages the server has got. What then is (epsilon, delta)-private is all that the server sends in the
rounds, the model included, for the messages of one client: two runs of which one counts them as 0 are hard to tell
apart. The number of the clients and their weights are no secret: a client that is really removed changes the divisor of
the mean, too, and hiding that takes about twice the noise.

To hide single rows, the gradient of each row is clipped in place of the message. What is private is then for the
gradients of one row, which one of two runs counts as 0. The clients' numbers of rows are no secret.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.cohorts import Cohort, count_participations, read_participation
from fcorun.base.config import Level, PluginBase, Positive, Settings
from fcorun.base.errors import UserError, word
from fcorun.base.metrics import EPSILON, Metric
from fcorun.methods.algorithms.algorithm import PyTree, Traits
from fcorun.methods.communication.aggregation import WeightedMean
from fcorun.methods.communication.compressor import check_domain
from fcorun.methods.communication.contracts import Identity, Star
from fcorun.methods.communication.privacy_account import count_epsilon, find_noise, load_accountant, round_up
from fcorun.methods.mirror_maps.mirror_map import Euclidean
from fcorun.methods.problem.problem import KeyBits, Problem, wrap_key
from fcorun.methods.problem.row_clipping import RowClippedProblem

CLIP = "clip"  # the metric of the clip of the next round, where it follows from the rounds
LARGE_EPSILON = 10  # above it the odds that a client takes part may change by more than exp(10): nobody is hidden
LEAST_CLIENTS = 100  # among fewer, noise that hides one client hides the model
# times the longest sum of clipped messages, which never all agree: from there on FedDualAvg, which bears noise well,
# misses features, see docs/guide/privacy.md
LARGEST_NOISE = 0.5
LEAST_COHORT = 30  # on average: then a round without any client, which would show, has a probability below 1e-13
# what a record has, or a run starts from, beside the messages of a private server; the guide has the same list
NOT_PRIVATE = (
    "metrics, scores, thresholds and predictions",
    "models of single clients",
    "strengths, rates, clips and ends of runs that follow from them",
    "numbers that are auto or relative, and the bounds behind them",
    "reference and gap",
    "the encoding of columns by scaling, fills of gaps, knots and the levels that exist",
    "the least and the largest value of each column",
    "numbers of gaps, by client and outcome",
    "counts, means and deviations of the outcome",
    "levels with few rows",
    "warnings, which may name rows and columns",
    "the fingerprint of the data",
    "names, numbers and weights of clients",
    "numbers of rows and of classes",
    "bytes and times",
    "the model that start names",
    "the rounding of the noise",
)


def all_finite(tree: PyTree) -> jax.Array:
    """Return whether all numbers of a pytree are finite."""
    return jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]).all()


class CountedMessage(NamedTuple):
    """A message, or a mean of messages, with what counts how many are not longer than the clip.

    Attributes:
        message: the clipped message.
        short: 1/2 if the norm before was at most the clip, -1/2 if not; of several messages, the mean.
    """

    message: PyTree
    short: Any


def split_message(upload: PyTree, traits: Traits) -> tuple[PyTree, dict[str, Any]]:
    """Return the part of an upload, or of a mean of uploads, that depends on rows, and the entries that do not."""
    if isinstance(upload, CountedMessage):
        secret, public = split_message(upload.message, traits)
        return CountedMessage(secret, upload.short), public
    if not traits.public_uploads:
        return upload, {}
    secret = {name: value for name, value in upload.items() if name not in traits.public_uploads}
    return secret, {name: upload[name] for name in traits.public_uploads}


def join_message(message: PyTree, public: dict[str, Any]) -> PyTree:
    """Return the upload, or the mean of uploads, of which ``split_message`` returns these two parts."""
    if isinstance(message, CountedMessage):
        return CountedMessage(join_message(message.message, public), message.short)
    return message | public if public else message


@dataclass(frozen=True, kw_only=True)
class Privacy(PluginBase, ABC):
    """A plug-in of privacy: how messages are clipped, the noise of each round, and what the rounds cost.

    The functions of messages are pure, and traced; numbers among the fields may be traced, too.

    Attributes:
        source: the publication, in the notation of fcorun.base.sources.catalogue; not inherited.
        choices: the fields that neither say who is hidden nor how well, such as a clip: a sweep chooses the best value
            of these alone.
    """

    source: ClassVar[str]
    choices: ClassVar[tuple[str, ...]] = ()

    @property
    def acts(self) -> bool:
        """True unless messages and means are as without privacy."""
        return True

    @property
    def declared_metrics(self) -> tuple[Metric, ...]:
        """The metric of what the rounds so far have cost."""
        return (Metric(EPSILON, "privacy loss ε", monotone=True),) if self.acts else ()

    @property
    def at_clients(self) -> bool:
        """True if each client adds noise to its message; else a trusted server adds noise to the mean."""
        return False

    @property
    def goes_with_edges(self) -> bool:
        """True if on a tree each edge may add noise to its means in the place of a server, or its clients do."""
        return False

    @property
    def hides_rows(self) -> bool:
        """True if gradients of rows are clipped, to hide single rows; else messages, to hide clients."""
        return False

    @property
    def adapts_clip(self) -> bool:
        """True if clients send a ``CountedMessage``, from whose mean the clip of the next round follows."""
        return False

    def adapt_clip(self, clip: jax.Array, short: jax.Array) -> jax.Array:
        """Return the clip of the next round, given that of this one, and the noisy mean of ``CountedMessage.short``."""
        return clip

    @property
    def noises_steps(self) -> bool:
        """True if clients add noise to the gradient of each local step, so that all that they send is private."""
        return self.hides_rows and self.at_clients

    @property
    def correlates_rounds(self) -> bool:
        """True if the noise of a round cancels a part of earlier noise in the sum of all rounds."""
        return False

    def fixes_divisor(self, participation: float | None) -> bool:
        """Return whether sums of messages are divided by the weight of an average cohort, in place of the round's own.

        Then the divisor does not tell who takes part by the probability ``participation``, and noise that is correlated
        between rounds cancels in the sum of their means.
        """
        return self.acts and (participation is not None or self.correlates_rounds)

    @property
    def has_secret_key(self) -> bool:
        """True if the noise comes from a key that only the run has; else from the seed, which the record tells."""
        return False

    @abstractmethod
    def clip_message(self, message: PyTree) -> PyTree:
        """Return the finite message of a client, not longer than the mechanism allows: 0 where its norm overflows."""

    def clip_rows(self, problem: Problem) -> Problem:
        """Return the problem of a client, whose gradients are of clipped rows where privacy hides them."""
        return problem

    @abstractmethod
    def draw_noise(self, message: PyTree, key: KeyBits, number: jax.Array | int) -> PyTree:
        """Return the noise of the round ``number``, from 0, for a client's message of these shapes.

        ``key`` are the bits of the run's key, or of its client's, for ``split_key``. The noise is for the sum of
        messages: the server scales it as the heaviest message of the mean.
        """

    def split_key(self, key: KeyBits, message: PyTree) -> PyTree:
        """Return an independent key of jax.random for each array of a message, given the bits of a key."""
        leaves, structure = jax.tree.flatten(message)
        return structure.unflatten(jax.random.split(wrap_key(key), len(leaves)))

    @abstractmethod
    def find_epsilon(self, rounds: int, clients_per_round: Cohort | None, times: int = 1) -> float:
        """Return epsilon after so many rounds, of which ``clients_per_round`` are as of a configuration.

        Noise hides a client, or a row, so many ``times`` in each round. Raises UserError without the package of the
        accountant.
        """

    def amplifying_participation(self, clients_per_round: Cohort | None) -> float | None:
        """Return the probability by which a client takes part that makes rounds cheaper; None: nothing does."""
        return None

    def count_noise(self, settings: Settings) -> int:
        """Return how often noise must hide one client, or one row, in a round: once, or in several local steps.

        A row is in one step of each of the ``local_epochs``, and may be in each of the ``local_steps``.
        """
        if not self.noises_steps:
            return 1
        return settings.local_steps or settings.local_epochs or 1

    def resolve(self, settings: Settings, times: int = 1) -> Self:
        """Return a copy with numbers for the fields that follow from the settings, with noise so often in a round.

        Raises UserError.
        """
        return self

    def protect(
        self,
        upload: PyTree,
        states: tuple[PyTree, PyTree],
        traits: Traits,
        key: KeyBits,
        number: jax.Array | int,
    ) -> tuple[PyTree, PyTree]:
        """Return what a client sends for its upload, clipped, and with noise if clients add it; and its new state.

        ``states`` are the client's before and after the round, and ``key`` the bits of its key. Where a number of the
        message or of the new state is not finite, the message counts as 0 and the old state stays: a run that ended
        there would tell that this client took part. Where privacy hides rows, their gradients have been clipped and
        have got the noise of clients before, and the message is as it is.
        """
        message, public = split_message(upload, traits)
        old_state, state = states
        finite = all_finite((message, state))
        message = jax.tree.map(lambda leaf: jnp.where(finite, leaf, 0), message)
        if not self.hides_rows:
            message = self.clip_message(message)
        state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), state, old_state)
        if self.at_clients and not self.hides_rows:
            message = jax.tree.map(jnp.add, message, self.draw_noise(message, key, number))
        return join_message(message, public), state

    def check(self, plugins: Mapping[str, Any], names: Mapping[str, str], settings: Settings) -> None:
        """Refuse runs of whose messages the account would not hold, given the plug-ins by section and their names.

        Raises UserError.
        """
        privacy, algo = f"`privacy={names['privacy']}`", plugins["algo"]
        if not self.acts:
            return
        if algo.traits.public_uploads is None:
            raise UserError(f"{privacy} is worked out for messages that are changes of the server's model, and not for "
                            f"those of `algo={names['algo']}`: choose another, `fcorun list algo` shows which go with "
                            "privacy")  # fmt: skip
        if algo.has_two_exchanges:
            raise UserError(f"{privacy} counts one message of each client in a round, and `algo={names['algo']}` has "
                            "two exchanges: choose another, `fcorun list algo` shows which go with "
                            "privacy")  # fmt: skip
        if algo.has_server_all and not self.at_clients:
            raise UserError(f"{privacy} hides a client in the mean, and the server of `algo={names['algo']}` takes "
                            "single uploads: give `privacy=gaussian privacy.noise_by=clients`, or choose another "
                            "`algo`")  # fmt: skip
        check_end_of_run(plugins, names, settings)
        if not plugins["mirror"].has_whole_dual:
            raise UserError(f"{privacy} adds noise, which may leave the domain of the duals of "
                            f"`mirror={names['mirror']}`: leave mirror out, or choose another")  # fmt: skip
        check_domain(plugins, names, "privacy")
        if self.hides_rows:
            check_losses_of_rows(plugins, names)
            if self.noises_steps:
                check_gradient_steps(plugins, names)
            else:
                check_row_messages(plugins, names)
        topology = plugins["topology"]
        has_edges = topology.edge_rounds is not None
        if not (isinstance(topology, Star) or (has_edges and self.goes_with_edges)):
            servers = "one server or to edges" if self.goes_with_edges else "one server"
            raise UserError(f"{privacy} is of clients that send to {servers}: leave `topology={names['topology']}` "
                            "out")  # fmt: skip
        if not isinstance(plugins["aggregate"], WeightedMean):
            raise UserError(f"{privacy} bounds what a client adds to a mean, which `aggregate={names['aggregate']}` is "
                            "not: leave one of them out")  # fmt: skip
        if not (self.at_clients or isinstance(plugins["uplink"], Identity)):
            raise UserError(f"`uplink={names['uplink']}` may make a message longer than its clip before the server "
                            "adds noise: give `privacy=gaussian privacy.noise_by=clients`, or leave uplink "
                            "out")  # fmt: skip
        if self.has_secret_key and read_participation(settings.clients_per_round) is not None:
            raise UserError("`privacy.key=secret` with `clients_per_round=poisson` counts on cohorts that nobody "
                            "knows, and they follow from the seed in the record: give `clients_per_round=null`, or "
                            "`privacy.key=seed` for a simulation")  # fmt: skip

    def check_clients(
        self,
        n_clients: int,
        n_rows: int,
        participation: float | None,
        names: Mapping[str, str],
        n_at_edge: int | None = None,
    ) -> None:
        """Refuse fewer clients than can hide one of them, M in all with N rows together.

        The smallest edge of a tree has ``n_at_edge`` clients. Raises UserError.
        """
        if not self.acts or self.hides_rows:
            return
        if n_clients < LEAST_CLIENTS:
            raise UserError(f"`privacy={names['privacy']}` hides one client among the others, and "
                            f"`data={names['data']}` has {n_clients}: take data with {LEAST_CLIENTS} clients or more, "
                            "or leave privacy out")  # fmt: skip
        if n_at_edge is not None and n_at_edge < LEAST_CLIENTS and not self.at_clients:
            raise UserError(f"`privacy={names['privacy']}` hides one client among those of its edge, and an edge of "
                            f"`topology={names['topology']}` has {n_at_edge}: take fewer edges, such as "
                            f"`topology.map=null topology.edges={n_clients // LEAST_CLIENTS}`, so that each has "
                            f"{LEAST_CLIENTS} clients or more, or `privacy.noise_by=clients`")  # fmt: skip
        if participation is not None and participation * n_clients < LEAST_COHORT:
            raise UserError(f"with `privacy={names['privacy']}` a round without any client would show: give "
                            f"`clients_per_round=poisson:{LEAST_COHORT / n_clients:.2g}` or more")  # fmt: skip

    @property
    def advice_on_noise(self) -> str:
        """A clause on what to give for a smaller epsilon."""
        return "give more noise, or fewer rounds"

    def warn_of_noise(self, shares: np.ndarray, n_parameters: int, count: int) -> str:
        """Return a sentence for before the run where noise is longer than all that clipped messages can say; else "".

        Args:
            shares: the deviation of each noise in the mean of a round, over noise times clip: one of the server, one
                of each edge, or one of each client.
            n_parameters: the number of numbers in a message.
            count: how often noise is added in the run.
        """
        return ""

    def describe(self, rounds: int, settings: Settings, times: int = 1) -> tuple[str, dict[str, Any]]:
        """Return a sentence on what is private after so many rounds and what is not, and a section of summary.json.

        Noise hides a client, or a row, so many ``times`` in each round. Both are empty without privacy.
        """
        if not self.acts:
            return "", {}
        hidden = "the gradients of one row" if self.hides_rows else "the messages of one client"
        epsilon = self.find_epsilon(rounds, settings.clients_per_round, times)
        section = {
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "unit": "row" if self.hides_rows else "client",
            "neighbours": f"{hidden} counted as 0; number and weights of clients are public",
            "epsilon": epsilon,
            "participations": count_participations(settings.clients_per_round, rounds),
            "noise_by": "clients" if self.at_clients else "server",
            "amplified_by": self.amplifying_participation(settings.clients_per_round),
            "choices": list(self.choices),
            "not_private": list(NOT_PRIVATE),
        }
        source = "a secret key" if self.has_secret_key else "the seed, as a simulation"
        numbers = f"epsilon {epsilon:.3g} and delta {section.get('delta', 0):g}, by noise from {source}"
        sentence = f"what the server sent is private for {hidden} counted as 0, with {numbers}"
        if epsilon > LARGE_EPSILON:
            sentence = word(f"what the server sent hides nobody: the privacy for {hidden} counted as 0 is {numbers}; "
                            f"{self.advice_on_noise}")  # fmt: skip
        return f"{sentence}; not private are {', '.join(NOT_PRIVATE)}", {"privacy": section}


def check_end_of_run(plugins: Mapping[str, Any], names: Mapping[str, str], settings: Settings) -> None:
    """Refuse runs whose model has numbers that follow from rows beside the messages. Raises UserError."""
    privacy, objective = f"`privacy={names['privacy']}`", plugins["objective"]
    if settings.strength_study or settings.relax is not None or settings.imputations:
        raise UserError(f"{privacy} counts what the rounds of one run cost, and `study.strength`, `relax` and "
                        "`imputations` read the rows once more: leave them out")  # fmt: skip
    if objective.client_intercepts:
        raise UserError(f"{privacy} hides what rounds send, and `objective.client_intercepts=true` fits an intercept "
                        "to the rows of each client at the end, without noise: give "
                        "`objective.client_intercepts=false`")  # fmt: skip
    if "survival" in objective.tasks:
        raise UserError(f"{privacy} hides what rounds send, and the baseline hazards of "
                        f"`objective={names['objective']}` are of the rows at the end, without noise: leave privacy "
                        "out, or choose another `objective` and target")  # fmt: skip


def check_losses_of_rows(plugins: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Refuse losses that no single row has, given the plug-ins by section and their names. Raises UserError."""
    if plugins["objective"].has_client_losses:
        raise UserError("`privacy.unit=row` clips the gradient of each row's own loss, and the losses of "
                        f"`objective={names['objective']}` are of all rows of a client together: give "
                        "`privacy.unit=client`, or choose another `objective`")  # fmt: skip


def check_gradient_steps(plugins: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Refuse clients that read their rows elsewhere than in gradients with noise. Raises UserError."""
    if not plugins["algo"].traits.gradient_steps:
        raise UserError("`privacy.unit=row` adds noise to one gradient in each local step, and clients of "
                        f"`algo={names['algo']}` with these options read their rows otherwise: choose another, "
                        "`fcorun list algo` shows which go with privacy of rows, or give "
                        "`privacy.unit=client`")  # fmt: skip


def check_row_messages(plugins: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Refuse messages that the clipped gradients of rows do not bound, as a trusted server needs. Raises UserError."""
    algo, at_clients = plugins["algo"], "`privacy=gaussian privacy.noise_by=clients`"
    gradient_uploads = algo.traits.gradient_uploads
    cure = f"give {at_clients}" if algo.traits.gradient_steps else "choose another `algo`"
    if not gradient_uploads:
        raise UserError("`privacy.unit=row` at a trusted server is worked out for messages that are a gradient times a "
                        f"rate, and not for those of `algo={names['algo']}`: {cure}, or "
                        "`privacy.unit=client`; `fcorun list algo` shows which go with privacy of rows")  # fmt: skip
    if gradient_uploads == "primal" and not isinstance(plugins["mirror"], Euclidean):
        raise UserError(f"`privacy.unit=row` with `algo={names['algo']}` at a trusted server needs messages that are a "
                        f"gradient times a rate, and those of `mirror={names['mirror']}` are not: leave mirror out, or "
                        f"give {at_clients}")  # fmt: skip
    faults = plugins["faults"]
    if faults.has_liars and not faults.changes_targets:
        raise UserError(f"`faults={names['faults']}` changes messages after the gradients of rows are clipped, which a "
                        "trusted server with `privacy.unit=row` counts on: leave faults out, or give "
                        f"{at_clients}")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class NoPrivacy(Privacy):
    """No privacy: messages arrive as they are sent."""

    source = "textbook"

    @property
    def acts(self):
        return False

    def clip_message(self, message):
        return message

    def draw_noise(self, message, key, number):
        return jax.tree.map(jnp.zeros_like, message)

    def find_epsilon(self, rounds, clients_per_round, times=1):
        return math.inf if rounds else 0.0


def find_norm(message: PyTree) -> jax.Array:
    """Return the norm of all arrays of a message together."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(message)))


@dataclass(frozen=True, kw_only=True)
class ClippedPrivacy(Privacy):
    """Clipped messages, or gradients of rows, and normal noise in proportion to the clip.

    Attributes:
        clip: the norm to which the message of a client is clipped, or the gradient of a row, all its arrays together.
        unit: client, to hide that a client takes part; row, to hide that a row does.
        noise: the deviation of the noise over the clip; null: that of ``epsilon``, or 1 without it.
        epsilon: what all rounds may cost, above 0, from which the noise is found; null: the noise is given, and
            epsilon follows.
        delta: at most 1 / M, for rows 1 / N.
        key: seed: the noise follows from the seed of the run, for simulations, since who knows the seed can take the
            noise away; secret: from a key of the operating system, which is in the checkpoint until the run ends.
    """

    clip: Positive = 1.0
    unit: Annotated[Literal["client", "row"], "default outside identity"] = "client"
    noise: Positive | None = None
    epsilon: float | None = None
    delta: Level = 1e-5
    key: Literal["seed", "secret"] = "seed"

    choices = ("clip",)

    @abstractmethod
    def count_rounds(self, rounds: int, clients_per_round: Cohort | None, times: int) -> tuple[int, float]:
        """Return as how many rounds of Gaussian noise all rounds count, and the sensitivity of each, over the clip."""

    def find_epsilon(self, rounds, clients_per_round, times=1):
        assert self.noise is not None
        count, sensitivity = self.count_rounds(rounds, clients_per_round, times)
        participation = self.amplifying_participation(clients_per_round)
        return count_epsilon(self.noise / sensitivity, self.delta, count, participation)

    def find_noise(self, epsilon: float, rounds: int, clients_per_round: Cohort | None, times: int = 1) -> float:
        """Return the least noise of which so many rounds cost at most ``epsilon``, as of ``find_epsilon``."""
        count, sensitivity = self.count_rounds(rounds, clients_per_round, times)
        participation = self.amplifying_participation(clients_per_round)
        return round_up(sensitivity * find_noise(epsilon, self.delta, count, participation))

    @property
    def hides_rows(self):
        return self.unit == "row"

    @property
    def has_secret_key(self):
        return self.key == "secret"

    def check(self, plugins, names, settings):
        super().check(plugins, names, settings)
        if self.epsilon is not None and self.epsilon <= 0:
            raise UserError(f"`privacy.epsilon={self.epsilon:g}` asks that nothing sent depends on the rows, for which "
                            "no noise is enough: give more, such as `privacy.epsilon=2`")  # fmt: skip
        if self.noise is not None and self.epsilon is not None:
            raise UserError("`privacy.epsilon` and `privacy.noise` follow from each other: give one of them")
        load_accountant()

    def check_clients(self, n_clients, n_rows, participation, names, n_at_edge=None):
        super().check_clients(n_clients, n_rows, participation, names, n_at_edge=n_at_edge)
        count = n_rows if self.hides_rows else n_clients
        if self.delta > 1 / count:
            raise UserError(f"`privacy.delta={self.delta:g}` allows that the data of one of {count} {self.unit}s are "
                            f"told to everybody: give at most {1 / count:.2g}")  # fmt: skip

    def resolve(self, settings, times=1):
        if self.noise is not None:
            return self
        if self.epsilon is None:
            return replace(self, noise=1.0)
        rounds = max(settings.rounds, 1)
        return replace(self, noise=self.find_noise(self.epsilon, rounds, settings.clients_per_round, times))

    def clip_message(self, message):
        factor = self.clip / jnp.maximum(find_norm(message), self.clip)
        return jax.tree.map(lambda leaf: factor * leaf, message)

    def clip_rows(self, problem):
        if not self.hides_rows:
            return problem
        return RowClippedProblem(
            **{field.name: getattr(problem, field.name) for field in fields(Problem)},
            clip=self.clip,
            draw_noise=self.draw_normal if self.noises_steps else None,
        )

    def draw_normal(self, message: PyTree, key: KeyBits) -> PyTree:
        """Return independent normal noise of the deviation ``noise`` * ``clip`` for a message of these shapes."""

        def draw(leaf: jax.Array, own_key: jax.Array) -> jax.Array:
            # the same in either precision; the mean of four has longer tails and a finer grid than one draw, as the
            # attack by rounded noise of Holohan and Braghin (2021, arXiv 2107.10138) asks for
            assert self.noise is not None
            drawn = jax.random.normal(own_key, (4, *leaf.shape), jnp.float32).sum(axis=0) / 2
            return self.noise * self.clip * drawn.astype(leaf.dtype)

        return jax.tree.map(draw, message, self.split_key(key, message))

    @property
    def advice_on_noise(self):
        return "give `privacy.epsilon=2`, say, or a larger `privacy.noise`"

    def sum_noise(self, count: int) -> float:
        """Return the deviation of the noise in the sum of so many messages or rounds, over that of one draw."""
        return math.sqrt(count)

    def warn_of_noise(self, shares, n_parameters, count):
        assert self.noise is not None
        ratio = self.noise * np.linalg.norm(shares) * math.sqrt(n_parameters) * self.sum_noise(count) / count
        if ratio <= LARGEST_NOISE:
            return ""
        cures = [f"more {self.unit}s", "fewer parameters"]
        if len(shares) > 1 and not self.at_clients:
            cures.append("fewer edges")
        cures.append("a smaller `privacy.noise`" if self.epsilon is None else "a larger `privacy.epsilon`")
        if self.at_clients:
            cures.append("`privacy.noise_by=server`")
        given = f"noise={self.noise:g}" if self.epsilon is None else f"epsilon={self.epsilon:g}"
        return word(f"with `privacy.{given}` the noise of all rounds adds up to {ratio:.2g} times the longest sum that "
                    "clipped messages can have, which drowns what they say: take "
                    f"{', '.join(cures[:-1])} or {cures[-1]}")  # fmt: skip
