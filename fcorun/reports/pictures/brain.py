"""Pictures of maps of voxels, drawn by nilearn: weights, and other numbers."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from fcorun.data.datasets.images import VoxelGrid
from fcorun.reports.pictures.coefficient_picture import ModelView
from fcorun.reports.pictures.layout import FONT_SIZE, make_figure, pt
from fcorun.reports.pictures.picture import Picture

_MAX_MAPS = 4  # in a picture
_MAX_SLICES = 7
_ROW_HEIGHT = 0.9  # inches of a row
_WIDTH = 0.95  # of a row, as a share of the figure: numbers of the colours follow


@dataclass(frozen=True, eq=False)
class VoxelMap:
    """Numbers of voxels, a row of a picture.

    Attributes:
        text: the line above the row.
        values: the number of each voxel, (d,); voxels with 0 are grey.
        colours: the name of the colour map.
        low, high: the numbers at the ends of the colour map.
    """

    text: str
    values: Float[np.ndarray, " d"]
    colours: str
    low: float
    high: float


@dataclass(frozen=True)
class BrainMaps:
    """Maps of voxels, a row of axial slices each, with the lines of the title above them."""

    grid: VoxelGrid
    maps: Sequence[VoxelMap]
    title: Sequence[str]


def collect_weights(view: ModelView) -> BrainMaps | None:
    """Return the weights of a model, a map for each of its first four outputs; None unless features are voxels."""
    coefficients = view.coefficients
    if coefficients.grid is None:
        return None
    classes = coefficients.classes
    maps = []
    for k, name in enumerate(classes[:_MAX_MAPS]):
        weights = coefficients.weights[:, k]
        prefix = f"{name}: " if name else ""
        if prefix and len(classes) == 1:
            prefix = f"for {prefix}"
        text = f"{prefix}{int(np.count_nonzero(weights)):,} of {weights.size:,} voxels are not 0"
        largest = float(np.abs(weights).max())
        maps.append(VoxelMap(text, weights, "RdBu_r", -largest, largest))
    more = f"; the first {_MAX_MAPS} of {len(classes)} maps" if len(classes) > _MAX_MAPS else ""
    return BrainMaps(coefficients.grid, maps, [view.label, f"weights as trained, axial slices (z in mm){more}"])


def draw_maps(content: BrainMaps) -> Any:
    """Return the figure of maps, each a row of axial slices over the mask in grey.

    A mask of at most seven planes is shown whole; of others nilearn chooses the slices with the largest numbers. A
    glass brain is left out: it is right for images in MNI space only.
    """
    figure, axes = make_figure(len(content.maps), 1, wide=True, title=content.title, height=_ROW_HEIGHT)
    for ax, voxel_map in zip(axes, content.maps, strict=True):
        ax.set_title(voxel_map.text, loc="left", parse_math=False)
        ax.set(xticks=[], yticks=[])
        ax.set_axis_off()
    figure.draw_without_rendering()  # lays the rows out: nilearn draws into places, which no layout moves
    figure.set_layout_engine("none")
    for ax, voxel_map in zip(axes, content.maps, strict=True):
        left, bottom, width, height = ax.get_position().bounds
        _draw_slices(figure, (left, bottom, _WIDTH * width, height), content.grid, voxel_map)
    return figure


def _draw_slices(figure: Any, bounds: tuple[float, float, float, float], grid: VoxelGrid, voxel_map: VoxelMap) -> None:
    """Draw one row: slices along z through the mask and the map."""
    from nibabel.nifti1 import Nifti1Image
    from nilearn.plotting import find_cut_slices, plot_img

    image = Nifti1Image(grid.to_image(voxel_map.values), grid.affine)
    mask_image = Nifti1Image(grid.mask.astype(np.float32), grid.affine)
    has_values = bool(voxel_map.values.any())
    heights = (np.argwhere(grid.mask) @ grid.affine[2, :3]) + grid.affine[2, 3]
    cuts = np.unique(np.round(heights, 3))  # the z of each plane of the mask in mm, shown all if they are few
    if len(cuts) > _MAX_SLICES:
        planes = cuts
        cuts = np.asarray(find_cut_slices(image if has_values else mask_image, direction="z", n_cuts=_MAX_SLICES))
        cuts = cuts[(heights.min() <= cuts) & (cuts <= heights.max())]  # nilearn goes beyond a thin image
        if not len(cuts):
            cuts = planes[[len(planes) // 2]]
    threshold = 1e-12 * voxel_map.high
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nilearn warns about empty maps and thin images
        display = plot_img(
            mask_image,
            display_mode="z",
            cut_coords=cuts,
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
        if has_values:
            limits = {"vmin": voxel_map.low, "vmax": voxel_map.high}
            display.add_overlay(image, cmap=voxel_map.colours, threshold=threshold, colorbar=True, **limits)
        display.annotate(size=pt(FONT_SIZE))


PICTURE = Picture("brain", ModelView, collect_weights, draw_maps, place=1)
