"""Networks: topologies, one a file, and what happens to an upload on its way."""

from fcorun.networks.base import Topology, Uplink
from fcorun.networks.plain import Plain
from fcorun.networks.star import Star
from fcorun.networks.tree import Tree

__all__ = ["Plain", "Star", "Topology", "Tree", "Uplink"]
