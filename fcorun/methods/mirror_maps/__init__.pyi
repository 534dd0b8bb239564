from .diagonal import Diagonal
from .entropy import Entropy
from .hypentropy import HypEntropy
from .mirror_map import Euclidean, MirrorMap
from .p_norm import PNorm
from .spectral_hypentropy import SpectralHypEntropy

__all__ = ["Diagonal", "Entropy", "Euclidean", "HypEntropy", "MirrorMap", "PNorm", "SpectralHypEntropy"]
