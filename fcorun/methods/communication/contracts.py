"""Base classes of topologies and channels, and what a topology gets, puts together and returns in a round.

A channel is what happens to a message on its way; ``Identity`` changes nothing. ``Channels`` are those of a run, of
uploads and of broadcasts. ``Star`` is the plain topology, a server and its clients.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.config import PluginBase, Settings
from fcorun.base.errors import UserError
from fcorun.base.metrics import Metric
from fcorun.methods.algorithms.algorithm import Algorithm, PyTree, Traits

Links = Any  # who sends to whom, as ``Topology.connect`` returns it: an array, or a ``GraphLinks``

# Draws, states and bytes of a round, as a topology gets and returns them.


class RoundDraws(NamedTuple):
    """The random draws of a round. With ``edge_rounds`` each has one more leading axis, the rounds of an edge.

    Attributes:
        rows: the rows of each client's batches, (S, K, B).
        keys: the bits of a random key for each client, (S, 2).
        shared_uniforms: two uniform numbers for all clients, (2,).
        server_key: the bits of a random key for the server, (2,), or None where nothing reads the key.
        links: the part of the links that ``Topology.draw_links`` draws for this round, or None.
        number: the number of the round, from 0, by which noise is drawn; None without noise.
    """

    rows: jax.Array
    keys: jax.Array
    shared_uniforms: jax.Array
    server_key: jax.Array | None = None
    links: PyTree = None
    number: Any = None


class RoundState(NamedTuple):
    """The states before or after a round.

    Attributes:
        server: the state of the topology: by default the server's state.
        memory: the memory of the uplink at the receivers of uploads, of the downlink at the server, and of the uplink
            at edges if they send by it, in this order.
        clients: the state of each client of the cohort, and the memory of the channel there, with a leading axis S.
    """

    server: PyTree
    memory: PyTree
    clients: PyTree


class RoundOutcome(NamedTuple):
    """The result of a round.

    Attributes:
        client_work: the work of each client, (S, 3).
        server_work: the work of the server and of edges, (3,).
    """

    state: RoundState
    client_work: jax.Array
    server_work: jax.Array


class MessageBytes(NamedTuple):
    """The bytes of messages.

    Attributes:
        uploads: of a client's upload in each exchange of a round.
        broadcasts: of what a client receives in each exchange of a round.
        edge_upload: of an edge's upload.
        edge_broadcast: of what an edge receives from the root.
        idle_clients: the number of clients of a cohort that do not communicate in the last exchange.
    """

    uploads: tuple[int, ...]
    broadcasts: tuple[int, ...]
    edge_upload: int = 0
    edge_broadcast: int = 0
    idle_clients: int = 0

    def bytes_up(self, cohort_size: int) -> int:
        """Return the bytes that a cohort sends in a round."""
        return cohort_size * sum(self.uploads) - self.idle_clients * self.uploads[-1]

    def bytes_down(self, cohort_size: int) -> int:
        """Return the bytes that a cohort receives in a round."""
        return cohort_size * sum(self.broadcasts) - self.idle_clients * self.broadcasts[-1]


# Base classes of topologies and channels, and the parts of a round that a topology puts together.


class Exchange(Protocol):
    """An exchange of messages: each client answers the broadcast that it receives, and means of the answers arrive.

    A client's message passes the uplink's ``send``, and a mean passes the uplink's ``receive``. The engine's
    ``RoundExchange`` implements it.
    """

    def send_broadcast(self, sender: PyTree, memory: PyTree, draws: RoundDraws) -> tuple[PyTree, PyTree]:
        """Return what all clients receive from a sender of this state through the downlink, and the memory."""
        ...

    def send_broadcasts(
        self, senders: PyTree, memory: PyTree, draws: RoundDraws, present: jax.Array
    ) -> tuple[PyTree, PyTree]:
        """Return what the clients of each of E senders of these states receive through the downlink, and the memory.

        All are stacked along a leading axis E. A sender that is not ``present`` (E,) sends nothing, and keeps its
        memory.
        """
        ...

    def answer(
        self, broadcast: PyTree, clients: PyTree, draws: RoundDraws, shares: Any, sender_of: jax.Array | None = None
    ) -> tuple[PyTree, PyTree, jax.Array]:
        """Return what ``compute_clients`` returns, for clients that have received this broadcast.

        With ``sender_of`` (S,), each client has received one of several broadcasts, stacked along a leading axis.
        """
        ...

    def compute_clients(
        self, sender: PyTree, clients: PyTree, draws: RoundDraws, shares: Any, sender_of: jax.Array | None = None
    ) -> tuple[PyTree, PyTree, jax.Array]:
        """Return the mean of the clients' uploads, the clients' new states and the clients' work, (S, 3).

        Args:
            sender: the state whose broadcast all clients receive, or with ``sender_of`` (S,) states stacked along a
                leading axis, of which each client receives one's.
            shares: (S,), the weights of one mean; or (E, S), the weights of E means, stacked along a leading axis; None
                for the uploads themselves instead of a mean, stacked along the cohort, which stay at their clients.
                With None each client has a sender of its own, whose states are stacked along the cohort.
        """
        ...

    def update(
        self, state: PyTree, mean: PyTree, memory: PyTree, draws: RoundDraws
    ) -> tuple[PyTree, PyTree, jax.Array]:
        """Return the server's state after a mean by ``Algorithm.server``, the memory and the server's work, (3,)."""
        ...

    def update_each(
        self, states: PyTree, means: PyTree, memory: PyTree, draws: RoundDraws, present: jax.Array
    ) -> tuple[PyTree, PyTree, jax.Array]:
        """Return the states of E receivers after their means by ``Algorithm.edge``, the memory and all their work.

        All are stacked along a leading axis E. A receiver that is not ``present`` (E,) keeps its memory, and its work
        does not count.
        """
        ...


class CohortRound(Protocol):
    """The parts of a round, which ``Topology.run_round`` puts together; the engine's ``Round`` implements it.

    Attributes:
        exchanges: the exchanges of messages in their order, one unless the algorithm has two.
        clients: the numbers of the cohort's clients, (S,).
        weights: their weights in F, up to a factor, (S,).
        total_weight: the weight by which the sum of weighted uploads is divided.
        share: the part of these weights in the weights of all clients.
        n_clients: the number of all clients, M.
        links: the links of ``Topology.connect`` on the device; None without links.
    """

    @property
    def algorithm(self) -> Algorithm: ...
    @property
    def exchanges(self) -> Sequence[Exchange]: ...
    @property
    def clients(self) -> jax.Array: ...
    @property
    def weights(self) -> jax.Array: ...
    @property
    def total_weight(self) -> jax.Array: ...
    @property
    def share(self) -> jax.Array: ...
    @property
    def n_clients(self) -> int: ...
    @property
    def draws(self) -> RoundDraws: ...
    @property
    def links(self) -> Links: ...

    def update_root(self, server: PyTree, mean: PyTree) -> tuple[PyTree, jax.Array]:
        """Return the root's state after the mean of the edges' uploads by ``Algorithm.root``, and the work, (3,)."""
        ...

    def contraction(self, messages: PyTree) -> jax.Array | float:
        """Return ``Channel.contraction`` of the uplink for the message of each of a graph's clients."""
        ...

    def send_messages(self, messages: PyTree, clients: PyTree) -> tuple[PyTree, PyTree]:
        """Return what neighbours receive of the messages of a graph's clients through the uplink, and their states.

        Messages and states are stacked along the cohort, which is all clients in order.
        """
        ...

    def update_nodes(self, nodes: PyTree, means: PyTree) -> tuple[PyTree, jax.Array]:
        """Return the states of a graph's clients after their means by ``Algorithm.root``, and all their work, (3,).

        Both are stacked along the cohort, which is all clients in order.
        """
        ...


