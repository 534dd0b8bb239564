"""What is known of runs before they run: bytes of memory, bytes sent, whether their seed changes anything."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fcorun.algorithms.base import Algorithm
from fcorun.algorithms.local_data import size_of
from fcorun.engine.federation import Federation, Numbers
from fcorun.engine.stretch.blocks import rows_of_block
from fcorun.engine.stretch.rows import bytes_of_round
from fcorun.engine.traffic import Traffic
from fcorun.errors import UserError
from fcorun.networks.plain import Plain


def _state(federation: Federation, point: Numbers) -> Any:
    """What the state of one run looks like."""
    numbers, z0 = federation.stack([point]), federation.duals([0])
    return federation.shape_of(federation.start, numbers, z0)


def structure(federation: Federation, point: Numbers) -> Any:
    """The structure of a state, to put its leaves into."""
    return jax.tree.structure(_state(federation, point))


def bytes_each(federation: Federation, point: Numbers, seeds: Sequence[int]) -> int:
    """About how many bytes of memory each further run of a batch with these seeds takes: states, local work,
    predictions. Of a part they are of all rows, those that are left aside too."""
    data, among = federation.data, federation.among
    rows = len(data.y) + (0 if data.y_val is None else len(data.y_val)) if among is None else len(among.y)
    rows = min(rows, rows_of_block(data.x.shape[1], federation.precision)) if data.on_disk else rows
    outputs = len(data.classes) if len(data.classes) > 2 else 1
    clients = federation.at_once(len(seeds), len(set(seeds)) == 1)
    state = size_of(_state(federation, point))
    predictions = 4 * rows * outputs * np.dtype(federation.precision).itemsize
    return (6 + clients) * state + predictions + clients * federation.client_bytes()


def bytes_least(federation: Federation, point: Numbers) -> int:
    """How many bytes a run takes at the very least: its state, before a round and after it."""
    return 2 * size_of(_state(federation, point))


def bytes_ahead(federation: Federation) -> int:
    """The bytes of rows that stay on disk and are fetched for a round of one seed and for the next, at least 1."""
    streamed = federation.arrays[0] is None
    given = (federation.data, federation.schedule, federation.precision, federation.takes_whole)
    return 2 * bytes_of_round(*given) if streamed else 1


def bytes_of_part(federation: Federation, own: bool) -> int:
    """About how many bytes a part of the data keeps beside its runs: its rows, where they are its ``own`` for they were
    standardized anew, and its clients' whole batches, which are gathered once."""
    schedule, among = federation.schedule, federation.among
    assert among is not None
    gathered = len(schedule.sizes) * among.width if schedule.repeats else 0
    return (own * len(among.y) + gathered) * among.x.shape[1] * among.x.dtype.itemsize


def upload_bytes(federation: Federation, algorithm: Algorithm) -> int:
    """The bytes of an upload of a run with this algorithm. Raises UserError where it says something else."""
    upload = federation.shapes.upload
    found = federation.uplink.bytes_of(upload, algorithm.upload_bytes(upload))
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


def traffic(federation: Federation, rounds: int, seed: int) -> Traffic:
    """What a run of this seed sends."""
    shapes = federation.shapes
    return Traffic(
        schedule=federation.schedule.of(seed),
        rounds=rounds,
        edge_up=size_of(shapes.report),
        edge_of=federation.edge_of,
        frozen=federation.frozen,
    )


def filed(federation: Federation, point: Numbers) -> bool:
    """Whether clients keep something from round to round that is in files."""
    return federation.data.population is not None and bool(jax.tree.leaves(_state(federation, point)["clients"]))


def form(federation: Federation) -> str:
    """Equal for parts of the same data whose programs are one, given arguments of the same shapes."""
    schedule = federation.schedule
    shape = [federation.data.members, schedule.cohort_size, schedule.repeats, schedule.uneven]
    own = {name: values.tolist() for name, values in federation.per_client.items()}
    edges = None if federation.edge_of is None else federation.edge_of.tolist()
    validated = None if federation.data.offsets_val is None else (federation.evaluation.held > 0).tolist()
    return repr((shape, own, own and federation.problem.regularizer, edges, validated))


def drawn(federation: Federation) -> bool:
    """Whether a run depends on its seed: on cohorts, minibatches, a random start, coins that clients toss, or noise.

    Coins and noise are taken to matter where clients ask for them, whatever the odds.
    """
    objective, schedule, rng = federation.problem.objective, federation.schedule, np.random.default_rng(0)
    before = rng.bit_generator.state
    if federation.w0 is None:
        objective.start(federation.problem.shapes, rng)
    return (
        not (federation.every and schedule.repeats and isinstance(federation.uplink, Plain))
        or not federation.shapes.asked <= {"whole"}
        or rng.bit_generator.state != before
    )
