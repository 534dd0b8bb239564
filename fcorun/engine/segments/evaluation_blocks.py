"""Blocks of rows on disk for evaluation, read in the order of the file; metrics are sums over blocks."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fcorun.data.rows.rows import Rows
from fcorun.engine.device_rows import device_dtype, row_extras
from fcorun.engine.evaluate import Evaluation
from fcorun.engine.segments.row_fetching import DoubleBuffer

BLOCK_BYTES = 2**26  # bytes of a block
# x (n, d), y (n,), and the rows' weight and offset
Block = tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]


def block_length(width: int, dtype: Any) -> int:
    """Return the number of rows of a block, of ``width`` numbers each."""
    return max(1, BLOCK_BYTES // max(width * np.dtype(dtype).itemsize, 1))


def evaluation_splits(evaluation: Evaluation) -> dict[str, Rows]:
    """Return this host's training rows, "train", and validation rows, "val", each in the order of the file.

    Training rows have their weights in F, validation rows those of a mean over all of them; each sums to one over all
    hosts.
    """
    data = evaluation.data
    splits = {"train": replace(data.train, weight=data.train.objective_weights(evaluation.client_weighting))}
    if data.validation is not None:
        splits["val"] = replace(data.validation, weight=evaluation.validation_weights())
    return {name: rows.local.take(rows.local.x.file_order()) for name, rows in splits.items()}


def read_blocks(
    splits: dict[str, Rows], y_dtype: Any, dtype: Any, buffers: DoubleBuffer
) -> Iterator[tuple[str, Block]]:
    """Yield the rows of these splits in blocks of one shape; rows that pad the last block have weight 0.

    A block may be overwritten when the block after the next one is read.
    """
    width = splits["train"].x.shape[1]
    length = min(block_length(width, dtype), max(1, *map(len, splits.values())))
    for name, rows in splits.items():
        for first in range(0, max(len(rows), 1), length):  # a host without rows yields one block of padding
            some = rows.take(slice(first, first + length))
            block = buffers.next_array((length, width), device_dtype(rows.x.dtype, dtype))
            some.x.read(block[: len(some)])
            block[len(some) :] = 0
            extras = {key: _pad(values, length, dtype) for key, values in row_extras(some).items()}
            yield name, (block, _pad(some.y, length, y_dtype), extras)


def _pad(values: np.ndarray, count: int, dtype: Any) -> np.ndarray:
    padded = np.zeros(count, dtype)
    padded[: len(values)] = values
    return padded