@dataclass(frozen=True)
class Topology(PluginBase, ABC):
    """A topology plug-in: who receives whose messages, for any algorithm. The options are the keys of its YAML.

    Attributes:
        source: the publication, in the notation of fcorun.base.sources.catalogue; not inherited.
        bytes_depend_on_cohort: False if all cohorts of one size send equally many bytes.
        has_downlink: True if broadcasts pass the downlink.
        gathers_uploads: True if receivers have the uploads of several clients at once, by ``Exchange.answer``, so that
            rules of ``aggregate`` other than the mean can combine them.
        file_field: the field that may name a file, of which ``sources`` returns a digest.
        names_beside_file: the values of this field that name no file.
        declared_metrics: declarations of the metrics of its nodes, in the order of ``fcorun.engine.evaluate``.
    """

    source: ClassVar[str]
    bytes_depend_on_cohort: ClassVar[bool] = True
    has_downlink: ClassVar[bool] = False
    gathers_uploads: ClassVar[bool] = False
    file_field: ClassVar[str] = ""
    names_beside_file: ClassVar[tuple[str, ...]] = ()
    declared_metrics: ClassVar[tuple[Metric, ...]] = ()

    @property
    def edge_rounds(self) -> int | None:
        """The rounds of an edge with its clients in each round of the server; None without edges.

        A client draws minibatches and a key for each of them.
        """
        return None

    @property
    def waits_for_cohort(self) -> bool:
        """False if a round is the arrival of one client's upload, in the order of the clock."""
        return True

    @property
    def connects_clients(self) -> bool:
        """True if the topology links each client by its name, so that no client may be missing."""
        return type(self).connect is not Topology.connect

    def check(self, plugins: Mapping[str, Any], names: Mapping[str, str], settings: Settings) -> None:
        """Refuse what the topology does not support, given the plug-ins by section and their names.

        Raises UserError.
        """
        if plugins["algo"].traits.hierarchy == "only":
            raise UserError(f"`algo={names['algo']}` works with edges: give `topology=tree`")
        if plugins["algo"].traits.hierarchy == "graph":
            raise UserError(f"`algo={names['algo']}` works without a server: give `topology=graph`")

    def connect(self, clients: Sequence[str], weights: np.ndarray) -> Links:
        """Return the links of M ``clients``, given by name, as an array or a tuple of arrays; None without links.

        ``weights`` (M,) are the clients' weights in F, up to a factor. Raises UserError for links that do not fit the
        clients.
        """
        return None

    @property
    def redraws_links(self) -> bool:
        """True if links differ from round to round."""
        return False

    def draw_links(self, links: Links, seed: int, numbers: np.ndarray) -> PyTree:
        """Return the parts of the links that differ in the rounds ``numbers`` (T,), stacked along a leading axis T.

        None: all rounds have the same links. The parts depend on the seed of the run and the round alone.
        """
        return None

    def links_of_round(self, links: Links, drawn: PyTree) -> Links:
        """Return the links of a round, whose part of ``draw_links`` is ``drawn``."""
        return links

    def count_receivers(self, links: Links) -> int | None:
        """Return E, the number of receivers of clients' uploads; None: the server alone.

        Each receiver has a memory of the channel; memories are stacked along a leading axis E.
        """
        return None

    def count_listeners(self, links: Links) -> np.ndarray | None:
        """Return the number of clients of each receiver, (E,), where each sends its clients broadcasts of its own.

        None: one server sends broadcasts, to the clients of the cohort.
        """
        return None

    def find_receivers(self, links: Links, n_clients: int) -> np.ndarray:
        """Return the number of the receiver of each client's uploads, (M,): 0 by default, the server."""
        return np.zeros(n_clients, int)

    def traits_of_messages(self, traits: Traits) -> Traits:
        """Return the traits of an algorithm with the meaning of what passes the uplink: by default its uploads."""
        return traits

    def describe(self, links: Links) -> dict[str, float]:
        """Return numbers on the links for the summary of a record."""
        return {}

    def smallest_eigenvalue(self, links: Links) -> float:
        """Return the smallest eigenvalue of the matrix by which nodes mix messages; 0 for a mean over all clients."""
        return 0.0

    def initial_state(self, server: PyTree, links: Links, uploads: tuple[PyTree, ...]) -> PyTree:
        """Return the topology's state before the first round, from the server's and the shapes of uploads."""
        return server

    def client_memory(self, server: PyTree) -> tuple[PyTree, ...]:
        """Return the topology's initial memory at each client, the last parts of its state; () means no memory."""
        return ()

    def server_state(self, state: PyTree, links: Links) -> PyTree:
        """Return the server's state whose model is evaluated, from the topology's state."""
        return state

    def node_states(self, state: PyTree) -> PyTree | None:
        """Return the states of M nodes whose models are measured, too, stacked; None without such nodes."""
        return None

    @property
    def has_nodes(self) -> bool:
        """True if clients are nodes that keep a state each, without a server."""
        return type(self).node_states is not Topology.node_states

    @abstractmethod
    def run_round(self, parts: CohortRound, state: RoundState) -> RoundOutcome:
        """Compute a round of the cohort. The function is pure, and traced."""

    def round_bytes(self, cohort: np.ndarray, links: Links, sizes: MessageBytes) -> dict[str, int]:
        """Return the bytes sent in a round of a ``cohort`` (S,) by column of metrics.csv: bytes_up, bytes_down, ...

        By default each client of the cohort receives a broadcast of the server and sends an upload.
        """
        return {"bytes_up": sizes.bytes_up(len(cohort)), "bytes_down": sizes.bytes_down(len(cohort))}


