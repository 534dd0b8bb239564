"""Report of a stability selection: its files, and the lines that ``fcorun stability`` prints.

Each voxel is judged by itself, by the same threshold and the same bound as any feature: no cluster of neighbours is
formed, and none is left out for its size.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fcorun.base.errors import word
from fcorun.base.records.formats import frame_csv
from fcorun.base.system.files import write_atomically
from fcorun.reports.pictures.brain import BrainMaps, VoxelMap, draw_maps
from fcorun.reports.pictures.layout import render_figure
from fcorun.reports.pictures.style import style_context
from fcorun.results.inference.methods import AFTER_SELECTION
from fcorun.results.models.coefficients import mask_image, weights_image
from fcorun.studies.selection.stability import (
    StabilityResult,
    list_unpenalized,
    name_halves,
    state_bound,
    state_judged_part,
)
from fcorun.studies.selection.stability_picture import draw_stability
from fcorun.studies.selection.study import format_cost, write_study_file
from fcorun.studies.selection.study_picture import format_title


def write_files(result: StabilityResult) -> None:
    """Write stability.csv, clients.csv, stability.json, which says "running", the picture, and maps of voxels.

    stability.csv has a row for each feature, from the most to the least frequent; features without penalty come last.
    clients.csv has the similarity of the clients' own supports.
    """
    folder = result.folder
    write_atomically(folder / "stability.csv", frame_csv(_tabulate_features(result)))
    if result.client_similarity is not None:
        write_atomically(folder / "clients.csv", frame_csv(tabulate_clients(result)))
    write_summary(result)
    for name, content in {**draw_stability(result), **map_voxels(result)}.items():
        write_atomically(folder / name, content)


def write_summary(result: StabilityResult, seconds: float | None = None) -> None:
    """Write stability.json: "running", or "done" with the ``seconds`` that the study took."""
    path, scores = result.path, result.scores
    last = scores.region_length - 1
    content = {
        "region": [float(path.values[0]), float(path.values[last])],
        "threshold": result.options.threshold,
        "subsamples": result.options.subsamples,
        "by": result.options.by,
        "halves_of": name_halves(result),
        "units": result.units.noun,
        "features": int((~scores.unpenalized).sum()),
        "unpenalised": list_unpenalized(result),
        "q": float(scores.q[last]),
        "assumption": result.options.assumption,
        "bound": float(scores.bound[last]),
        "bound_statement": state_bound(result),
        "judged": state_judged_part(result),
        "stable": [name for name, stable in zip(result.units.names, scores.stable, strict=True) if stable],
        "refit": result.refit_columns,
        "jaccard": average_similarity(result.client_similarity),
    }
    write_study_file(result, content, result.warnings, seconds)


def average_similarity(similarity: np.ndarray | None) -> float | None:
    """Return the mean similarity of two clients; None if no two clients have one."""
    if similarity is None:
        return None
    pairs = similarity[np.triu_indices(len(similarity), 1)]
    return float(np.nanmean(pairs)) if np.isfinite(pairs).any() else None


def _tabulate_features(result: StabilityResult) -> Any:
    """Return a frame with a row for each feature.

    The column ``{param}_reached`` is the first value of the whole path at which the frequency reaches the threshold.
    """
    import pandas as pd

    scores, path = result.scores, result.path
    is_frequent = scores.frequency >= result.options.threshold - 1e-12
    first_value = np.where(is_frequent.any(axis=0), path.values[is_frequent.argmax(axis=0)], np.nan)
    columns = {"feature": result.units.names, "stable": scores.stable}
    if scores.unpenalized.any():
        columns["penalised"] = ~scores.unpenalized
    columns |= {"frequency": scores.max_frequency, f"{path.param_name}_reached": first_value}
    frequencies = pd.DataFrame(scores.frequency.T, columns=[f"{path.param_name}={value:.6g}" for value in path.values])
    frame = pd.concat([pd.DataFrame(columns), frequencies], axis=1)
    return frame.iloc[np.argsort(-scores.max_frequency, kind="stable")]


def tabulate_clients(result: StabilityResult) -> Any:
    """Return a frame with the similarity of every two clients."""
    import pandas as pd

    names = result.data.client_names
    frame = pd.DataFrame(result.client_similarity, columns=names)
    frame.insert(0, "client", names, allow_duplicates=True)  # a client may have this name
    return frame


_MAX_NAMED_FEATURES = 20  # in a line


def describe_stability(result: StabilityResult) -> Iterator[str]:
    """Yield the stable features, the bound and its assumptions, clients, warnings, the cost, and the files."""
    scores, names, path = result.scores, result.units.names, result.path
    order = np.argsort(-scores.max_frequency, kind="stable")
    stable = [f"{names[j]} ({scores.max_frequency[j]:.2f})" for j in order if scores.stable[j]]
    listing = ", ".join(stable[:_MAX_NAMED_FEATURES]) or "none"
    if len(stable) > _MAX_NAMED_FEATURES:
        listing += f", and {len(stable) - _MAX_NAMED_FEATURES} more"
    unpenalized = list_unpenalized(result)
    yield (
        f"{len(stable)} of {len(names) - len(unpenalized)} {result.units.noun} are stable, chosen on at least "
        f"{result.options.threshold:g} of the halves{state_judged_part(result)}: {listing}"
    )
    if result.units.are_groups:
        yield "a group, such as a column with its levels, is chosen if any of its features is, and counts once"
    if unpenalized:
        yield word(f"not penalized (`reg.factors`), so neither chosen nor counted: {', '.join(unpenalized)}")
    yield from state_bound(result)
    mean = average_similarity(result.client_similarity)
    if mean is not None:
        yield (
            f"clients by themselves, {path.param_name}={path.values[scores.region_length - 1]:.4g}: two of "
            f"them share {mean:.2f} of what either chooses (Jaccard index, mean over pairs)"
        )
    yield from result.warnings
    yield f"this cost {format_cost(result.cost)}"
    if result.record is not None and result.refit_columns is not None:
        yield (
            f"{result.record.folder}: all training rows, without a penalty, columns "
            f"{', '.join(result.refit_columns)}: {result.end_of_refit}"
        )
        yield word(f"{result.record.folder}: {AFTER_SELECTION}")
    files = ["stability.csv", "stability.png and .pdf"]
    if result.client_similarity is not None:
        files.insert(1, "clients.csv")
    if result.data.features.voxel_grid is not None:
        files += VOXEL_FILES
    yield f"{result.folder}/ holds {', '.join(files)}"


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
        figure = draw_maps(BrainMaps(grid, maps, [title, "voxel by voxel, without clusters, axial slices (z in mm)"]))
        pictures = {f"brain.{format}": render_figure(figure, format) for format in ("png", "pdf")}
    images = {
        "mask.nii.gz": mask_image(grid),
        "frequency.nii.gz": weights_image(grid, frequency[:, None]),
        "stable.nii.gz": weights_image(grid, stable[:, None].astype(np.float32)),
    }
    return {**images, **pictures}
