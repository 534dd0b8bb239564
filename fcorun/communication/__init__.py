"""Networks: topologies, one a file, and what happens to an upload on its way."""

from fcorun.communication.base import Topology, Uplink
from fcorun.communication.identity import Identity
from fcorun.communication.star import Star
from fcorun.communication.tree import Tree

__all__ = ["Identity", "Star", "Topology", "Tree", "Uplink"]
