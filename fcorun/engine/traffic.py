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
    """The shapes of an algorithm's messages, and the optional data that its clients access.

    Attributes:
        upload, broadcast, edge_upload: what a client sends, what it receives, and what an edge sends.
        accessed: the names of "key_bits", "shared_uniforms" and "whole" that ``local`` reads.
    """

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
    """Trace the shapes of the messages; ``shape_of`` returns the shapes of a function's result."""
    accessed: set[str] = set()

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
        return trace_outputs(algorithm, problem, problem.zeros(dtype), local, frozen=local_frozen if frozen else None)

    upload, broadcast, edge_upload = shape_of(trees)
    return MessageShapes(upload, broadcast, edge_upload, accessed)


@dataclass(frozen=True)
class Traffic:
    """The traffic of a run: each client of a cohort uploads and downloads once a round, and on a tree so do edges.

    Attributes:
        edge_upload_bytes: bytes of an edge's upload.
        edge_of: the edge of each client, (M,), or None without a tree.
        frozen: whether the server's model is fixed, so that clients send nothing.
    """

    schedule: Schedule
    rounds: int
    edge_upload_bytes: int = 0
    edge_of: np.ndarray | None = None
    frozen: bool = False

    def bytes_after(self, rounds: int, up: int, down: int) -> dict[str, int]:
        """Return the byte counters after ``rounds`` rounds of uploads of ``up`` and broadcasts of ``down`` bytes."""
        if self.edge_of is None:
            uploads = 0 if self.frozen else rounds * self.schedule.cohort_size
            return {"bytes_up": uploads * up, "bytes_down": uploads * down}
        uploads = rounds * self.schedule.cohort_size * (self.schedule.edge_rounds or 1)
        edges = int(self._active_edges[rounds])
        return {
            "bytes_up": uploads * up,
            "bytes_down": uploads * down,
            "edge_bytes_up": edges * self.edge_upload_bytes,
            "edge_bytes_down": edges * down,
        }

    @cached_property
    def _active_edges(self) -> np.ndarray:
        """Count the edges that took part in rounds 0, 1, ... cumulatively, each edge once a round."""
        edge_of = np.asarray(self.edge_of)
        if self.schedule.cohort_size == len(edge_of):
            return np.arange(self.rounds + 1) * len(np.unique(edge_of))
        counts = [len(np.unique(edge_of[self.schedule.draw_cohort(number)])) for number in range(self.rounds)]
        return np.cumsum([0, *counts])
