"""One communication round of one run: the messages, and the states that follow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fcorun.data.datasets.dataset import FederatedData
from fcorun.engine.clients import ClientInputs, CohortFunction, stack_uploads, vmap_runs
from fcorun.engine.device_rows import first_row
from fcorun.engine.schedule import Schedule
from fcorun.methods.algorithms.algorithm import Algorithm, PyTree
from fcorun.methods.algorithms.local_data import LocalData, RecordingLocalData
from fcorun.methods.algorithms.output_check import trace_messages
from fcorun.methods.communication.aggregation import AggregationRule, SingleUploads, WeightedMean, combine_uploads
from fcorun.methods.communication.contracts import (
    Channel,
    Channels,
    Exchange,
    Identity,
    RoundDraws,
    RoundState,
    Topology,
)
from fcorun.methods.communication.faults import CohortFaults, Faults, NoFaults
from fcorun.methods.communication.privacy import (
    CountedMessage,
    NoPrivacy,
    Privacy,
    all_finite,
    join_message,
    split_message,
)
from fcorun.methods.problem.operation_counts import count_operations
from fcorun.methods.problem.problem import Problem, Vector, fold_key, wrap_key


class MessageShapes(NamedTuple):
    """The shapes of an algorithm's messages, and the optional inputs that its functions access.

    Attributes:
        uploads, broadcasts: what a client sends, and what it receives, in each exchange of a round.
        edge_upload: what an edge sends.
        accessed: the fields that ``RecordingLocalData`` records, and "server_key" if the server reads ``problem.key``.
    """

    uploads: tuple[PyTree, ...]
    broadcasts: tuple[PyTree, ...]
    edge_upload: PyTree
    accessed: set[str]

    def through_uplink(self, topology: Topology) -> tuple[PyTree, ...]:
        """Return the shapes of what passes the uplink: uploads, or the messages of nodes to each other."""
        return (self.edge_upload,) if topology.has_nodes else self.uploads


def trace_message_shapes(
    algorithm: Algorithm,
    problem: Problem,
    data: FederatedData,
    schedule: Schedule,
    *,
    dtype: Any,
    shape_of: Callable,
    frozen: bool = False,
) -> MessageShapes:
    """Trace the shapes of the messages; ``shape_of`` returns the shapes of a function's result."""
    accessed: set[str] = set()
    recording_problem = replace(problem, accessed=accessed)

    def trees():
        rows = jnp.zeros((1 if schedule.full_batch_steps else int(schedule.steps.max()), 1), jnp.int32)
        first = LocalData(*first_row(data, dtype), rows, dtype).with_whole_data(rows[0])
        steps = {
            "full_batch_steps": schedule.full_batch_steps,
            "uneven_steps": schedule.uneven_steps,
            "whole": first.whole,
        }
        local, local_frozen = (
            RecordingLocalData(first.x, first.y, rows, dtype, **steps, frozen=value, accessed=accessed)
            for value in (False, True)
        )
        w0 = problem.zeros(dtype)
        return trace_messages(algorithm, recording_problem, w0, local, frozen=local_frozen if frozen else None)

    uploads, broadcasts, edge_upload = shape_of(trees)
    return MessageShapes(uploads, broadcasts, edge_upload, accessed)


# One communication round of one run: what a topology puts together, and the states that follow.

# Numbers folded into a random key, one for each use; 1 is folded in by ``LocalData.key`` and ``Problem.key``.
_EDGES, _ROOT, _FIRST_EXCHANGE, _DOWNLINK, _LIE = 2, 3, 4, 5, 7


def commit(state: PyTree, new: RoundState, cohort: jax.Array, number: jax.Array, full_participation: bool) -> PyTree:
    """Return the state of a run after the round ``number``; states that are not finite are not committed.

    A run that has diverged keeps its state. With ``full_participation`` the cohort is all clients in order.
    """
    finite_leaves = [jnp.array(True)]
    for leaf in jax.tree.leaves((new.server, new.memory, new.clients)):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            finite_leaves.append(jnp.sum(leaf - leaf) == 0)  # a CPU takes a third of the time of a conjunction
    finite = jnp.array(finite_leaves).all()
    alive = (state["diverged"] == 0) & finite

    def keep(new, old):
        return jnp.where(alive, new, old)

    def keep_cohort(old, new):
        return keep(new, old) if full_participation else old.at[cohort].set(keep(new, old[cohort]))

    return state | {
        "server": jax.tree.map(keep, new.server, state["server"]),
        "memory": jax.tree.map(keep, new.memory, state["memory"]),
        "clients": jax.tree.map(keep_cohort, state["clients"], new.clients),
        "diverged": jnp.where(state["diverged"] + finite == 0, number + 1, state["diverged"]),
    }


