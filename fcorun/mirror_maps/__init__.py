"""Mirror maps h, one a file."""

from fcorun.mirror_maps.base import MirrorMap
from fcorun.mirror_maps.euclidean import Euclidean

__all__ = ["Euclidean", "MirrorMap"]
