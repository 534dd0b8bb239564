"""A star."""

from dataclasses import dataclass

from fcorun.networks.base import Topology


@dataclass(frozen=True)
class Star(Topology):
    """All clients talk to the server."""

    source = "textbook"

    def edge_of(self, data):
        return None