def refuse_integers(state: PyTree, topology: str) -> None:
    """Raise UserError for an array of integers in a state of which ``topology`` computes a weighted mean.

    JAX would round the weights of the mean to integers, that is, to 0.
    """
    for path, leaf in jax.tree.leaves_with_path(state):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise UserError(f"`topology={topology}` computes means of the algorithm's state, whose entry "
                            f"{jax.tree_util.keystr(path)} is {leaf.dtype}: let init() start it as a real number, "
                            "such as 0.0")  # fmt: skip


@dataclass(frozen=True)
class Star(Topology):
    """A topology whose clients all communicate with the server."""

    source = "textbook"
    bytes_depend_on_cohort = False
    has_downlink = True
    gathers_uploads = True

    def run_round(self, parts, state):
        server, memory, clients = state
        shares = parts.weights / parts.total_weight
        client_work, server_work = [], []
        for exchange in parts.exchanges:
            broadcast, memory = exchange.send_broadcast(server, memory, parts.draws)
            mean, clients, work = exchange.answer(broadcast, clients, parts.draws, shares)
            client_work.append(work)
            server, memory, work = exchange.update(server, mean, memory, parts.draws)
            server_work.append(work)
        return RoundOutcome(RoundState(server, memory, clients), reduce(add, client_work), reduce(add, server_work))


