"""The picture of the weights of voxels, drawn by nilearn."""

import warnings
from typing import Any

import numpy as np

from fcorun.datasets.voxel_grid import VoxelGrid
from fcorun.models.coefficients import Coefficients
from fcorun.reports.pictures.layout import make_figure
from fcorun.reports.pictures.style import FONT_SIZE, pt

_MAX_MAPS = 4  # in a picture
_MAX_SLICES = 7
_ROW_HEIGHT, _LABEL_HEIGHT = 1.25, 0.16  # inches, of a row and of the line above it


def draw_brain(coefficients: Coefficients, label: str) -> Any:
    """Return the figure of brain.png: axial slices through the weights over the mask in grey.

    nilearn chooses the slices with the largest weights. Of several outputs, the first four have a row
    each. A glass brain is left out: it is right for images in MNI space only. ``coefficients`` must have a grid.
    """
    grid = coefficients.grid
    assert grid is not None
    classes = coefficients.classes
    maps = []
    for k, name in enumerate(classes[:_MAX_MAPS]):
        prefix = f"{name}: " if name else ""
        if prefix and len(classes) == 1:
            prefix = f"for {prefix}"
        maps.append((prefix, coefficients.weights[:, k]))
    more = f"; the first {_MAX_MAPS} of {len(classes)} maps" if len(classes) > _MAX_MAPS else ""
    figure, axes = make_figure(
        len(maps),
        1,
        wide=True,
        title=[label, f"weights as trained, axial slices (z in mm){more}"],
        height=_ROW_HEIGHT - _LABEL_HEIGHT,
        left=0.02,
        right=0.3,
        top=0.1 + _LABEL_HEIGHT,
        bottom=0.02,
        gap=(0, _LABEL_HEIGHT),
    )
    for ax, (prefix, weights) in zip(axes, maps, strict=True):
        position = ax.get_position()
        ax.remove()
        text = f"{prefix}{int(np.count_nonzero(weights)):,} of {weights.size:,} voxels are not 0"
        figure.text(0.01, position.y1, text, va="bottom", parse_math=False)
        _draw_slices(figure, position.bounds, grid, weights)
    return figure


def _draw_slices(figure: Any, bounds: tuple[float, float, float, float], grid: VoxelGrid, weights: np.ndarray) -> None:
    """Draw one row: slices along z through the mask and the weights."""
    from nibabel.nifti1 import Nifti1Image
    from nilearn.plotting import plot_img

    weight_image = Nifti1Image(grid.to_image(weights), grid.affine)
    mask_image = Nifti1Image(grid.mask.astype(np.float32), grid.affine)
    largest = float(np.abs(weights).max())
    has_weights = bool(weights.any())
    threshold = 1e-12 * largest
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nilearn warns about empty maps and thin images
        display = plot_img(
            mask_image,
            display_mode="z",
            cut_coords=_choose_cuts(grid, weight_image if has_weights else mask_image),
            figure=figure,
            axes=bounds,
            cmap="Greys",
            vmin=0,
            vmax=5,
            colorbar=False,
            black_bg=False,
            annotate=False,
            threshold=threshold,
            resampling_interpolation="nearest",
        )
        if has_weights:
            display.add_overlay(
                weight_image, cmap="RdBu_r", vmin=-largest, vmax=largest, threshold=threshold, colorbar=True
            )
        display.annotate(size=pt(FONT_SIZE))


def _choose_cuts(grid: VoxelGrid, image: Any) -> np.ndarray:
    """Return the z of each slice in mm: all planes of the mask if they are few, else the choice of nilearn."""
    from nilearn.plotting import find_cut_slices

    heights = (np.argwhere(grid.mask) @ grid.affine[2, :3]) + grid.affine[2, 3]
    planes = np.unique(np.round(heights, 3))
    if len(planes) <= _MAX_SLICES:
        return planes
    cuts = np.asarray(find_cut_slices(image, direction="z", n_cuts=_MAX_SLICES))
    return cuts[(heights.min() <= cuts) & (cuts <= heights.max())]  # nilearn goes beyond a thin image