@dataclass(frozen=True, kw_only=True)
class Round:
    """The parts of a round, a ``CohortRound``: the cohort, its data, and the functions that compute it.

    Attributes:
        problem, server_problem: the problem of the clients, and the problem as the server sees it.
        rows_of_client: returns x (N, d) and y (N,) of the rows among which the indices of a client's rows count.
        row_extras: the weights and offsets of all rows, where they have them.
        regularizer_numbers: the ``numbers`` of ``ClientInputs``.
        whole: the whole data of all clients, of each class with ``in_size_classes``, or None.
        data_index: the clients whose data in ``whole`` are used, (S,); None: all clients.
        client_rows: all rows of each client, (S, L) with -1 for none, where whole data are used and must be gathered.
        frozen: whether the server's model is fixed, so that nothing is sent.
        faults: how clients drop out and lie, with the number of liars.
        faults_of_cohort: the faults of the cohort's clients; None: none. Those who are not present have the weight 0.
        n_classes: the number of classes of the targets; 0: they have none.
        privacy: how messages are clipped, and the noise of the round.
        noise_key: the bits of the run's key of the noise, (2,); None without noise.
        sum_row_shares: returns how much the rows of a client count in its message, given the problem, the model that
            the client received, its data and its number; None: nobody asks.
    """

    algorithm: Algorithm
    problem: Problem
    server_problem: Problem
    channels: Channels
    links: Any
    schedule: Schedule
    clients: jax.Array
    draws: RoundDraws
    rows_of_client: Callable[[Any], tuple[jax.Array, jax.Array]]
    row_extras: dict[str, jax.Array]
    regularizer_numbers: dict[str, jax.Array]
    whole: Any
    data_index: jax.Array | None
    client_rows: jax.Array | None
    weights: jax.Array
    compute_cohort: CohortFunction
    aggregate: AggregationRule = field(default_factory=WeightedMean)
    faults: Faults = field(default_factory=NoFaults)
    faults_of_cohort: CohortFaults | None = None
    n_classes: int = 0
    frozen: bool = False
    privacy: Privacy = field(default_factory=NoPrivacy)
    noise_key: Any = None
    sum_row_shares: Callable[[Problem, Vector, LocalData, jax.Array], PyTree] | None = None

    @property
    def share(self) -> Any:
        """The part of the cohort in the weights of all clients."""
        return self.server_problem.share

    @property
    def n_clients(self) -> int:
        """The number of all clients, M."""
        return len(self.schedule.sizes)

    @property
    def total_weight(self) -> jax.Array:
        """The weight by which the sum of weighted uploads is divided: that of the cohort, or a fixed one."""
        if self.has_fixed_divisor:
            expected_weight = self.schedule.expected_share * self.schedule.averaging_weights.sum()
            return jnp.asarray(expected_weight, self.weights.dtype)
        return self.weights.sum()

    @property
    def has_fixed_divisor(self) -> bool:
        """True if privacy has sums of uploads divided by the weight of an average cohort."""
        return self.privacy.fixes_divisor(self.schedule.participation)

    def add_noise(self, mean: PyTree, shares: jax.Array, number: jax.Array | None) -> PyTree:
        """Return the mean of uploads by ``shares`` with the noise of a trusted server, if privacy has one.

        Shares of E edges, (E, S), are of one mean for each edge, whose clients alone it hides by noise of its own.
        """
        if not self.privacy.acts:
            return mean
        influence = 1.0  # of a client's message, or of a row, over the client's share
        if self.privacy.hides_rows and not self.privacy.at_clients:
            influence = self.algorithm.client_lr / self.schedule.batch_sizes  # type: ignore[attr-defined]
        if shares.ndim == 1:
            largest = (influence * self.schedule.averaging_weights).max()
            present_share = self.weights.sum() / self.total_weight
            return self._add_noise(mean, self.noise_key, number, largest / self.total_weight, present_share)
        influences = jnp.broadcast_to(jnp.asarray(influence), self.n_clients)[self.clients]
        keys = _fold_numbers(self.noise_key, len(shares))
        scales, present_shares = (influences[None] * shares).max(axis=1), shares.sum(axis=1)
        return jax.vmap(self._add_noise, (0, 0, None, 0, 0))(mean, keys, number, scales, present_shares)

    def _add_noise(self, mean: PyTree, key: Any, number: Any, scale: jax.Array, present_share: jax.Array) -> PyTree:
        """Return a mean with noise of this ``scale``, and with the public entries of those who take part."""
        message, public = split_message(mean, self.algorithm.traits)
        if not self.privacy.at_clients:
            noise = self.privacy.draw_noise(message, key, number)
            message = jax.tree.map(lambda value, noise: value + scale * noise, message, noise)
        divisor = jnp.where(present_share > 0, present_share, 1)  # all who take part send the same entries
        return join_message(message, jax.tree.map(lambda value: value / divisor, public))

    @property
    def absent_clients_compute_nothing(self) -> bool:
        """Return whether clients that are not present in a round do no work; else they have computed in vain."""
        return self.schedule.participation is not None or self.faults.drops_before

    @property
    def exchanges(self) -> Sequence["RoundExchange"]:
        """The exchanges of messages in their order."""
        if self.algorithm.has_two_exchanges:
            return [RoundExchange(self, 0, first=True), RoundExchange(self, 1)]
        return [RoundExchange(self, 0)]

    def update_root(self, server: PyTree, mean: PyTree) -> tuple[PyTree, jax.Array]:
        """Return the root's state after the mean of the edges' uploads, and the work."""
        key = None if self.draws.server_key is None else fold_key(self.draws.server_key[0], _ROOT)
        problem = replace(self.server_problem, key_bits=key)
        new, work = count_operations(lambda: self.algorithm.root(problem, copy_tree(server), mean))
        return self.keep_without_uploads((new, work), (server, jnp.zeros_like(work)))

    def keep_without_uploads(self, new: PyTree, old: PyTree) -> PyTree:
        """Return what the server has after the round: the ``old`` values if no client of the cohort is present.

        With a fixed divisor the server goes on with the noise alone.
        """
        if self.faults_of_cohort is None or self.faults_of_cohort.present is None:
            return new
        if self.has_fixed_divisor:
            return new
        has_uploads = self.faults_of_cohort.present.any()
        return jax.tree.map(lambda n, o: jnp.where(has_uploads, n, o), new, old)

    def contraction(self, messages: PyTree) -> Any:
        """Return the contraction of the uplink for a message of a graph's client, given those of all, stacked."""
        return self.channels.uplink.contraction(jax.tree.map(lambda v: v[0], messages))

    def send_messages(self, messages: PyTree, clients: PyTree) -> tuple[PyTree, PyTree]:
        """Return what neighbours receive of the messages of a graph's clients, and the clients' states."""
        if type(self.channels.uplink).send is Identity.send:
            return messages, clients
        states, (memory,) = clients
        received, memory = self._send_each(messages, memory, self.draws.keys)
        return received, (states, (memory,))

    def _send_each(self, messages: PyTree, memory: PyTree, keys: jax.Array) -> tuple[PyTree, PyTree]:
        """Send the messages of several senders through the uplink, all stacked."""

        def send(message, memory, key_bits):
            return self.channels.uplink.send(copy_tree(message), copy_tree(memory), wrap_key(key_bits))

        return vmap_runs(send, (0, 0, 0), messages, memory, keys)

    def update_nodes(self, nodes: PyTree, means: PyTree) -> tuple[PyTree, jax.Array]:
        """Return the states of the clients of a graph after their means, and all their work."""

        def update(node, mean, numbers):
            problem = self.problem.with_numbers(numbers).for_side("client")
            return count_operations(lambda: self.algorithm.root(problem, copy_tree(node), copy_tree(mean)))

        nodes, work = vmap_runs(update, (0, 0, 0), nodes, means, self.regularizer_numbers)
        return nodes, work.sum(axis=0, dtype=jnp.int32)

    def client_inputs(self, clients: PyTree, draws: RoundDraws, sender: PyTree = None) -> ClientInputs:
        """Return the inputs of the cohort's clients, in the order of the arguments of a client's function."""
        place = None
        if self.algorithm.divides_cohort:  # the order of random bits is a random one
            place = jnp.argsort(jnp.argsort(draws.keys[:, 0])).astype(jnp.int32)
        return ClientInputs(
            numbers=self.regularizer_numbers,
            whole_or_index=self.whole if self.data_index is None else self.data_index,
            state=clients,
            rows=draws.rows,
            key_bits=draws.keys,
            client_rows=self.client_rows,
            client=self.clients,
            sender=sender,
            fault=self.faults_of_cohort,
            place=place,
        )

    def local_data(
        self,
        whole_or_index: Any,
        rows: jax.Array,
        client_rows: jax.Array | None,
        draws: RoundDraws,
        fault: CohortFaults | None = None,
    ) -> LocalData:
        """Return the data of a client with its ``fault``; ``draws`` has the random numbers that all clients share."""
        schedule, dtype = self.schedule, self.weights.dtype
        x, y = self.rows_of_client(whole_or_index)
        data = LocalData(
            x=x,
            y=y,
            **self.row_extras,  # type: ignore[arg-type]
            rows=rows,
            dtype=dtype,
            full_batch_steps=schedule.full_batch_steps,
            uneven_steps=schedule.uneven_steps,
            frozen=self.frozen,
            shared_uniforms=draws.shared_uniforms.astype(dtype),
            change_targets=self.faults.change_targets_if(fault, self.n_classes),
        )
        if client_rows is not None:
            return data.with_whole_data(client_rows)
        whole = whole_or_index
        if self.data_index is not None:
            whole = jax.tree.map(lambda v: v[whole_or_index], self.whole)
        return data if whole is None else replace(data, whole=data.with_changed_targets(whole))


