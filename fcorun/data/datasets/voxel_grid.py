"""The positions of features that are voxels of images."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int


@dataclass(frozen=True, eq=False)
class VoxelGrid:
    """The voxels in a mask, in nilearn's order, that of ``mask.nonzero()``; each voxel is a feature.

    Attributes:
        mask: True for voxels that are features, shape (X, Y, Z).
        affine: the map from the indices of a voxel to millimetres, shape (4, 4).
    """

    mask: Bool[np.ndarray, "X Y Z"]
    affine: Float[np.ndarray, "4 4"]

    @property
    def n_voxels(self) -> int:
        """Return the number of voxels in the mask, d."""
        return int(self.mask.sum())

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return each voxel's name, made of its indices in the image: voxel 12 30 22."""
        return tuple(f"voxel {i} {j} {k}" for i, j, k in np.argwhere(self.mask).tolist())

    def to_image(self, values: np.ndarray) -> np.ndarray:
        """Return values (d,) as a float32 image (X, Y, Z), or values (d, k) as k images (X, Y, Z, k).

        Voxels outside the mask are 0.
        """
        out = np.zeros((*self.mask.shape, *values.shape[1:]), np.float32)
        out[self.mask] = values
        return out

    def neighbours(self) -> Int[np.ndarray, "d 6"]:
        """Return the numbers of the voxels that share a face with each voxel; d for neighbours outside the mask."""
        numbers = np.full(np.add(self.mask.shape, 2), self.n_voxels)  # padded by one voxel on every side
        numbers[1:-1, 1:-1, 1:-1][self.mask] = np.arange(self.n_voxels)
        positions = np.argwhere(self.mask) + 1
        steps = np.concatenate([np.eye(3, dtype=int), -np.eye(3, dtype=int)])
        return np.stack([numbers[tuple((positions + step).T)] for step in steps], axis=1)
