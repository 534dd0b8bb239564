"""Metrics of rows that stay on disk: sums over blocks, read in the order of the file."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.engine.arrays import device_dtype, target_dtype
from fcorun.engine.evaluate import Evaluation, objective_weights
from fcorun.rows.host_rows import align, local_rows
from fcorun.rows.on_disk import DiskRows
from fcorun.system.arrays import DoubleBuffer

BLOCK_BYTES = 2**26  # bytes
Block = tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]


@dataclass(frozen=True)
class EvaluationSplit:
    """Rows that are measured, in the order of the file: x (n, d), y (n,), and their weight and offset "beside" them.

    Attributes:
        name: "train" or "val".
        data: the data that they are of.
    """

    name: str
    x: DiskRows
    y: np.ndarray
    row_extras: dict[str, np.ndarray]
    data: FederatedData


def block_length(width: int, dtype: Any) -> int:
    """How many rows of so many numbers are measured at once."""
    return max(1, BLOCK_BYTES // max(width * np.dtype(dtype).itemsize, 1))


def evaluation_splits(evaluation: Evaluation) -> list[EvaluationSplit]:
    """The rows of training, "train", and validation, "val", that are here."""
    data = evaluation.data
    given: list[tuple] = [("train", data.x, data.y, objective_weights(data, evaluation.client_weighting), data.offset)]
    if data.y_val is not None and len(data.y_val):
        given.append(("val", data.x_val, data.y_val, evaluation.validation_weights(), data.offset_val))
    found = []
    for name, x, y, weight, offset in given:
        ordered, order = local_rows(x).file_order()
        beside = {"weight": weight, "offset": offset}
        own = {key: align(x, values)[order] for key, values in beside.items() if values is not None}
        found.append(EvaluationSplit(name, ordered, align(x, y)[order], own, data))
    return found


def read_blocks(splits: list[EvaluationSplit], dtype: Any, buffers: DoubleBuffer) -> Iterator[tuple[str, Block]]:
    """x, y, and what is beside them, of these parts, in blocks of one shape; what the last one lacks has weight 0. A
    block is good until the one after the next is asked for."""
    rows = min(block_length(splits[0].x.shape[1], dtype), max(len(part.y) for part in splits))
    for part in splits:
        x, kind = part.x, target_dtype(part.data, dtype)
        for first in range(0, max(len(part.y), 1), rows):  # a host without any has one of nothing
            some = slice(first, first + rows)
            block = buffers.next_array((rows, x.shape[1]), device_dtype(x.dtype, dtype))
            here = len(part.y[some])
            x[some].read(block[:here])
            block[here:] = 0
            beside = {key: _filled(values[some], rows, dtype) for key, values in part.row_extras.items()}
            yield part.name, (block, _filled(part.y[some], rows, kind), beside)


def _filled(values: np.ndarray, count: int, dtype: Any) -> np.ndarray:
    found = np.zeros(count, dtype)
    found[: len(values)] = values
    return found
