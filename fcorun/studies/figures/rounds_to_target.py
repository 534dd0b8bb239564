"""Rounds until a metric reaches its target, as precisely as the evaluations of a run tell."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class RoundsToTarget(NamedTuple):
    """Bounds on the round from which on a run stays at a target.

    Attributes:
        earliest: the round after the last evaluation that is not at the target; infinite if the run never reaches it.
        latest: the round of the first evaluation from which on every evaluation is at the target.
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
    """Find the round of a target from the rounds of the evaluations and whether each of them is at the target.

    A target that a run leaves again does not count as reached.
    """
    stays_at_target = np.logical_and.accumulate(np.asarray(at_target, bool)[::-1])[::-1]
    if not stays_at_target.any():
        return RoundsToTarget(np.inf, np.inf)
    first = int(np.argmax(stays_at_target))
    earliest = rounds[first - 1] + 1.0 if first else float(rounds[0])
    return RoundsToTarget(earliest, float(rounds[first]))
