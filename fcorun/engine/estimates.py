"""What is known of runs before they run: bytes of memory, bytes sent, whether their seed changes anything."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fcorun.algorithms.base import Algorithm
from fcorun.algorithms.local_data import tree_bytes
from fcorun.communication.identity import Identity
from fcorun.engine.federation import Federation, Numbers
from fcorun.engine.segments.evaluation_blocks import block_length
from fcorun.engine.segments.row_fetching import bytes_per_round
from fcorun.engine.traffic import Traffic
from fcorun.errors import UserError


def _state(federation: Federation, point: Numbers) -> Any:
    """What the state of one run looks like."""
    numbers, z0 = federation.stack_numbers([point]), federation.initial_duals([0])
    return federation.shape_of(federation.initial_state, numbers, z0)


def state_structure(federation: Federation, point: Numbers) -> Any:
    """The structure of a state, to put its leaves into."""
    return jax.tree.structure(_state(federation, point))


def bytes_per_run(federation: Federation, point: Numbers, seeds: Sequence[int]) -> int:
    """About how many bytes of memory each further run of a batch with these seeds takes: states, local work,
    predictions. Of a part they are of all rows, those that are left aside too."""
    data, among = federation.data, federation.subset
    rows = len(data.y) + (0 if data.y_val is None else len(data.y_val)) if among is None else len(among.y)
    rows = min(rows, block_length(data.x.shape[1], federation.precision)) if data.on_disk else rows
    outputs = len(data.classes) if len(data.classes) > 2 else 1
    clients = federation.chunk_width(len(seeds), len(set(seeds)) == 1)
    state = tree_bytes(_state(federation, point))
    predictions = 4 * rows * outputs * np.dtype(federation.precision).itemsize
    return (6 + clients) * state + predictions + clients * federation.client_bytes()


def min_bytes_per_run(federation: Federation, point: Numbers) -> int:
    """How many bytes a run takes at the very least: its state, before a round and after it."""
    return 2 * tree_bytes(_state(federation, point))


def prefetch_bytes(federation: Federation) -> int:
    """The bytes of rows that stay on disk and are fetched for a round of one seed and for the next, at least 1."""
    streamed = federation.arrays[0] is None
    given = (federation.data, federation.schedule, federation.precision, federation.needs_whole_data)
    return 2 * bytes_per_round(*given) if streamed else 1


def subset_bytes(federation: Federation, copies_rows: bool) -> int:
    """About how many bytes a part of the data keeps beside its runs: its rows, where they are its ``own`` for they were
    standardized anew, and its clients' whole batches, which are gathered once."""
    schedule, among = federation.schedule, federation.subset
    assert among is not None
    gathered = len(schedule.sizes) * among.max_client_rows if schedule.full_batch_steps else 0
    return (copies_rows * len(among.y) + gathered) * among.x.shape[1] * among.x.dtype.itemsize


def upload_bytes(federation: Federation, algorithm: Algorithm) -> int:
    """The bytes of an upload of a run with this algorithm. Raises UserError where it says something else."""
    upload = federation.shapes.upload
    found = federation.uplink.upload_bytes(upload, algorithm.upload_bytes(upload))
    return _whole_bytes(found, "upload_bytes", algorithm)


def broadcast_bytes(federation: Federation, algorithm: Algorithm) -> int:
    """The bytes of what a client receives in a run with this algorithm. Raises UserError where it says something
    else."""
    return _whole_bytes(algorithm.broadcast_bytes(federation.shapes.broadcast), "broadcast_bytes", algorithm)


def _whole_bytes(found: object, name: str, algorithm: Algorithm) -> int:
    if not isinstance(found, (int, np.integer)) or found < 0:
        raise UserError(f"{name}() of {type(algorithm).__name__} must return a whole number, not {found!r}: "
                        "round up to whole bytes")  # fmt: skip
    return int(found)


def estimate_traffic(federation: Federation, rounds: int, seed: int) -> Traffic:
    """What a run of this seed sends."""
    shapes = federation.shapes
    return Traffic(
        schedule=federation.schedule.with_seed(seed),
        rounds=rounds,
        edge_upload_bytes=tree_bytes(shapes.edge_upload),
        edge_of=federation.edge_of,
        frozen=federation.frozen,
    )


def needs_state_file(federation: Federation, point: Numbers) -> bool:
    """Whether clients keep something from round to round that is in files."""
    return federation.data.generated is not None and bool(jax.tree.leaves(_state(federation, point)["clients"]))


def program_key(federation: Federation) -> str:
    """Equal for parts of the same data whose programs are one, given arguments of the same shapes."""
    schedule = federation.schedule
    shape = [federation.data.n_clients, schedule.cohort_size, schedule.full_batch_steps, schedule.uneven_steps]
    own = {name: values.tolist() for name, values in federation.regularizer_numbers.items()}
    edges = None if federation.edge_of is None else federation.edge_of.tolist()
    validated = (
        None if federation.data.offsets_val is None else (federation.evaluation.validation_client_weights > 0).tolist()
    )
    return repr((shape, own, own and federation.problem.regularizer, edges, validated))


def depends_on_seed(federation: Federation) -> bool:
    """Whether a run depends on its seed: on cohorts, minibatches, a random start, coins that clients toss, or noise.

    Coins and noise are taken to matter where clients ask for them, whatever the odds.
    """
    objective, schedule, rng = federation.problem.objective, federation.schedule, np.random.default_rng(0)
    before = rng.bit_generator.state
    if federation.w0 is None:
        objective.initial_parameters(federation.problem.shapes, rng)
    return (
        not (federation.full_participation and schedule.full_batch_steps and isinstance(federation.uplink, Identity))
        or not federation.shapes.accessed <= {"whole"}
        or rng.bit_generator.state != before
    )
