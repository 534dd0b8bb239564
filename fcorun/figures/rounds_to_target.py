"""From which round on a metric is at its target, as closely as the evaluations of a run tell."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class RoundsToTarget(NamedTuple):
    """The rounds between which a run has come to a target, for good.

    Attributes:
        first: the earliest round that it can be, the one after the last evaluation without it; infinite: never.
        last: the first evaluation from which on every one is at the target.
    """

    earliest: float
    latest: float

    def __str__(self) -> str:
        if np.isnan(self.latest):
            return "unknown"
        if np.isinf(self.latest):
            return "never"
        if self.earliest == self.latest:
            return f"{self.latest:,g}"
        return f"more than {self.earliest - 1:,g}, at most {self.latest:,g}"


def find_rounds_to_target(rounds: Sequence[float], at_target: Sequence[bool]) -> RoundsToTarget:
    """Return when a run comes to a target, from the rounds of its evaluations and whether each is at the target.

    A target that is left again has not been reached.
    """
    kept = np.logical_and.accumulate(np.asarray(at_target, bool)[::-1])[::-1]
    if not kept.any():
        return RoundsToTarget(np.inf, np.inf)
    place = int(np.argmax(kept))
    return RoundsToTarget(rounds[place - 1] + 1.0 if place else float(rounds[0]), float(rounds[place]))
