"""The picture of weights of voxels, by nilearn."""

import warnings
from typing import Any

import numpy as np

from fcorun.datasets.voxel_grid import VoxelGrid
from fcorun.models.coefficients import Coefficients
from fcorun.reports.pictures.layout import make_figure
from fcorun.reports.pictures.style import FONT_SIZE, pt

_ROWS = 4  # maps in a picture
_SLICES = 7
_HIGH, _SAID = 1.25, 0.16  # inches of a row, and of the line above it


def draw_brain(found: Coefficients, label: str) -> Any:
    """brain.png: axial slices through the weights, those nilearn cuts where they are largest, over the mask in grey.

    No glass brain, for that would be right for images in MNI space only. Of several outputs, the first four have a row
    each. ``found`` must have a grid.
    """
    assert found.grid is not None
    alone = "for " if len(found.classes) == 1 and found.classes[0] else ""
    told = [f"{alone}{name}: " if name else "" for name in found.classes]
    rows = [(told[k], found.weights[:, k]) for k in range(min(len(told), _ROWS))]
    more = f"; the first {_ROWS} of {len(told)} maps" if len(told) > _ROWS else ""
    title = [label, f"weights as trained, axial slices (z in mm){more}"]
    figure, axes = make_figure(len(rows), 1, wide=True, title=title, height=_HIGH - _SAID, left=0.02, right=0.3,
                        top=0.1 + _SAID, bottom=0.02, gap=(0, _SAID))  # fmt: skip
    for ax, (name, values) in zip(axes, rows, strict=True):
        place = ax.get_position()
        ax.remove()
        said = f"{name}{int(np.count_nonzero(values)):,} of {values.size:,} voxels are not 0"
        figure.text(0.01, place.y1, said, va="bottom", parse_math=False)
        _slices(figure, place.bounds, found.grid, values)
    return figure


def _slices(figure, place: tuple[float, float, float, float], grid: VoxelGrid, values: np.ndarray) -> None:
    """One row: slices along z where the mask has voxels."""
    from nibabel.nifti1 import Nifti1Image
    from nilearn.plotting import plot_img

    volumes = (grid.to_image(values), grid.mask.astype(np.float32))
    image, mask = (Nifti1Image(volume, grid.affine) for volume in volumes)
    most, away = float(np.abs(values).max()), bool(values.any())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nilearn's remarks on empty maps and thin images
        cuts = _cuts(grid, image if away else mask)
        grey = {"cmap": "Greys", "vmin": 0, "vmax": 5, "colorbar": False, "black_bg": False, "annotate": False}
        near = {"threshold": 1e-12 * most, "resampling_interpolation": "nearest"}
        shown = plot_img(mask, display_mode="z", cut_coords=cuts, figure=figure, axes=place, **grey, **near)
        if away:
            shown.add_overlay(image, cmap="RdBu_r", vmin=-most, vmax=most, threshold=near["threshold"], colorbar=True)
        shown.annotate(size=pt(FONT_SIZE))


def _cuts(grid: VoxelGrid, image: Any) -> np.ndarray:
    """At which z, in mm, to cut: all planes of the mask if they are few, else where nilearn does, which of a thin image
    may also name planes beyond it."""
    from nilearn.plotting import find_cut_slices

    heights = (np.argwhere(grid.mask) @ grid.affine[2, :3]) + grid.affine[2, 3]
    planes = np.unique(np.round(heights, 3))
    if len(planes) <= _SLICES:
        return planes
    cuts = np.asarray(find_cut_slices(image, direction="z", n_cuts=_SLICES))
    return cuts[(heights.min() <= cuts) & (cuts <= heights.max())]
