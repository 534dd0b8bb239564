"""Metrics of rows that stay on disk: sums over blocks, read in the order of the file."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fcorun.engine.arrays import kept_as, target_type
from fcorun.engine.evaluate import Evaluation, row_weights
from fcorun.system.arrays import aligned

BLOCK = 2**26  # bytes
Block = tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]


def rows_of_block(width: int, dtype: Any) -> int:
    """How many rows of so many numbers are measured at once."""
    return max(1, BLOCK // max(width * np.dtype(dtype).itemsize, 1))


def blocks(evaluation: Evaluation, dtype: Any) -> Iterator[tuple[str, Block]]:
    """The rows of training, "train", and validation, "val": x, y, and their weight and offset, in blocks of one shape;
    what the last one lacks has weight 0."""
    data = evaluation.data
    parts: list[tuple] = [("train", data.x, data.y, row_weights(data, evaluation.client_weighting), data.offset)]
    if data.y_val is not None and len(data.y_val):
        parts.append(("val", data.x_val, data.y_val, evaluation.held_weights(), data.offset_val))
    rows = min(rows_of_block(data.x.shape[1], dtype), max(len(part[2]) for part in parts))
    for name, x, y, weight, offset in parts:
        ordered, order = x.in_order()
        beside = {"weight": weight, "offset": offset}
        for first in range(0, len(order), rows):
            some = order[first : first + rows]
            block = aligned((rows, x.shape[1]), kept_as(x.dtype, dtype))
            ordered[first : first + rows].read(block[: len(some)])
            block[len(some) :] = 0
            given = {key: _filled(v[some], rows, dtype) for key, v in beside.items() if v is not None}
            yield name, (block, _filled(y[some], rows, target_type(data, dtype)), given)


def _filled(values: np.ndarray, count: int, dtype: Any) -> np.ndarray:
    found = np.zeros(count, dtype)
    found[: len(values)] = values
    return found
