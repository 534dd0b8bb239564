"""The star topology."""

from dataclasses import dataclass

from fcorun.communication.base import Topology


@dataclass(frozen=True)
class Star(Topology):
    """A topology whose clients all communicate with the server."""

    source = "textbook"

    def assign_edges(self, clients):
        return None
