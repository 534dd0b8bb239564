"""Metrics of rows that stay on disk: sums over blocks, read in the order of the file."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.datasets.on_disk import OnDisk
from fcorun.datasets.own import along, held
from fcorun.engine.arrays import kept_as, target_type
from fcorun.engine.evaluate import Evaluation, row_weights
from fcorun.system.arrays import Buffers

BLOCK = 2**26  # bytes
Block = tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]


@dataclass(frozen=True)
class Part:
    """Rows that are measured, in the order of the file: x (n, d), y (n,), and their weight and offset "beside" them.

    Attributes:
        name: "train" or "val".
        data: the data that they are of.
    """

    name: str
    x: OnDisk
    y: np.ndarray
    beside: dict[str, np.ndarray]
    data: FederatedData


def rows_of_block(width: int, dtype: Any) -> int:
    """How many rows of so many numbers are measured at once."""
    return max(1, BLOCK // max(width * np.dtype(dtype).itemsize, 1))


def parts(evaluation: Evaluation) -> list[Part]:
    """The rows of training, "train", and validation, "val", that are here."""
    data = evaluation.data
    given: list[tuple] = [("train", data.x, data.y, row_weights(data, evaluation.client_weighting), data.offset)]
    if data.y_val is not None and len(data.y_val):
        given.append(("val", data.x_val, data.y_val, evaluation.held_weights(), data.offset_val))
    found = []
    for name, x, y, weight, offset in given:
        ordered, order = held(x).in_order()
        beside = {"weight": weight, "offset": offset}
        own = {key: along(x, values)[order] for key, values in beside.items() if values is not None}
        found.append(Part(name, ordered, along(x, y)[order], own, data))
    return found


def blocks(parts: list[Part], dtype: Any, buffers: Buffers) -> Iterator[tuple[str, Block]]:
    """x, y, and what is beside them, of these parts, in blocks of one shape; what the last one lacks has weight 0. A
    block is good until the one after the next is asked for."""
    rows = min(rows_of_block(parts[0].x.shape[1], dtype), max(len(part.y) for part in parts))
    for part in parts:
        x, kind = part.x, target_type(part.data, dtype)
        for first in range(0, max(len(part.y), 1), rows):  # a host without any has one of nothing
            some = slice(first, first + rows)
            block = buffers.next((rows, x.shape[1]), kept_as(x.dtype, dtype))
            here = len(part.y[some])
            x[some].read(block[:here])
            block[here:] = 0
            beside = {key: _filled(values[some], rows, dtype) for key, values in part.beside.items()}
            yield part.name, (block, _filled(part.y[some], rows, kind), beside)


def _filled(values: np.ndarray, count: int, dtype: Any) -> np.ndarray:
    found = np.zeros(count, dtype)
    found[: len(values)] = values
    return found
