"""Maps of a stability selection of voxels: how often each voxel is chosen, and which are stable.

Each voxel is judged by itself, by the same threshold and the same bound as any feature: no cluster of neighbours is
formed, and none is left out for its size.
"""

import numpy as np

from fcorun.reports.pictures.brain import VoxelMap, draw_maps
from fcorun.reports.pictures.layout import render_figure
from fcorun.reports.pictures.style import style_context
from fcorun.results.models.coefficients import mask_image, weights_image
from fcorun.studies.selection.stability.bound_statement import name_halves
from fcorun.studies.selection.stability.stability_options import StabilityResult
from fcorun.studies.selection.study_picture import format_title

VOXEL_FILES = ("mask.nii.gz", "frequency.nii.gz", "stable.nii.gz", "brain.png", "brain.pdf")


def map_voxels(result: StabilityResult) -> dict[str, bytes]:
    """Return the contents of VOXEL_FILES, of features that are voxels; nothing for others.

    frequency.nii.gz has the frequency of each voxel that stability.csv has, 0 for voxels that are not penalized, and
    stable.nii.gz 1 at stable voxels.
    """
    grid, scores, options = result.data.features.voxel_grid, result.scores, result.options
    if grid is None:
        return {}
    frequency = np.nan_to_num(scores.max_frequency)[result.units.unit_of]
    stable = scores.stable[result.units.unit_of]
    n_halves, path = f"{options.subsamples} halves", result.path
    region = f"from {path.param_name} {path.values[0]:.3g} to {path.values[scores.region_length - 1]:.3g}"
    n_chosen = f"{int((frequency > 0).sum()):,} of {len(frequency):,}"
    rows = [
        (f"largest share of the {n_halves} that choose a voxel, {region}: {n_chosen} are chosen", frequency),
        (
            f"stable voxels, chosen on at least {options.threshold:g} of the halves: {int(stable.sum()):,}",
            frequency * stable,
        ),
    ]
    maps = [VoxelMap(text, values, "viridis_r", 0, 1) for text, values in rows]
    title = f"{format_title(result.experiment)}: stability selection on {n_halves} by {name_halves(result)}"
    with style_context(result.experiment.settings.style):
        figure = draw_maps(grid, maps, [title, "voxel by voxel, without clusters, axial slices (z in mm)"])
        pictures = {f"brain.{format}": render_figure(figure, format) for format in ("png", "pdf")}
    images = {
        "mask.nii.gz": mask_image(grid),
        "frequency.nii.gz": weights_image(grid, frequency[:, None]),
        "stable.nii.gz": weights_image(grid, stable[:, None].astype(np.float32)),
    }
    return {**images, **pictures}
