"""The weights of models whose features are voxels, as NIfTI images."""

import numpy as np

from fcorun.datasets.voxel_grid import VoxelGrid
from fcorun.models.coefficients import Coefficients
from fcorun.records.formats import nifti_bytes


def mask_image(grid: VoxelGrid) -> bytes:
    """Return the content of mask.nii.gz: 1 at the voxels that are features, else 0."""
    return nifti_bytes(grid.mask.astype(np.uint8), grid.affine)


def weights_image(grid: VoxelGrid, weights: np.ndarray) -> bytes:
    """Return the content of weights.nii.gz: weights (d, k) as trained, float32, 0 outside of the mask.

    The image has a volume for each output if k > 1.
    """
    return nifti_bytes(grid.to_image(weights[:, 0] if weights.shape[1] == 1 else weights), grid.affine)


def coefficient_files(coefficients: Coefficients) -> dict[str, bytes | str]:
    """Return the files of a model by name: coefficients.csv, and of voxels the mask and the weights as images."""
    files: dict[str, bytes | str] = {"coefficients.csv": coefficients.to_csv()}
    if coefficients.grid is not None:
        files["mask.nii.gz"] = mask_image(coefficients.grid)
        files["weights.nii.gz"] = weights_image(coefficients.grid, coefficients.weights)
    return files
