"""Classes of clients of similar sizes, whose whole data are padded to the rows of the largest client of the class."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

_MOST_CLASSES = 4  # each takes as long to compile as the first one


class SizeClass(NamedTuple):
    """Clients whose whole data are computed with one number of rows.

    Attributes:
        clients: the numbers of the clients, from the smallest to the largest.
        length: the number of rows of the largest one.
    """

    clients: Int[np.ndarray, " S"]
    length: int


def split_by_size(sizes: Int[np.ndarray, " M"], min_rows_saved: float) -> Sequence[SizeClass]:
    """Return classes of all clients, so that each further class saves at least ``min_rows_saved`` rows of padding.

    Splits a class as long as that pays, and takes the split that saves most. Returns no classes where no split pays.
    """
    parts = [np.argsort(sizes, kind="stable")]
    while len(parts) < _MOST_CLASSES:
        splits = [_best_split(sizes[part]) for part in parts]
        p = int(np.argmax([saved for saved, _ in splits]))
        saved, position = splits[p]
        if saved < min_rows_saved:
            break
        parts[p : p + 1] = np.split(parts[p], [position])
    return [SizeClass(part, int(sizes[part[-1]])) for part in parts] if len(parts) > 1 else []


def _best_split(increasing: Int[np.ndarray, " S"]) -> tuple[int, int]:
    """Return how many rows of padding the best split of clients with these sizes saves, and its position."""
    positions = np.arange(len(increasing))
    saved = positions * (increasing[-1] - np.roll(increasing, 1))
    return int(saved.max()), int(saved.argmax())
