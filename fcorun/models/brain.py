"""The weights of models whose features are voxels, as images."""

import numpy as np

from fcorun.datasets.grid import Grid
from fcorun.models.coefficients import Coefficients
from fcorun.records.formats import nifti_bytes


def mask_image(grid: Grid) -> bytes:
    """mask.nii.gz: 1 where voxels are features."""
    return nifti_bytes(grid.mask.astype(np.uint8), grid.affine)


def weights_image(grid: Grid, weights: np.ndarray) -> bytes:
    """weights.nii.gz: weights (d, k) as trained, float32, 0 outside of the mask; a volume an output if k > 1."""
    return nifti_bytes(grid.image(weights[:, 0] if weights.shape[1] == 1 else weights), grid.affine)


def files_of(found: Coefficients) -> dict[str, bytes | str]:
    """What a record keeps of a model: coefficients.csv, and of voxels the mask and the weights as images."""
    told: dict[str, bytes | str] = {"coefficients.csv": found.csv()}
    if found.grid is not None:
        told["mask.nii.gz"] = mask_image(found.grid)
        told["weights.nii.gz"] = weights_image(found.grid, found.weights)
    return told
