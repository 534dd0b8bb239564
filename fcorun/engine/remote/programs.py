"""The parts of rounds and evaluations where rows stay at their sites, as pure functions of arrays.

The server computes broadcasts, and its update from the mean of messages; a site computes its clients in between. Both
compute the very same round, ``Federation.build_round``, and each has the draws of its own part.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.engine.clients import chunked, vmap_runs
from fcorun.engine.device_rows import DeviceRows, gather_whole_data, whole_row_indices
from fcorun.engine.federation import Federation
from fcorun.engine.round import commit
from fcorun.engine.schedule import Schedule
from fcorun.methods.algorithms.algorithm import Algorithm, LocalData, PyTree
from fcorun.methods.communication.contracts import RoundState
from fcorun.methods.problem.problem import Batch, Vector

# A row counts in what a site sends with a share c >= 0, the size of its derivative, one number without its features.
# Rows of one patient count together, with the sum of their shares. The effective number of patients, (sum c)^2 /
# sum c^2, is that of patients with equal shares which have the same two sums.
# Of the rows of a client or of a site, an array (3, 2): the largest share, by which the sums are divided, so that no
# square overflows; the sum of the shares; and that of their squares. The last axis has the shares in a gradient, and
# those in a Hessian.
ShareSums = Any


def number_patients(group: np.ndarray | None) -> np.ndarray | None:
    """Return the number of each row's patient, its group, (n,); None: each row is a patient."""
    return None if group is None else np.unique(group, return_inverse=True)[1].astype(np.int32)


def _add_by_patient(shares: jax.Array, patient: Any) -> tuple[jax.Array, jax.Array]:
    """Return the shares of patients, and 0 for others, (2, n), and the place of each row's patient there, (n,)."""
    place = jnp.unique(patient, return_inverse=True, size=len(patient))[1]
    return jax.ops.segment_sum(shares.T, place, len(patient)).T, place


def sum_shares(shares: jax.Array, patient: jax.Array | np.ndarray | None = None) -> ShareSums:
    """Return the sums of the shares of rows, (2, n), which ``patient``, (n,), adds by patient first."""
    if patient is not None and len(patient):
        shares, _ = _add_by_patient(shares, patient)
    largest = shares.max(axis=1, initial=0)
    scaled = shares / jnp.where(largest > 0, largest, 1)[:, None]
    return jnp.stack([largest, scaled.sum(axis=1), (scaled**2).sum(axis=1)])


def sum_shares_by_client(
    shares: jax.Array, client: jax.Array, n_clients: int, patient: jax.Array | np.ndarray | None = None
) -> ShareSums:
    """Return ``sum_shares`` over the rows of each client and of unknown ones, (M + 1, 3, 2).

    A ``patient`` has rows of one client.
    """
    n_sets = n_clients + 1
    if patient is not None and len(patient):
        shares, place = _add_by_patient(shares, patient)
        client = jnp.maximum(jax.ops.segment_max(client, place, len(client)), 0)
    largest = jnp.maximum(jax.ops.segment_max(shares.T, client, n_sets), 0)
    scaled = shares.T / jnp.where(largest > 0, largest, 1)[client]
    sums = (jax.ops.segment_sum(values, client, n_sets) for values in (scaled, scaled**2))
    return jnp.stack([largest, *sums], axis=1)


def effective_numbers(sums: ShareSums, weights: np.ndarray | float = 1.0) -> np.ndarray:
    """Return the effective number of rows in each sum, (..., 2).

    The sums have axes (..., S, 3, 2), where S are clients whose rows enter with ``weights``, (S,). The number is
    infinite where no row has a share, and where a share is NaN: nothing of a row leaves then. It is 0 where a share is
    infinite.
    """
    sums = np.asarray(sums, np.float64)
    largest = sums[..., 0, :]
    with np.errstate(invalid="ignore", divide="ignore"):
        # relative to the largest client, so that no square overflows or vanishes
        factors = largest / largest.max(axis=-2, keepdims=True, initial=0) * np.reshape(weights, (-1, 1))
        total = (factors * sums[..., 1, :]).sum(axis=-2)
        squares = (factors**2 * sums[..., 2, :]).sum(axis=-2)
        numbers = total**2 / squares
    if np.isfinite(numbers).all():
        return numbers
    has_infinite_share = np.isposinf(largest).any(axis=-2) & ~np.isnan(largest).any(axis=-2)
    return np.where(has_infinite_share, 0.0, np.where(np.isfinite(numbers), numbers, np.inf))


