"""Independent repetitions of runs with several seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# the values of the keys of seeds that vary on the data of a run, from cohorts to data; None for a seed that changes
# nothing
Replicate = tuple[Any, ...]


def group_repetitions(replicates: Sequence[Replicate]) -> list[list[int]]:
    """Return the positions of the replicates of each independent repetition.

    Runs on the same data with other cohorts are no independent repetitions of the data. Where seeds of data vary, each
    is one repetition, also if a single one is left; else each seed of splits; else each seed of cohorts. The last value
    of a replicate says which repetition it belongs to. Runs without seeds are repetitions each.
    """
    if not all(replicates):
        return [[position] for position in range(len(replicates))]
    groups: dict[Any, list[int]] = {}
    for position, seeds in enumerate(replicates):
        groups.setdefault(seeds[-1], []).append(position)
    return [*groups.values()]


def average_repetitions(values: Mapping[Replicate, float]) -> np.ndarray:
    """Return the mean over the replicates of each independent repetition (n,), as in ``group_repetitions``."""
    of_replicates = np.array([*values.values()])
    return np.array([of_replicates[group].mean() for group in group_repetitions([*values])])


def pair_replicates(
    first: Mapping[Replicate, float], second: Mapping[Replicate, float]
) -> dict[Replicate, tuple[float, float]]:
    """Return the first and the second value of each replicate that both have."""
    if draws_nothing(first) and not draws_nothing(second):
        return {replicate: (a, b) for replicate, (b, a) in pair_replicates(second, first).items()}
    pairs = {}
    for replicate, value in first.items():
        other = second.get(replicate, second.get((None, *replicate[1:])))
        if other is not None:
            pairs[replicate] = (value, other)
    return pairs


def draws_nothing(values: Mapping[Replicate, float]) -> bool:
    """Return whether the seed of cohorts changes nothing, as for a baseline."""
    return any(replicate[:1] == (None,) for replicate in values)