@dataclass(frozen=True)
class RoundExchange(Exchange):
    """An exchange of messages in a round, whose methods a topology calls.

    Attributes:
        index: the position of its memories of the uplink; those of the downlink follow for all exchanges.
        first: whether it is the first of two exchanges.
    """

    round: Round
    index: int
    first: bool = False

    @property
    def _get_broadcast(self) -> Callable[[PyTree], PyTree]:
        algorithm = self.round.algorithm
        return algorithm.first_broadcast if self.first else algorithm.broadcast

    def send_broadcast(self, sender, memory, draws):
        return self._send(self._get_broadcast(copy_tree(sender)), memory, draws.server_key)

    def send_broadcasts(self, senders, memory, draws, present):
        keys = self._receiver_keys(draws, len(present))

        def send(sender, memory, key):
            return self._send(self._get_broadcast(copy_tree(sender)), memory, key)

        broadcasts, new_memory = vmap_runs(send, (0, 0, 0), senders, memory, keys)
        return broadcasts, _keep_absent(present, new_memory, memory)

    def _send(self, broadcast: PyTree, memory: PyTree, key: jax.Array | None) -> tuple[PyTree, PyTree]:
        """Return what clients receive of a broadcast through the downlink, and the memory of its sender."""
        _, downlink = self.round.channels
        if type(downlink).send is Identity.send or self.round.frozen:
            return broadcast, memory
        assert key is not None
        index = len(self.round.exchanges) + self.index
        downlink_key = wrap_key(fold_key(self._fold_exchange(key), _DOWNLINK))
        broadcast, own_memory = downlink.send(broadcast, copy_tree(memory[index]), downlink_key)
        return broadcast, _replace_memory(memory, own_memory, index)

    def _receiver_keys(self, draws: RoundDraws, count: int) -> jax.Array | None:
        """Return a random key for each of several receivers, (E, 2); None where nothing reads the server's key."""
        if draws.server_key is None:
            return None
        return _fold_numbers(fold_key(draws.server_key, _EDGES), count)

    def _fold_exchange(self, key: jax.Array) -> jax.Array:
        """Return a key for this exchange."""
        return fold_key(key, _FIRST_EXCHANGE) if self.first else key

    def answer(self, broadcast, clients, draws, shares, sender_of=None):
        def broadcast_of(number):
            return broadcast if number is None else jax.tree.map(lambda v: v[number], broadcast)

        inputs = self.round.client_inputs(clients, draws, sender_of)
        compute = self._client_function(draws, broadcast_of)
        rule = self.round.aggregate
        if isinstance(rule, WeightedMean) and not self._updates_by_all:
            mean, clients, work = self.round.compute_cohort(compute, inputs, shares)
            return self.round.add_noise(mean, shares, draws.number), clients, work
        uploads, clients, work = stack_uploads(self.round.compute_cohort, compute, inputs)
        if self._updates_by_all:
            return SingleUploads(uploads, shares), clients, work
        combine = partial(combine_uploads, rule, uploads)
        return (combine(shares) if shares.ndim == 1 else jax.vmap(combine)(shares)), clients, work

    @property
    def _updates_by_all(self) -> bool:
        """Return whether the server takes single uploads, by ``Algorithm.server_all``."""
        return self.round.algorithm.has_server_all and not self.first

    def compute_clients(self, sender, clients, draws, shares, sender_of=None):
        if shares is None:
            compute = self._client_function(draws, self._get_broadcast, sends=False)
            return stack_uploads(self.round.compute_cohort, compute, self.round.client_inputs(clients, draws, sender))
        get_broadcasts = self._get_broadcast if sender_of is None else jax.vmap(self._get_broadcast)
        return self.answer(get_broadcasts(copy_tree(sender)), clients, draws, shares, sender_of)

    def update(self, state, mean, memory, draws):
        if self.round.frozen:  # a server whose model is fixed receives nothing
            return state, memory, jnp.zeros(3, jnp.int32)
        algorithm = self.round.algorithm
        function: Callable[..., PyTree] = algorithm.first_server if self.first else algorithm.server
        if isinstance(mean, SingleUploads):

            def update_by_all(problem: Problem, state: PyTree, single: SingleUploads) -> PyTree:
                return algorithm.server_all(problem, state, single.uploads, single.weights)

            function = update_by_all
        after = memory
        if isinstance(mean, CountedMessage):
            after = (*memory[:-1], self.round.privacy.adapt_clip(memory[-1], mean.short))
            mean = mean.message
        new = self._update(function, (state, mean, after), draws.server_key)
        return self.round.keep_without_uploads(new, (state, memory, jnp.zeros_like(new[-1])))

    def update_each(self, states, means, memory, draws, present):
        keys = self._receiver_keys(draws, len(present))
        algorithm = self.round.algorithm
        function = algorithm.first_server if self.first else algorithm.edge

        def update_receiver(states, means, memory, key):
            return self._update(function, (states, means, memory), key)

        arguments = (states, means, memory, keys)
        states, new_memory, work = vmap_runs(update_receiver, (0, 0, 0, 0), *arguments)
        work = jnp.where(present[:, None], work, 0).sum(axis=0, dtype=jnp.int32)
        return states, _keep_absent(present, new_memory, memory), work

    def _update(
        self, function: Callable[..., PyTree], states: tuple[PyTree, PyTree, PyTree], key: jax.Array | None
    ) -> tuple[PyTree, PyTree, jax.Array]:
        """Return a receiver's state after ``states``, its state, the mean and its memory; the memory; and the work."""
        state, mean, memory = states
        if key is not None:
            key = self._fold_exchange(key)
        (channel, _), problem = self.round.channels, replace(self.round.server_problem, key_bits=key)
        if type(channel).receive is not Channel.receive:
            assert key is not None
            mean, own_memory = channel.receive(copy_tree(mean), copy_tree(memory[self.index]), wrap_key(key))
            memory = _replace_memory(memory, own_memory, self.index)
        state, work = count_operations(lambda: function(problem, copy_tree(state), copy_tree(mean)))
        return state, memory, work

    def _client_function(
        self, draws: RoundDraws, broadcast_of: Callable[[Any], PyTree], sends: bool = True
    ) -> Callable[..., tuple]:
        """Return the function that computes one client, and, if the client ``sends``, what its upload becomes.

        ``broadcast_of(sender)`` is the message that the client receives, of the sender that its inputs name. Where
        somebody asks how much the client's rows count, that follows its work in a pair.
        """
        parts = self.round
        uplink, _ = parts.channels
        received_model = parts.algorithm.first_received_model if self.first else parts.algorithm.received_model
        local = parts.algorithm.first_local if self.first else parts.algorithm.local

        def compute(numbers, whole_or_index, client_state, rows, key_bits, client_rows, client, sender, fault, place):
            state, memory = copy_tree(client_state)
            problem = parts.privacy.clip_rows(parts.problem.with_numbers(numbers).for_side("client"))
            data = parts.local_data(whole_or_index, rows, client_rows, draws, fault)
            key_bits = self._fold_exchange(key_bits)
            data = replace(data, key_bits=key_bits, client_number=client, place=0 if place is None else place)
            if parts.privacy.noises_steps:
                data = replace(data, noise_key=fold_key(fold_key(parts.noise_key, client), draws.number))
            (upload, state), work = count_operations(
                lambda: local(problem, copy_tree(broadcast_of(sender)), state, data)
            )
            if fault is not None and fault.lies is not None:
                upload, memory = self._lie_if(fault.lies, upload, memory, key_bits)
            if parts.privacy.acts:
                states, own_key = (client_state[0], state), fold_key(parts.noise_key, client)
                upload, state = parts.privacy.protect(upload, states, parts.algorithm.traits, own_key, draws.number)
            if sends and type(uplink).send is not Identity.send and not parts.frozen:
                upload, own_memory = uplink.send(upload, copy_tree(memory[self.index]), wrap_key(key_bits))
                memory = _replace_memory(memory, own_memory, self.index)
            if not self.first:
                sent = upload.message if isinstance(upload, CountedMessage) else upload
                state = parts.algorithm.after_sending(state, copy_tree(sent))
            if fault is not None and fault.present is not None:
                old_state, old_memory = client_state
                no_upload = jax.tree.map(jnp.zeros_like, upload)  # whose weight is 0, and 0 times inf is NaN
                kept_work = jnp.zeros_like(work) if parts.absent_clients_compute_nothing else work
                kept = no_upload, (old_state, old_memory), kept_work
                return jax.tree.map(lambda n, o: jnp.where(fault.present, n, o), (upload, (state, memory), work), kept)
            if parts.sum_row_shares is None:
                return upload, (state, memory), work
            model = received_model(problem, copy_tree(broadcast_of(sender)), copy_tree(client_state)[0], data)
            return upload, (state, memory), (work, parts.sum_row_shares(problem, model, data, client))

        return compute

    def _lie_if(self, is_liar: jax.Array, upload: PyTree, memory: PyTree, key_bits: jax.Array) -> tuple[PyTree, PyTree]:
        """Return what a client sends in place of its upload, and its memories, of which a liar's last ones change."""
        index = len(self.round.exchanges) + self.index
        honest = upload, memory[index]
        key = wrap_key(fold_key(key_bits, _LIE))
        lie, lie_memory = self.round.faults.lie(copy_tree(upload), copy_tree(memory[index]), key)
        if self.round.privacy.acts:  # a run that a memory ends would tell that this client took part
            finite = all_finite(lie_memory)
            lie_memory = jax.tree.map(lambda new, old: jnp.where(finite, new, old), lie_memory, memory[index])
        upload, own_memory = jax.tree.map(lambda new, old: jnp.where(is_liar, new, old), (lie, lie_memory), honest)
        return upload, _replace_memory(memory, own_memory, index)


def _fold_numbers(key: jax.Array, count: int) -> jax.Array:
    """Return the bits of a key for each number below ``count``, (count, 2)."""
    return jax.vmap(lambda number: fold_key(key, number))(jnp.arange(count))


def _replace_memory(memory: PyTree, own_memory: PyTree, index: int) -> PyTree:
    """Return the memories with a new one at a position."""
    return tuple(own_memory if k == index else other for k, other in enumerate(memory))


def _keep_absent(present: jax.Array, new: PyTree, old: PyTree) -> PyTree:
    """Return the new values of those that are ``present`` (E,), and the old ones of others, stacked."""
    return jax.tree.map(lambda n, o: jnp.where(present.reshape(-1, *[1] * (n.ndim - 1)), n, o), new, old)


def copy_tree(tree: PyTree) -> PyTree:
    """Copy the containers of a pytree, not its arrays, so that a function can change only its own arguments."""
    return jax.tree.map(lambda leaf: leaf, tree)