class RowsByClient(NamedTuple):
    """The rows of a site, of which each client's can be taken.

    Attributes:
        x, y: features and targets, (n, d) and (n,).
        extras: their "weight", "offset" and "patient", (n,), where they have them.
        of_client: the indices of each client's rows, (M, L) with -1 for none.
    """

    x: jax.Array
    y: jax.Array
    extras: dict[str, jax.Array]
    of_client: jax.Array

    def batch(self, client: jax.Array) -> Batch:
        """Return the rows of a client, each with its weight."""
        indices = self.of_client[client]
        rows, present = jnp.maximum(indices, 0), indices >= 0
        weight = jnp.where(present, self.extras["weight"][rows], 0)
        offset = self.extras.get("offset")
        return Batch(self.x[rows], self.y[rows], weight, offset=None if offset is None else offset[rows])

    def patients(self, client: jax.Array) -> jax.Array | None:
        """Return the patient of each row of a client's batch."""
        patient = self.extras.get("patient")
        return None if patient is None else patient[jnp.maximum(self.of_client[client], 0)]


def rows_of_message(
    schedule: Schedule, rows: DeviceRows, data: LocalData, client: jax.Array, uses_whole_data: bool
) -> tuple[Batch, jax.Array]:
    """Return the rows that a client's message of a round is computed from, each once, and their indices, -1 for none.

    These are all rows of the client, or those that the minibatches of its steps have.
    """
    indices = whole_row_indices(schedule, rows, client[None])[0]
    if schedule.full_batch_steps and isinstance(data.whole, Batch):
        return data.whole, indices
    if not schedule.full_batch_steps and not uses_whole_data and data.rows.size < schedule.max_rows:
        drawn = jnp.sort(data.rows.ravel())
        is_repeated = jnp.concatenate([jnp.zeros(1, bool), drawn[1:] == drawn[:-1]])
        indices = jnp.where(is_repeated, -1, drawn)
    return data.batch(indices), indices


def count_sent_runs(algorithm: Algorithm, n_runs: int) -> int:
    """Return the number of runs whose messages of a round are sent: one where all runs have one upload."""
    return 1 if algorithm.has_common_uploads else n_runs


