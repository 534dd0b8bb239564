"""The centralized baseline."""

from dataclasses import dataclass

from fcorun.algorithms.base import Baseline


@dataclass(frozen=True)
class Centralized(Baseline):
    """All clients' rows pooled, solved to a certified tolerance in float64 (see fcorun.problem.solver.minimize)."""

    def rows(self, offsets):
        return slice(None)
