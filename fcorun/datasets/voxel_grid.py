"""Where the voxels of images lie that are the features of data."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int


@dataclass(frozen=True, eq=False)
class VoxelGrid:
    """The voxels in a mask, in the order of ``mask.nonzero()``, which is nilearn's: features are voxels.

    Attributes:
        mask: which voxels of the images are features, shape (X, Y, Z).
        affine: from the indices of a voxel to millimetres, shape (4, 4).
    """

    mask: Bool[np.ndarray, "X Y Z"]
    affine: Float[np.ndarray, "4 4"]

    @property
    def n_voxels(self) -> int:
        """How many voxels the mask has, d."""
        return int(self.mask.sum())

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of each voxel its indices in the image: voxel 12 30 22."""
        return tuple(f"voxel {i} {j} {k}" for i, j, k in np.argwhere(self.mask).tolist())

    def to_image(self, values: np.ndarray) -> np.ndarray:
        """Values (d,) or (d, k) as an image (X, Y, Z) or k of them, (X, Y, Z, k); 0 outside of the mask."""
        out = np.zeros((*self.mask.shape, *values.shape[1:]), np.float32)
        out[self.mask] = values
        return out

    def neighbours(self) -> Int[np.ndarray, "d 6"]:
        """The voxels that share a face with each, by their number; d where the mask has none."""
        number = np.full(np.add(self.mask.shape, 2), self.n_voxels)
        number[1:-1, 1:-1, 1:-1][self.mask] = np.arange(self.n_voxels)
        places = np.argwhere(self.mask) + 1
        steps = np.concatenate([np.eye(3, dtype=int), -np.eye(3, dtype=int)])
        return np.stack([number[tuple((places + step).T)] for step in steps], axis=1)