@dataclass(frozen=True)
class RemotePrograms:
    """The functions of the server and of the sites. All arrays of runs have a leading axis G.

    Attributes:
        n_runs: the number of runs, G, that these functions compute: for ``answer`` those whose messages are sent, for
            ``solution_sums`` all.
        exchange: the number of the exchange of messages in a round, 0 or 1.
    """

    federation: Federation
    n_runs: int
    exchange: int = 0

    def broadcast(self, numbers: Any, server: PyTree) -> PyTree:
        """Compute what all clients receive from the server of each run."""

        def broadcast_run(numbers, server):
            algorithm, _ = self.federation.bind(numbers)
            first = algorithm.has_two_exchanges and self.exchange == 0
            return algorithm.first_broadcast(server) if first else algorithm.broadcast(server)

        return vmap_runs(broadcast_run, (0, 0), numbers, server)

    def send_broadcast(
        self, numbers: Any, server: PyTree, memory: PyTree, rows: DeviceRows, draws: Any
    ) -> tuple[PyTree, PyTree]:
        """Compute what all clients receive through the downlink from the server of each run, and the memory."""

        def send_run(numbers, server, memory):
            parts = self.federation.build_round(numbers, rows, draws, chunked(1))
            return parts.exchanges[self.exchange].send_broadcast(server, memory, parts.draws)

        return vmap_runs(send_run, (0, 0, 0), numbers, server, memory, sequential=self.n_runs == 1)

    def answer(
        self,
        numbers: Any,
        clients: PyTree,
        rows: DeviceRows,
        draws: Any,
        broadcast: PyTree,
        held_out: RowsByClient | None,
        patient: jax.Array | None,
    ) -> tuple[PyTree, PyTree, tuple[jax.Array, list[ShareSums]]]:
        """Compute a site's clients in one exchange of a round of each run, from what they receive.

        Args:
            clients: the states of all clients of the site.
            draws: the draws of those clients of the site that are in the cohort.
            held_out: the rows of the site that a fold of a selection holds out; None without a fold.
            patient: the number of the patient of each training row of the site, (n,); None: each row is one.

        Returns:
            The mean of the messages over these clients, the new states of all clients of the site, and of each client
            of the cohort its work, (G, S, 3): gradients of examples, of whole clients, and proxes; and how much its
            rows count at the model that it received, those of the message and those held out, (G, S, 3, 2) each.
        """
        whole = gather_whole_data(self.federation.schedule, rows, self.federation.precision)
        compute_cohort = chunked(self.federation.layout.chunk_width(self.n_runs, shared=True, whole=whole))
        index = self.federation.data.train.host_index(draws.cohort, in_order=False)

        def sum_row_shares(problem, model, data, client):
            schedule, uses_whole = self.federation.schedule, self.federation.needs_whole_data
            batch, indices = rows_of_message(schedule, rows, data, client, uses_whole)
            of_batch = None if patient is None else patient[jnp.maximum(indices, 0)]
            sums = [sum_shares(problem.row_shares(model, batch), of_batch)]
            if held_out is not None:
                shares = problem.row_shares(model, held_out.batch(client))
                sums.append(sum_shares(shares, held_out.patients(client)))
            return sums

        def answer_run(numbers, clients, broadcast):
            parts = self.federation.build_round(numbers, rows, draws, compute_cohort, whole)
            parts = replace(parts, sum_row_shares=sum_row_shares)
            shares = parts.weights / parts.weights.sum()
            of_cohort = jax.tree.map(lambda v: v[index], clients)
            mean, states, work = parts.exchanges[self.exchange].answer(broadcast, of_cohort, parts.draws, shares)
            return mean, jax.tree.map(lambda old, new: old.at[index].set(new), clients, states), work

        return vmap_runs(answer_run, (0, 0, 0), numbers, clients, broadcast, sequential=self.n_runs == 1)

    def average_answers(self, uploads: PyTree, shares: jax.Array) -> PyTree:
        """Compute the means of the messages of sites, stacked along an axis after that of runs, with these shares."""
        compute_cohort = chunked(self.federation.layout.chunk_width(self.n_runs, shared=True))

        def average_run(uploads):
            no_work = jnp.zeros(3, jnp.int32)
            return compute_cohort(lambda upload: (upload, (), no_work), (uploads,), shares)[0]

        return vmap_runs(average_run, (0,), uploads, sequential=self.n_runs == 1)

    def receive(
        self, numbers: Any, state: PyTree, rows: DeviceRows, draws: Any, mean: PyTree
    ) -> tuple[PyTree, PyTree, jax.Array]:
        """Update the server of each run from the mean of messages. Returns the server, the memory and the work.

        Where all runs have one upload, ``mean`` is that of the first run, so that the server computes with one matrix.
        """
        mean_axis = 0
        if self.federation.algorithm.has_common_uploads:
            mean, mean_axis = jax.tree.map(lambda v: v[0], mean), None

        def receive_run(numbers, server, memory, mean):
            parts = self.federation.build_round(numbers, rows, draws, chunked(1))
            return parts.exchanges[self.exchange].update(server, mean, memory, parts.draws)

        arguments = (numbers, state["server"], state["memory"], mean)
        return vmap_runs(receive_run, (0, 0, 0, mean_axis), *arguments, sequential=self.n_runs == 1)

    def commit(self, state: PyTree, server: PyTree, memory: PyTree, number: Any) -> PyTree:
        """Return the state of each run after the round ``number``.

        A run with numbers that are not finite keeps its old state.
        """

        def commit_run(state, server, memory):
            new = RoundState(server, memory, state["clients"])
            # the states of clients are at their sites: full participation leaves the indices of the cohort unused
            return commit(state, new, jnp.zeros(0, jnp.int32), number, full_participation=True)

        return jax.vmap(commit_run)(state, server, memory)

    def output(self, numbers: Any, server: PyTree) -> dict[str, jax.Array]:
        """Compute the solution of each run."""

        def output_run(numbers, server):
            algorithm, problem = self.federation.bind(numbers)
            server = self.federation.topology.server_state(server, None)
            return dict(algorithm.output(problem.for_side("server"), server))

        return vmap_runs(output_run, (0, 0), numbers, server)

    def solution_sums(
        self,
        numbers: Any,
        solution: dict,
        x: jax.Array,
        y: jax.Array,
        extra: dict[str, jax.Array],
        clients: dict[str, jax.Array],
    ):
        """Compute for the solution of each run the sums of losses and scores over the rows of each split.

        Returns also, by split, how much the rows of each client count at the solution. ``clients`` has the client of
        each row of a split, and ``extra`` may have the "patient" of each training row, and "patient_val".
        """
        n_clients = self.federation.data.n_clients
        evaluation = self.federation.evaluation

        def sum_run(numbers, solution):
            _, problem = self.federation.bind(numbers)
            sums = evaluation.split_sums(problem, Vector(solution), x, y, extra)
            shares = {}
            for split, of_rows in evaluation.split_row_shares(problem, Vector(solution), x, y, extra).items():
                patient = extra.get("patient" if split == "train" else "patient_val")
                shares[split] = sum_shares_by_client(of_rows, clients[split], n_clients, patient)
            return sums, shares

        return vmap_runs(sum_run, (0, 0), numbers, solution)
