"""Mirror maps h, one in each file."""

from fcorun.mirror_maps.base import MirrorMap
from fcorun.mirror_maps.diagonal import Diagonal
from fcorun.mirror_maps.entropy import Entropy
from fcorun.mirror_maps.euclidean import Euclidean
from fcorun.mirror_maps.hypentropy import HypEntropy
from fcorun.mirror_maps.p_norm import PNorm
from fcorun.mirror_maps.spectral_hypentropy import SpectralHypEntropy

__all__ = ["Diagonal", "Entropy", "Euclidean", "HypEntropy", "MirrorMap", "PNorm", "SpectralHypEntropy"]
