"""The baseline of one client."""

from dataclasses import dataclass

from fcorun.algorithms.base import Baseline, Traits
from fcorun.config import Index
from fcorun.errors import UserError


@dataclass(frozen=True)
class OneClient(Baseline):
    """One client alone, ``client`` counted from 0, solved on its own rows and evaluated on everybody's."""

    source = "textbook, solved by the method of @beck2009"

    client: Index = 0

    traits = Traits(mirrored=True)  # the maps that are let through leave the problem as it is

    def select_rows(self, offsets):
        if self.client >= len(offsets) - 1:
            raise UserError(f"algo.client={self.client} must be less than the number of clients, {len(offsets) - 1}")
        return slice(int(offsets[self.client]), int(offsets[self.client + 1]))
