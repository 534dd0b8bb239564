"""A star."""

from dataclasses import dataclass

from fcorun.communication.base import Topology


@dataclass(frozen=True)
class Star(Topology):
    """All clients talk to the server."""

    source = "textbook"

    def assign_edges(self, data):
        return None
