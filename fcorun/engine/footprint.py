"""What runs take: bytes of memory, and bytes sent."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fcorun.engine.federation import Federation, Numbers
from fcorun.engine.traffic import Traffic
from fcorun.networks.base import size_of


def _state(federation: Federation, point: Numbers) -> Any:
    """What the state of one run looks like."""
    numbers, z0 = federation.stack([point]), federation.duals([0])
    return federation.shape_of(federation.start, numbers, z0)


def structure(federation: Federation, point: Numbers) -> Any:
    """The structure of a state, to put its leaves into."""
    return jax.tree.structure(_state(federation, point))


def bytes_each(federation: Federation, point: Numbers, seeds: Sequence[int]) -> int:
    """About how many bytes of memory each further run of a batch with these seeds takes: states, local work,
    predictions."""
    data, schedule = federation.data, federation.schedule
    rows = len(data.y) + (0 if data.y_val is None else len(data.y_val))
    outputs = len(data.classes) if len(data.classes) > 2 else 1
    apart = len(set(seeds)) > 1 or jax.default_backend() != "cpu"
    clients = schedule.cohort_size if apart else 0  # at a time, beside one
    batch = schedule.batch * data.x.shape[1]
    state = size_of(_state(federation, point))
    return (6 + clients) * state + (4 * rows * outputs + clients * batch) * np.dtype(federation.precision).itemsize


def traffic(federation: Federation, rounds: int, seed: int) -> Traffic:
    """What a run of this seed sends."""
    shapes = federation.shapes
    return Traffic(
        schedule=federation.schedule.of(seed),
        rounds=rounds,
        up=federation.uplink.bytes_of(shapes.upload),
        down=size_of(shapes.broadcast),
        edge_up=size_of(shapes.report),
        edge_of=federation.edge_of,
        frozen=federation.frozen,
    )
