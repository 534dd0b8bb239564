from .diagonal import Diagonal as Diagonal
from .entropy import Entropy as Entropy
from .entropy import HypEntropy as HypEntropy
from .entropy import SpectralHypEntropy as SpectralHypEntropy
from .mirror_map import Euclidean as Euclidean
from .mirror_map import MirrorMap as MirrorMap
from .p_norm import PNorm as PNorm
