"""From which round on a metric is at its target, as closely as the evaluations of a run tell."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Reach(NamedTuple):
    """The rounds between which a run has come to a target, for good.

    Attributes:
        first: the earliest round that it can be, the one after the last evaluation without it; infinite: never.
        last: the first evaluation from which on every one is at the target.
    """

    first: float
    last: float

    def __str__(self) -> str:
        if np.isnan(self.last):
            return "unknown"
        if np.isinf(self.last):
            return "never"
        if self.first == self.last:
            return f"{self.last:,g}"
        return f"more than {self.first - 1:,g}, at most {self.last:,g}"


def reach(rounds: Sequence[float], there: Sequence[bool]) -> Reach:
    """Return when a run comes to a target, from the rounds of its evaluations and whether each is at the target.

    A target that is left again has not been reached.
    """
    kept = np.logical_and.accumulate(np.asarray(there, bool)[::-1])[::-1]
    if not kept.any():
        return Reach(np.inf, np.inf)
    place = int(np.argmax(kept))
    return Reach(rounds[place - 1] + 1.0 if place else float(rounds[0]), float(rounds[place]))
