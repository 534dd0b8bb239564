"""Communication: topologies, one a file, and the uplink between a client and the mean of the uploads."""

from fcorun.communication.base import Identity, Topology, Uplink
from fcorun.communication.star import Star
from fcorun.communication.tree import Tree

__all__ = ["Identity", "Star", "Topology", "Tree", "Uplink"]
