"""The baseline of one client."""

from dataclasses import dataclass

from fcorun.base.config import Index
from fcorun.base.errors import UserError
from fcorun.methods.algorithms.algorithm import Baseline, Traits


@dataclass(frozen=True)
class OneClient(Baseline):
    """The solution on the rows of one client, ``client`` counted from 0, evaluated on the rows of all clients."""

    source = "textbook, solved by the method of @beck2009"

    client: Index = 0

    picks_client = True
    traits = Traits(mirrored=True)  # mirror maps do not change the problem

    def select_rows(self, offsets):
        if self.client >= len(offsets) - 1:
            raise UserError(f"`algo.client={self.client}` must be less than the number of clients, {len(offsets) - 1}")
        return slice(int(offsets[self.client]), int(offsets[self.client + 1]))
