from .base import Channel, Topology
from .compressor import Compressor
from .half_precision import HalfPrecision
from .identity import Identity
from .natural_compression import NaturalCompression
from .qsgd import QSGD
from .random_k import RandomK
from .scaled_sign import ScaledSign
from .sparsifier import Sparsifier
from .star import Star
from .top_k import TopK
from .tree import Tree

__all__ = [
    "QSGD",
    "Channel",
    "Compressor",
    "HalfPrecision",
    "Identity",
    "NaturalCompression",
    "RandomK",
    "ScaledSign",
    "Sparsifier",
    "Star",
    "TopK",
    "Topology",
    "Tree",
]