@dataclass(frozen=True)
class Channel(PluginBase, ABC):
    """A channel plug-in, the way of an upload: what happens to a message at a client, and to the mean of messages.

    Some channels are the way of broadcasts, too, the downlink (``check_downlink``).

    The methods ``send`` and ``receive`` are pure functions, traced like those of an algorithm; numbers among the fields
    may be traced. The receiver is the server, or on a tree each edge. Compression, noise, clipping and rounding belong
    here. An algorithm with two exchanges in a round has memories of its own for each.

    Attributes:
        source: the publication, in the notation of fcorun.base.sources.catalogue; not inherited.
        uses_key: False if neither ``send`` nor ``receive`` uses its key, so that messages do not depend on the seed. A
            subclass of such a channel that draws numbers sets it to True.
    """

    source: ClassVar[str]
    uses_key: ClassVar[bool] = True

    def resolve_auto(self, traits: Traits) -> Self:
        """Return a copy with values for the fields that are "auto", given the traits of the algorithm."""
        return self

    def check(self, plugins: Mapping[str, Any], names: Mapping[str, str], settings: Settings) -> None:
        """Refuse what the channel does not support, given the plug-ins by section and their names.

        Raises UserError.
        """
        return

    def check_downlink(self, plugins: Mapping[str, Any], names: Mapping[str, str], settings: Settings) -> None:
        """Refuse what the channel does not support as the way of broadcasts. Raises UserError.

        By default the channel is none of broadcasts. On a downlink the server calls ``send``, of which ``upload`` is
        the broadcast, and keeps the memory of ``client_memory``; ``receive`` and ``server_memory`` are not used.
        """
        raise UserError(f"`downlink={names['downlink']}` sends uploads: give it as uplink, and choose another downlink")

    def check_counted_broadcasts(self, algo: Algorithm, names: Mapping[str, str]) -> None:
        """Refuse algorithms whose broadcasts have bytes of their own, and algorithms of one round. Raises UserError."""
        if algo.computed_rounds == 1:
            raise UserError(f"`algo={names['algo']}` has one round, in which a compressed broadcast saves nothing: "
                            f"leave `downlink={names['downlink']}` out")  # fmt: skip
        own_count = any(getattr(type(algo), name) is not getattr(Algorithm, name)
                        for name in ("broadcast_bytes", "round_bytes"))  # fmt: skip
        if own_count:
            raise UserError(f"`algo={names['algo']}` encodes what the server sends itself: leave "
                            f"`downlink={names['downlink']}` out")  # fmt: skip

    def client_memory(self, upload: PyTree) -> PyTree:
        """Return the initial memory at each client, given the shapes of an upload; None means no memory."""
        return None

    def server_memory(self, upload: PyTree) -> PyTree:
        """Return the initial memory at each receiver, given the shapes of an upload; None means no memory."""
        return None

    @abstractmethod
    def send(self, upload: PyTree, memory: PyTree, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Return the message of one client, and the new memory there.

        ``key`` is a key for ``jax.random`` that depends on the seed, the round and the client.
        """

    def receive(self, mean: PyTree, memory: PyTree, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Return what the algorithm gets for the weighted mean of the messages, and the receiver's new memory.

        ``key`` is a key for ``jax.random`` that depends on the seed, the round and the receiver.
        """
        return mean, memory

    def upload_errors(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[float, float]:
        """Return omega of an unbiased compressor and 1 - alpha of a contraction, for rates that are "auto".

        Both are 0 for a channel that is no compressor, whatever it changes.
        """
        return 0.0, 0.0

    def upload_bytes(self, upload: PyTree, declared_bytes: int) -> int:
        """Return the bytes of the message of an upload of these shapes.

        ``declared_bytes`` are the bytes that the algorithm declares.
        """
        return declared_bytes

    def counted_upload_bytes(self, memories: PyTree) -> int:
        """Return the bytes of all messages so far that clients have counted in their memories, for they depend on data.

        They are added to those of ``upload_bytes``. ``memories``, of ``client_memory``, are those of all clients in
        NumPy, stacked along a leading axis M.
        """
        return 0

    def contraction(self, message: PyTree) -> jax.Array | float:
        """Return a, such that what is received of a message v has the expected error (1 - a) |v|^2 at most."""
        return 1.0

    def counted_bytes(self, memory: PyTree) -> int:
        """Return the bytes that a downlink has counted in its memory, beside those of ``upload_bytes``."""
        return 0


def counts_uploads(plugin: Algorithm | Channel) -> bool:
    """Return whether clients count bytes of what they send, by ``counted_upload_bytes``."""
    return type(plugin).counted_upload_bytes not in (Algorithm.counted_upload_bytes, Channel.counted_upload_bytes)


@dataclass(frozen=True)
class Identity(Channel):
    """A channel that delivers messages unchanged."""

    source = "textbook"
    uses_key = False

    def check_downlink(self, plugins, names, settings):
        return  # the base class refuses; an unchanged message breaks nothing

    def send(self, upload, memory, key):
        return upload, memory


# The channels of a run: the ways of uploads and of broadcasts, and what they remember.


class Channels(NamedTuple):
    """The uplink and the downlink of a run."""

    uplink: Channel
    downlink: Channel

    @property
    def has_downlink(self) -> bool:
        """True if broadcasts pass a channel that is not the identity."""
        return not isinstance(self.downlink, Identity)

    @property
    def needs_server_key(self) -> bool:
        """True if a channel reads a random key of the server."""
        return type(self.uplink).receive is not Channel.receive or self.has_downlink

    def with_numbers(self, numbers: Mapping[str, Mapping[str, Any]]) -> "Channels":
        """Return the channels with other numbers, by section and field."""
        return Channels(*(replace(channel, **numbers.get(name, {})) for name, channel in self._asdict().items()))

    def client_memory(self, uploads: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
        """Return the memory of the uplink at each client, for each exchange of a round."""
        return tuple(self.uplink.client_memory(upload) for upload in uploads)

    def server_memory(self, uploads: tuple[PyTree, ...], broadcasts: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
        """Return the memory at the server: of the uplink for each exchange, then of the downlink for each exchange."""
        memory = tuple(self.uplink.server_memory(upload) for upload in uploads)
        if not self.has_downlink:
            return memory
        return memory + tuple(self.downlink.client_memory(broadcast) for broadcast in broadcasts)
