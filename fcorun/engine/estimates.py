"""Estimates of runs before they run: bytes of memory, bytes sent, and dependence on the seed."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fcorun.algorithms.base import Algorithm
from fcorun.algorithms.local_data import PyTree, tree_bytes
from fcorun.communication.base import Channel
from fcorun.communication.identity import Identity
from fcorun.communication.rounds import MessageBytes
from fcorun.engine.federation import Federation, Numbers
from fcorun.engine.segments.evaluation_blocks import block_length
from fcorun.engine.segments.row_fetching import bytes_per_round
from fcorun.engine.traffic import Traffic
from fcorun.errors import UserError


def _state(federation: Federation, point: Numbers) -> Any:
    """Return the shapes of the state of one run."""
    arguments = (federation.stack_numbers([point]), federation.initial_duals([0]), federation.initial_keys([0]))
    return federation.shape_of(federation.initial_state, *arguments)


def state_structure(federation: Federation, point: Numbers) -> Any:
    """Return the pytree structure of the state of a run."""
    return jax.tree.structure(_state(federation, point))


def bytes_per_run(federation: Federation, point: Numbers, seeds: Sequence[int]) -> int:
    """Estimate the bytes of memory of each further run of a batch with these seeds: states, local work, predictions.

    A subset has predictions of all rows on the device.
    """
    data, subset = federation.data, federation.subset
    validation_rows = 0 if data.validation is None else len(data.validation)
    rows = len(data.train) + validation_rows if subset is None else len(subset.y)
    if federation.evaluates_blocks:
        rows = min(rows, block_length(data.train.x.shape[1], federation.precision))
    outputs = len(data.classes) if len(data.classes) > 2 else 1
    clients = federation.layout.chunk_width(len(seeds), len(set(seeds)) == 1)
    state = tree_bytes(_state(federation, point))
    arrays_of_rows = 8 if federation.evaluation.gap else 4
    predictions = arrays_of_rows * rows * outputs * np.dtype(federation.precision).itemsize
    return (6 + clients) * state + predictions + clients * federation.layout.client_bytes()


def min_bytes_per_run(federation: Federation, point: Numbers) -> int:
    """Return a lower bound on the bytes of memory of a run: its state before and after a round."""
    return 2 * tree_bytes(_state(federation, point))


def prefetch_bytes(federation: Federation) -> int:
    """Return the bytes of rows fetched from disk for a round of one seed and for the next round, at least 1."""
    if not federation.fetches_rows:
        return 1
    whole = federation.needs_whole_data
    return 2 * bytes_per_round(federation.data, federation.schedule, federation.precision, whole)


def subset_bytes(federation: Federation, copies_rows: bool) -> int:
    """Estimate the bytes of a subset besides its runs: its clients' gathered batches, and its rows if it copies them.

    A subset copies rows that were standardized anew.
    """
    schedule, subset = federation.schedule, federation.subset
    assert subset is not None
    gathered = federation.layout.gathered_rows if schedule.full_batch_steps else 0
    return (copies_rows * len(subset.y) + gathered) * subset.x.shape[1] * subset.x.dtype.itemsize


def message_bytes(
    federation: Federation, algorithm: Algorithm, uplink: Channel, downlink: Channel | None = None
) -> MessageBytes:
    """Return the bytes of the messages of this algorithm on this uplink and this downlink, by default the federation's.

    Raises UserError where these are no whole numbers.
    """
    shapes, cohort_size = federation.shapes, federation.schedule.cohort_size
    downlink = downlink or federation.downlink
    uploads, broadcasts = [], []
    for upload, broadcast in zip(shapes.uploads, shapes.broadcasts, strict=True):
        declared = _check_bytes(algorithm.upload_bytes_for(federation.problem, upload), "upload_bytes", algorithm)
        uploads.append(_check_bytes(uplink.upload_bytes(upload, declared), "upload_bytes", uplink))
        declared = _check_bytes(algorithm.broadcast_bytes(broadcast), "broadcast_bytes", algorithm)
        broadcasts.append(_check_bytes(downlink.upload_bytes(broadcast, declared), "upload_bytes", downlink))
    idle_clients = cohort_size - algorithm.count_local_clients(cohort_size)
    edge_upload = tree_bytes(shapes.edge_upload)
    if federation.topology.has_nodes or federation.topology.edges_use_uplink:
        edge_upload = _check_bytes(uplink.upload_bytes(shapes.edge_upload, edge_upload), "upload_bytes", uplink)
    edge_broadcast = algorithm.broadcast_bytes(shapes.broadcasts[-1])  # edges receive what the root sends unchanged
    return MessageBytes(tuple(uploads), tuple(broadcasts), edge_upload, edge_broadcast, idle_clients)


def counted_broadcast_bytes(federation: Federation, state: PyTree, run: int) -> int:
    """Return the bytes of broadcasts to all clients that the downlink has counted in a run."""
    if not federation.channels.has_downlink:
        return 0
    downlink, cohort_size = federation.downlink, federation.schedule.cohort_size
    memories = jax.tree.map(lambda v: np.asarray(v[run]), _downlink_memory(federation, state))
    listeners = federation.topology.count_listeners(federation.links)
    if listeners is None:
        by_exchange = tuple(downlink.counted_bytes(memory) for memory in memories)
        idle_clients = cohort_size - federation.algorithm.count_local_clients(cohort_size)
        return MessageBytes((), by_exchange, idle_clients=idle_clients).bytes_down(cohort_size)
    of_edges = [[jax.tree.map(lambda v, e=e: v[e], memory) for e in range(len(listeners))] for memory in memories]
    return sum(
        int(count) * downlink.counted_bytes(memory)
        for edges in of_edges
        for count, memory in zip(listeners, edges, strict=True)
    )


def _downlink_memory(federation: Federation, state: PyTree) -> PyTree:
    """Return the memories of the downlink, one for each exchange, which follow those of the uplink."""
    n_exchanges = len(federation.shapes.broadcasts)
    return state["memory"][n_exchanges : 2 * n_exchanges]


def _check_bytes(size: object, name: str, plugin: Algorithm | Channel) -> int:
    if not isinstance(size, (int, np.integer)) or size < 0:
        raise UserError(
            f"{name}() of {type(plugin).__name__} must return a whole number, not {size!r}: round up to whole bytes"
        )
    return int(size)


def estimate_traffic(federation: Federation, rounds: int, seed: int) -> Traffic:
    """Return the traffic of a run with this seed."""
    has_uneven_rounds = type(federation.algorithm).round_bytes is not Algorithm.round_bytes
    return Traffic(
        topology=federation.topology,
        links=federation.links,
        schedule=federation.schedule.with_seed(seed),
        rounds=rounds,
        frozen=federation.frozen,
        sending_rounds=federation.algorithm.sending_rounds,
        sizes_of_round=federation.algorithm.round_bytes if has_uneven_rounds else None,
    )


def needs_state_file(federation: Federation, point: Numbers) -> bool:
    """Return whether clients have states that are stored in files: those of generated clients."""
    if not federation.schedule.generated_clients:
        return False
    return bool(jax.tree.leaves(_state(federation, point)["clients"]))


def program_key(federation: Federation) -> str:
    """Return a key that is equal for subsets that share programs, given arguments of the same shapes."""
    schedule = federation.schedule
    shape = [federation.data.n_clients, schedule.cohort_size, schedule.full_batch_steps, schedule.uneven_steps]
    client_numbers = {name: values.tolist() for name, values in federation.regularizer_numbers.items()}
    links = jax.tree.map(lambda values: values.tolist(), federation.links)
    max_client_rows = None if federation.subset is None else federation.subset.max_client_rows.tolist()
    validated = None
    if federation.data.validation_offsets is not None:
        validated = (federation.evaluation.validation_client_weights > 0).tolist()
    return repr(
        (shape, max_client_rows, client_numbers, client_numbers and federation.problem.regularizer, links, validated)
    )


def depends_on_seed(federation: Federation) -> bool:
    """Return whether a run depends on its seed: by cohorts, minibatches, random links, start or times, uniforms, noise.

    Shared uniforms and noise count as soon as clients access them, whatever the probabilities.
    """
    objective, schedule, rng = federation.problem.objective, federation.schedule, np.random.default_rng(0)
    initial_rng_state = rng.bit_generator.state
    if federation.w0 is None:
        objective.initial_parameters(federation.problem.shapes, rng)
    if rng.bit_generator.state != initial_rng_state:
        return True
    if not federation.full_participation or not schedule.full_batch_steps or federation.topology.redraws_links:
        return True
    if schedule.times is not None and schedule.times.speeds.variation > 0:
        return True
    has_channel = federation.channels.has_downlink or not isinstance(federation.uplink, Identity)
    return has_channel or not federation.shapes.accessed <= {"whole"}
