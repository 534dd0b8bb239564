"""The centralized baseline."""

from dataclasses import dataclass

from fcorun.algorithms.base import Baseline
from fcorun.config import Count, Positive


@dataclass(frozen=True)
class Centralized(Baseline):
    """All clients' rows pooled, solved to a certified tolerance in float64 (see fcorun.solver.minimize)."""

    tolerance: Positive = 1e-9
    max_iterations: Count = 100_000

    def rows(self, offsets):
        return slice(None)
