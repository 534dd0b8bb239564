from .asynchronous import Asynchronous
from .compressor import Compressor
from .contracts import Channel, Identity, Star, Topology
from .graph import Graph
from .half_precision import HalfPrecision
from .natural_compression import NaturalCompression
from .qsgd import QSGD
from .random_k import RandomK
from .scaled_sign import ScaledSign
from .sparse_broadcast import SparseBroadcast
from .sparsifier import Sparsifier
from .top_k import TopK
from .tree import Tree

__all__ = [
    "QSGD",
    "Asynchronous",
    "Channel",
    "Compressor",
    "Graph",
    "HalfPrecision",
    "Identity",
    "NaturalCompression",
    "RandomK",
    "ScaledSign",
    "SparseBroadcast",
    "Sparsifier",
    "Star",
    "TopK",
    "Topology",
    "Tree",
]
