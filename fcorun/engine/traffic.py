"""Bytes that clients, edges and the server send each other."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fcorun.algorithms.base import Algorithm, PyTree
from fcorun.algorithms.local_data import LocalData, RecordingLocalData
from fcorun.algorithms.output_check import trace_outputs
from fcorun.datasets.base import FederatedData
from fcorun.engine.arrays import first_row
from fcorun.engine.schedule import Schedule
from fcorun.problem.problem import Problem


class MessageShapes(NamedTuple):
    """The shapes of uploads, of what is broadcast, of what an edge reports; what clients ask for: their
    random numbers, ``bits`` and ``chances``, and their ``whole`` data."""

    upload: PyTree
    broadcast: PyTree
    edge_upload: PyTree
    accessed: set[str]


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
    """The shapes of what is sent; ``shape_of`` gives those of what a function returns."""
    asked: set[str] = set()

    def trees():
        rows = jnp.zeros((1 if schedule.full_batch_steps else int(schedule.steps.max()), 1), jnp.int32)
        first = LocalData(*first_row(data, dtype), rows, dtype).with_whole_data(rows[0])
        steps = {
            "full_batch_steps": schedule.full_batch_steps,
            "uneven_steps": schedule.uneven_steps,
            "whole": first.whole,
        }
        local, still = (
            RecordingLocalData(first.x, first.y, rows, dtype, **steps, frozen=kept, accessed=asked)
            for kept in (False, True)
        )
        return trace_outputs(algorithm, problem, problem.zeros(dtype), local, frozen=still if frozen else None)

    upload, received, report = shape_of(trees)
    return MessageShapes(upload, received, report, asked)


@dataclass(frozen=True)
class Traffic:
    """What each of a round's clients sends and receives once, and on a tree what an edge does.

    Attributes:
        edge_up: bytes of what an edge reports.
        edge_of: the edge of each client, (M,), or None.
        frozen: whether the server's model stays as it is: clients have it, and send nothing.
    """

    schedule: Schedule
    rounds: int
    edge_upload_bytes: int = 0
    edge_of: np.ndarray | None = None
    frozen: bool = False

    def bytes_after(self, rounds: int, up: int, down: int) -> dict[str, int]:
        """The counters after so many rounds, where an upload has ``up`` bytes and what is broadcast ``down``."""
        if self.edge_of is None:
            clients = 0 if self.frozen else rounds * self.schedule.cohort_size
            return {"bytes_up": clients * up, "bytes_down": clients * down}
        clients, edges = rounds * self.schedule.cohort_size * (self.schedule.edge_rounds or 1), self._edges[rounds]
        found = {"bytes_up": clients * up, "bytes_down": clients * down}
        return found | {"edge_bytes_up": int(edges) * self.edge_upload_bytes, "edge_bytes_down": int(edges) * down}

    @cached_property
    def _edges(self) -> np.ndarray:
        """How many edges have taken part after 0, 1, ... rounds, each counted once a round."""
        edge_of = np.asarray(self.edge_of)
        if self.schedule.cohort_size == len(edge_of):
            return np.arange(self.rounds + 1) * len(np.unique(edge_of))
        met = [len(np.unique(edge_of[self.schedule.draw_cohort(r)])) for r in range(self.rounds)]
        return np.cumsum([0, *met])
