"""Blocks of rows on disk for evaluation, read in the order of the file; metrics are sums over blocks."""

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

BLOCK_BYTES = 2**26  # bytes of a block
# x (n, d), y (n,), and the rows' weight and offset
Block = tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]


@dataclass(frozen=True)
class EvaluationSplit:
    """The rows of a split stored on this host, in the order of the file.

    Attributes:
        name: "train" or "val".
        x, y: the rows, (n, d) and (n,).
        row_extras: their "weight" and "offset", (n,).
        data: the data set of the split.
    """

    name: str
    x: DiskRows
    y: np.ndarray
    row_extras: dict[str, np.ndarray]
    data: FederatedData


def block_length(width: int, dtype: Any) -> int:
    """Return the number of rows of a block, of ``width`` numbers each."""
    return max(1, BLOCK_BYTES // max(width * np.dtype(dtype).itemsize, 1))


def evaluation_splits(evaluation: Evaluation) -> list[EvaluationSplit]:
    """Return this host's training rows, "train", and validation rows, "val"."""
    data = evaluation.data
    weight = objective_weights(data, evaluation.client_weighting)
    splits: list[tuple] = [("train", data.x, data.y, weight, data.offset)]
    if data.y_val is not None and len(data.y_val):
        splits.append(("val", data.x_val, data.y_val, evaluation.validation_weights(), data.offset_val))
    sorted_splits = []
    for name, x, y, weight, offset in splits:
        sorted_x, order = local_rows(x).file_order()
        extras = {"weight": weight, "offset": offset}
        extras = {key: align(x, values)[order] for key, values in extras.items() if values is not None}
        sorted_splits.append(EvaluationSplit(name, sorted_x, align(x, y)[order], extras, data))
    return sorted_splits


def read_blocks(splits: list[EvaluationSplit], dtype: Any, buffers: DoubleBuffer) -> Iterator[tuple[str, Block]]:
    """Yield the rows of these splits in blocks of one shape; rows that pad the last block have weight 0.

    A block may be overwritten when the block after the next one is read.
    """
    length = min(block_length(splits[0].x.shape[1], dtype), max(len(split.y) for split in splits))
    for split in splits:
        x, y_dtype = split.x, target_dtype(split.data, dtype)
        for first in range(0, max(len(split.y), 1), length):  # a host without rows yields one block of padding
            rows = slice(first, first + length)
            block = buffers.next_array((length, x.shape[1]), device_dtype(x.dtype, dtype))
            count = len(split.y[rows])
            x[rows].read(block[:count])
            block[count:] = 0
            extras = {key: _pad(values[rows], length, dtype) for key, values in split.row_extras.items()}
            yield split.name, (block, _pad(split.y[rows], length, y_dtype), extras)


def _pad(values: np.ndarray, count: int, dtype: Any) -> np.ndarray:
    padded = np.zeros(count, dtype)
    padded[: len(values)] = values
    return padded
