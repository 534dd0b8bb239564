"""The weights of models whose features are voxels, as images."""

import numpy as np

from fcorun.datasets.voxel_grid import VoxelGrid
from fcorun.models.coefficients import Coefficients
from fcorun.records.formats import nifti_bytes


def mask_image(grid: VoxelGrid) -> bytes:
    """mask.nii.gz: 1 where voxels are features."""
    return nifti_bytes(grid.mask.astype(np.uint8), grid.affine)


def weights_image(grid: VoxelGrid, weights: np.ndarray) -> bytes:
    """weights.nii.gz: weights (d, k) as trained, float32, 0 outside of the mask; a volume an output if k > 1."""
    return nifti_bytes(grid.to_image(weights[:, 0] if weights.shape[1] == 1 else weights), grid.affine)


def coefficient_files(found: Coefficients) -> dict[str, bytes | str]:
    """What a record keeps of a model: coefficients.csv, and of voxels the mask and the weights as images."""
    told: dict[str, bytes | str] = {"coefficients.csv": found.to_csv()}
    if found.grid is not None:
        told["mask.nii.gz"] = mask_image(found.grid)
        told["weights.nii.gz"] = weights_image(found.grid, found.weights)
    return told
