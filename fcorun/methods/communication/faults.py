"""Clients that fail: the contract of faults, dropouts, and the clients that lie, of ``faults_lies``."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.cohorts import read_participation
from fcorun.base.config import Fraction, Index, PathOption, PluginBase, Settings
from fcorun.base.errors import UserError, suggest_name
from fcorun.data.tables.readers import digest_option_file, read_option_file
from fcorun.data.tasks import Task
from fcorun.methods.algorithms.algorithm import Algorithm, PyTree
from fcorun.methods.clocks.clock import NoClock
from fcorun.methods.communication.contracts import Identity, Star
from fcorun.methods.communication.tree import Tree


class FaultDraws(NamedTuple):
    """The draws of faults of the clients of rounds, (T, S).

    Attributes:
        dropout_level: a client drops out where ``Faults.dropout_threshold`` is above its level, float32; None: nobody.
        liar_rank: the client's place in the order in which clients become liars, 0, 1, ...; None: nobody lies.
        takes_part: whether the client takes part in the round, where each does by a probability; None: all do.
    """

    dropout_level: Any = None
    liar_rank: Any = None
    takes_part: Any = None


class CohortFaults(NamedTuple):
    """The faults of the clients of a round, (S,), or of one of them, ().

    Attributes:
        present: whether the client takes part and does not drop out; None: all do.
        lies: whether the client lies; None: nobody does.
    """

    present: Any = None
    lies: Any = None


@dataclass(frozen=True, kw_only=True)
class Faults(PluginBase, ABC):
    """A plug-in of faults: which clients drop out of rounds, which lie, and how. The options are the keys of its YAML.

    Dropouts are drawn from (seed, round, client), and liars from (seed, client), in streams of their own: neither the
    algorithm nor the faults change each other's draws, and clients that lie with a share also lie with a larger one.

    Attributes:
        source: the publication, in the notation of fcorun.base.sources.catalogue; not inherited.
        what_liars_did: the verb, and its object if any, of a sentence about the clients that lied.
    """

    source: ClassVar[str]
    what_liars_did: ClassVar[str] = "lied"

    @property
    @abstractmethod
    def acts(self) -> bool:
        """True unless all clients are as without faults."""

    @property
    def drops_out(self) -> bool:
        """True if clients may drop out of rounds, with whatever number of a grid."""
        return False

    @property
    def dropout_threshold(self) -> Any:
        """The number, perhaps a traced one, above whose ``dropout_levels`` a client stays in the round."""
        return 0.0

    @property
    def drops_before(self) -> bool:
        """True if a client that drops out receives and computes nothing; else it does, and its upload is lost."""
        return False

    @property
    def has_liars(self) -> bool:
        """True if some clients may lie in what they send, or learn from wrong targets."""
        return False

    @property
    def changes_targets(self) -> bool:
        """True if liars learn from other targets than those of the data."""
        return type(self).change_targets is not Faults.change_targets

    def check(self, plugins: Mapping[str, Any], names: Mapping[str, str], settings: Settings) -> None:
        """Refuse what has no meaning with these faults, given the plug-ins by section and their names.

        Raises UserError.
        """
        return

    def check_task(self, task: Task, names: Mapping[str, str]) -> None:
        """Refuse data of a task that has no meaning with these faults, given the plug-ins' names. Raises UserError."""
        return

    def dropout_levels(self, uniforms: np.ndarray, clients: np.ndarray, unreliability: np.ndarray) -> np.ndarray:
        """Return the level of each client of T rounds, of which it drops out if the threshold is above, (T, S).

        Args:
            uniforms: a number between 0 and 1 for each of them, (T, S).
            clients: their numbers, (T, S).
            unreliability: the place of each of M clients in the order in which clients become unreliable, (M,).
        """
        return uniforms

    def find_absences(self, clients: Sequence[str], rounds: int) -> np.ndarray | None:
        """Return the numbers of rounds, from 0, and of clients that drop out of them, (N, 2); None: they are drawn.

        Raises UserError for faults that do not fit the rounds and M ``clients``, given by name.
        """
        return None

    def liar_ranks(self, drawn: np.ndarray) -> np.ndarray:
        """Return the order in which clients become liars, (M,), given an order that is drawn, (M,)."""
        return drawn

    def count_liars(self, n_clients: int) -> int:
        """Return the number of clients that lie: those of the least ranks."""
        return 0

    def find_in_cohort(self, draws: FaultDraws) -> CohortFaults:
        """Return the faults of a cohort in a round, given their draws (S,). The function is traced."""
        if draws.dropout_level is None:
            return CohortFaults(draws.takes_part)
        return CohortFaults(draws.dropout_level >= jnp.asarray(self.dropout_threshold, jnp.float32))

    def client_memory(self, uploads: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
        """Return the initial memory of a liar for each exchange of a round, given the shapes of uploads."""
        return ()

    def change_targets(self, targets: jax.Array, n_classes: int) -> jax.Array:
        """Return the targets (n,) that a liar learns from in place of ``targets``. The function is traced.

        ``n_classes`` is the number of classes of the data, 0 without classes.
        """
        return targets

    def change_targets_if(self, fault: CohortFaults | None, n_classes: int) -> Callable[[jax.Array], jax.Array] | None:
        """Return the function that changes the targets (n,) of a client if it lies; None: all learn from theirs."""
        if fault is None or fault.lies is None or not self.changes_targets:
            return None
        return lambda targets: jnp.where(fault.lies, self.change_targets(targets, n_classes), targets)

    def lie(self, upload: PyTree, memory: PyTree, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Return what a liar sends in place of its upload, and its new memory, before the uplink.

        The function is traced, and computed for each client. ``key`` depends on the seed, the round and the client.
        """
        return upload, memory


@dataclass(frozen=True, kw_only=True)
class NoFaults(Faults):
    """No faults: all clients of a cohort answer, and say what they have computed."""

    source = "textbook"

    @property
    def acts(self):
        return False


@dataclass(frozen=True, kw_only=True)
class Dropout(Faults):
    """Clients that drop out of rounds, whose state stays, and whose weight in the mean goes to the others.

    A round that all clients drop out of leaves the server as it was.

    Attributes:
        dropout: the probability that a client drops out of a round, or a list with the probability of each client;
            null: 0 beside a trace and for clients that lie, else 0.1.
        unreliable: the share of the clients that may drop out, drawn once; the others never do.
        when: before: a client that drops out receives, computes and sends nothing; within: it has received the
            broadcast and computed, and its upload is lost.
        trace: a CSV file with the columns round, from 1, and client, a row for each dropout, in place of
            probabilities.
    """

    source = "textbook"
    usual_dropout: ClassVar[float] = 0.1

    dropout: float | list[float] | None = None
    unreliable: Annotated[Fraction, "fixed in a program"] = 1.0
    when: Literal["before", "within"] = "before"
    trace: PathOption | None = None

    @property
    def acts(self):
        return True

    @property
    def rate(self) -> float | list[float]:
        """The probability that a client drops out of a round, or the probability of each client."""
        if self.dropout is None:
            return self.usual_dropout if self.trace is None else 0.0
        return self.dropout

    @property
    def drops_out(self):
        return self.dropout is not None or self.trace is not None or self.usual_dropout > 0

    @property
    def dropout_threshold(self):
        return 0.5 if self.trace is not None or isinstance(self.dropout, list) else self.rate

    @property
    def drops_before(self):
        return self.when == "before"

    def check(self, plugins, names, settings):
        algo, topology, section = plugins["algo"], plugins["topology"], f"`faults={names['faults']}`"
        if settings.frozen:
            raise UserError(f"`frozen=true` sends nothing: leave {section} out")
        if not isinstance(topology, (Star, Tree)):
            raise UserError(f"{section} is about clients that send to a server in rounds, which `topology="
                            f"{names['topology']}` has not: leave one of them out")  # fmt: skip
        self._check_dropout()
        if self.trace is None and not np.any(self.rate):
            return
        if not algo.traits.partial:
            raise UserError(f"`algo={names['algo']}` needs all clients in every round, so that none may drop out: "
                            "leave `faults.dropout` and `faults.trace` out, or choose another `algo`")  # fmt: skip
        if read_participation(settings.clients_per_round) is not None:
            raise UserError(f"`clients_per_round={settings.clients_per_round}` lets clients take part by a probability "
                            "already: lower it, and leave `faults.dropout` and `faults.trace` out")  # fmt: skip
        if type(algo).count_local_clients is not Algorithm.count_local_clients:
            raise UserError(f"`algo={names['algo']}` chooses clients of a cohort that answer once more, who may have "
                            "dropped out: leave `faults.dropout` and `faults.trace` out")  # fmt: skip
        if not isinstance(plugins["clock"], NoClock):
            raise UserError(f"`clock={names['clock']}` lets the server wait for each upload, and some never come: "
                            "leave clock out, or `faults.dropout` and `faults.trace`")  # fmt: skip
        hears_all = isinstance(topology, Star) and not self.drops_before
        if not (hears_all or isinstance(plugins["downlink"], Identity)):
            raise UserError(f"`downlink={names['downlink']}` needs all clients in every round, and a client that drops "
                            "out may miss a broadcast: give `faults.when=within` with `topology=star`, or leave "
                            "downlink out")  # fmt: skip

    def _check_dropout(self) -> None:
        """Refuse probabilities outside of 0 and 1, or beside a trace. Raises UserError."""
        for rate in np.atleast_1d(self.rate):
            if not 0 <= rate <= 1:
                raise UserError(f"`faults.dropout={rate:g}` is no probability: give a number between 0 and 1")
        if self.trace is not None and np.any(self.rate):
            raise UserError("`faults.trace` says who drops out of which round: leave `faults.dropout` out")
        if isinstance(self.dropout, list) and self.unreliable < 1:
            raise UserError("`faults.dropout` has the probability of each client: leave `faults.unreliable` out")

    def find_absences(self, clients, rounds):
        if isinstance(self.dropout, list) and len(self.dropout) != len(clients):
            raise UserError(f"`faults.dropout` has {len(self.dropout)} probabilities, and the data have {len(clients)} "
                            "clients: give one for each")  # fmt: skip
        n_reliable = len(clients) - self._count_unreliable(len(clients))
        if np.min(self.rate) == 1 and not n_reliable:
            raise UserError("`faults.dropout` lets all clients drop out of every round, and the server learns nothing: "
                            "give a probability below 1")  # fmt: skip
        if self.trace is None:
            return None
        absences = self._read_trace(self.trace, clients)
        last = int(absences[:, 0].max(initial=-1)) + 1
        if last > rounds:
            raise UserError(f"`faults.trace={self.trace}` has the round {last}, and the run has {rounds}: leave its "
                            "later rows out, or raise rounds")  # fmt: skip
        if len(absences) == rounds * len(clients) > 0:
            raise UserError(f"`faults.trace={self.trace}` lets all clients drop out of every round, and the server "
                            "learns nothing: leave rows out")  # fmt: skip
        return absences

    def _count_unreliable(self, n_clients: int) -> int:
        """Return the number of clients that may drop out."""
        return round(self.unreliable * n_clients)

    def dropout_levels(self, uniforms, clients, unreliability):
        if isinstance(self.dropout, list):
            return np.where(uniforms < np.array(self.dropout)[clients], 0.0, 1.0)
        is_unreliable = unreliability[clients] < self._count_unreliable(len(unreliability))
        return np.where(is_unreliable, np.minimum(uniforms, 1 - 2.0**-24), 1.0)  # below 1 in float32, too

    def _read_trace(self, path: str, clients: Sequence[str]) -> np.ndarray:
        """Return the numbers of rounds and of clients in the rows of the trace, (N, 2)."""
        number_of = {str(name): number for number, name in enumerate(clients)}
        content = "the columns round and client, and a row for each dropout"
        absences: dict[tuple[int, int], None] = {}
        for row in read_option_file(path, "faults.trace", ("round", "client"), content):
            number, client = row["round"], row["client"]
            if not (number.isdecimal() and int(number) > 0):
                raise UserError(f"`faults.trace={self.trace}` has the round '{number}': count the rounds from 1")
            if client not in number_of:
                raise UserError(f"`faults.trace={self.trace}` has the client '{client}', which the data have not: "
                                f"{suggest_name(client, number_of)}")  # fmt: skip
            absence = int(number) - 1, number_of[client]
            if absence in absences:
                raise UserError(f"`faults.trace={self.trace}` has client {client} in round {number} more than once: "
                                f"give {content}")  # fmt: skip
            absences[absence] = None
        return np.array(list(absences), np.int64).reshape(-1, 2)

    def sources(self):
        return None if self.trace is None else digest_option_file(self.trace, "faults.trace")


@dataclass(frozen=True, kw_only=True)
class Liars(Dropout):
    """Clients that compute honestly and send something else; a subclass says what. They may drop out, too.

    A lie replaces the upload before the uplink: a liar sends messages of the usual form and bytes, and its memory of
    the uplink is that of what it sent, as is the server's. A subclass may change the targets of liars instead.

    Attributes:
        liars: the clients that lie: a share of all clients, rounded down, if below 1, else their number, drawn once; or
            a list of clients, by their numbers from 0.
    """

    source = "textbook"
    usual_dropout = 0.0

    liars: float | list[Index] = 0.2

    @property
    def has_liars(self):
        return True

    def check(self, plugins, names, settings):
        super().check(plugins, names, settings)
        liars = self.liars
        if not isinstance(liars, list) and (liars < 0 or (liars > 1 and liars != round(liars))):
            raise UserError(f"`faults.liars={liars:g}` is no share of the clients and no number of them: give a "
                            "number below 1, a whole number, or a list of clients")  # fmt: skip
        if not plugins["algo"].trains_shared_model:
            raise UserError(f"`algo={names['algo']}` trains no model for all clients that lies would change: leave "
                            f"`faults={names['faults']}` out")  # fmt: skip

    def find_absences(self, clients, rounds):
        most = len(clients)
        if isinstance(self.liars, list):
            unknown = next((number for number in self.liars if number >= most), None)
            if unknown is not None:
                raise UserError(f"`faults.liars` has client {unknown}, and the data have the clients 0 to {most - 1}")
        elif self.liars > most:
            raise UserError(f"`faults.liars={self.liars:g}` is more than the {most} clients: give at most {most}")
        return super().find_absences(clients, rounds)

    def liar_ranks(self, drawn):
        if not isinstance(self.liars, list):
            return drawn
        ranks = np.full(len(drawn), len(drawn))
        ranks[self.liars] = 0
        return ranks

    def count_liars(self, n_clients):
        if isinstance(self.liars, list):
            return len(set(self.liars))
        if self.liars >= 1:
            return int(self.liars)
        return int(self.liars * n_clients + 1e-9)  # rounded down, as is what a rule bears

    def find_in_cohort(self, draws):
        # in a program, ``liars`` is the number of them, of ``count_liars``
        return super().find_in_cohort(draws)._replace(lies=draws.liar_rank < self.liars)

    def client_memory(self, uploads):
        return tuple(jax.tree.map(self.initial_memory, upload) for upload in uploads)

    def lie(self, upload, memory, key):
        arrays, structure = jax.tree.flatten(upload)
        memories = structure.flatten_up_to(memory)
        for i, own_key in enumerate(jax.random.split(key, max(len(arrays), 1))):
            if i < len(arrays) and jnp.issubdtype(arrays[i].dtype, jnp.floating):  # counts of rows stay
                arrays[i], memories[i] = self.corrupt(arrays[i], memories[i], own_key)
        return structure.unflatten(arrays), structure.unflatten(memories)

    def initial_memory(self, array: jax.Array) -> PyTree:
        """Return a liar's initial memory of an array of its upload, given the array's shape; None: no memory."""
        return None

    @abstractmethod
    def corrupt(self, array: jax.Array, memory: PyTree, key: jax.Array) -> tuple[jax.Array, PyTree]:
        """Return what a liar sends for an array of its upload, and its new memory. The function is traced."""
