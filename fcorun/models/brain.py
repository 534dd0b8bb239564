"""The weights of models whose features are voxels, as images and as a picture by nilearn."""

import threading
import warnings

import numpy as np

from fcorun.datasets.grid import Grid
from fcorun.models.coefficients import Coefficients
from fcorun.records.formats import nifti_bytes

_ROWS = 4  # maps in a picture
_SLICES = 7
_WIDE, _HIGH, _TITLE = 6.9, 1.25, 0.3  # inches
_drawing = threading.Lock()


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


def draw_brain(found: Coefficients, label: str, format: str = "png") -> bytes:
    """brain.png as the content of a file of this format: axial slices through the weights, those nilearn cuts where
    they are largest, over the mask in grey.

    No glass brain, for that would be right for images in MNI space only. Of several outputs, the first four have a row
    each. ``found`` must have a grid.
    """
    assert found.grid is not None
    alone = "for " if len(found.classes) == 1 and found.classes[0] else ""
    told = [f"{alone}{name}: " if name else "" for name in found.classes]
    rows = [(told[k], found.weights[:, k]) for k in range(min(len(told), _ROWS))]
    more = f"; the first {_ROWS} of {len(told)} maps" if len(told) > _ROWS else ""
    return _draw(found.grid, rows, f"{label}\nweights as trained, axial slices (z in mm){more}", format)


def _draw(grid: Grid, rows: list[tuple[str, np.ndarray]], title: str, format: str) -> bytes:
    import io

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tall = _TITLE + len(rows) * _HIGH
    with _drawing:
        figure = Figure(figsize=(_WIDE, tall), dpi=200)
        FigureCanvasAgg(figure)
        figure.suptitle(title, fontsize=7, y=1 - 0.04 / tall, parse_math=False)
        for i, (name, values) in enumerate(rows):
            bottom = (len(rows) - 1 - i) * _HIGH / tall
            away = int(np.count_nonzero(values))
            told = f"{name}{away:,} of {values.size:,} voxels are not 0"
            figure.text(0.01, bottom + 0.99 * _HIGH / tall, told, size=7, va="top", parse_math=False)
            _slices(figure, (0.0, bottom, 0.97, 0.82 * _HIGH / tall), grid, values)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=format)
    return buffer.getvalue()


def _slices(figure, place: tuple[float, float, float, float], grid: Grid, values: np.ndarray) -> None:
    """One row: slices along z where the mask has voxels, no more than it is high."""
    from nibabel.nifti1 import Nifti1Image
    from nilearn.plotting import find_cut_slices, plot_img

    volumes = (grid.image(values), grid.mask.astype(np.float32))
    image, mask = (Nifti1Image(volume, grid.affine) for volume in volumes)
    most, away = float(np.abs(values).max()), bool(values.any())
    planes = int(np.ptp(np.flatnonzero(grid.mask.any(axis=(0, 1))))) + 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nilearn's remarks on empty maps and thin images
        cuts = np.asarray(find_cut_slices(image if away else mask, direction="z", n_cuts=min(_SLICES, planes)))
        grey = {"cmap": "Greys", "vmin": 0, "vmax": 5, "colorbar": False, "black_bg": False, "annotate": False}
        near = {"threshold": 1e-12 * most, "resampling_interpolation": "nearest"}
        shown = plot_img(mask, display_mode="z", cut_coords=cuts, figure=figure, axes=place, **grey, **near)
        if away:
            shown.add_overlay(image, cmap="RdBu_r", vmin=-most, vmax=most, threshold=near["threshold"], colorbar=True)
            shown._colorbar_ax.tick_params(labelsize=6)
        shown.annotate(size=6)
