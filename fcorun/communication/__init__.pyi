from .base import Channel, Topology
from .identity import Identity
from .star import Star
from .tree import Tree

__all__ = ["Channel", "Identity", "Star", "Topology", "Tree"]
