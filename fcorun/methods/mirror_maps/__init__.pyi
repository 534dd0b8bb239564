from .diagonal import Diagonal as Diagonal
from .entropy import Entropy as Entropy
from .hypentropy import HypEntropy as HypEntropy
from .hypentropy import SpectralHypEntropy as SpectralHypEntropy
from .mirror_map import Euclidean as Euclidean
from .mirror_map import MirrorMap as MirrorMap
from .p_norm import PNorm as PNorm
