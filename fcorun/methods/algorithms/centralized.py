"""The centralized baseline."""

from dataclasses import dataclass

from fcorun.methods.algorithms.algorithm import Baseline, Traits


@dataclass(frozen=True)
class Centralized(Baseline):
    """The solution on the pooled rows of all clients, certified in float64 by ``fcorun.methods.problem.solver``."""

    source = "textbook, solved by the method of @beck2009"
    traits = Traits(mirrored=True)  # mirror maps do not change the problem

    def select_rows(self, offsets):
        return slice(None)
