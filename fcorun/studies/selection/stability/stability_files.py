"""Files of a stability selection: tables, a picture, and stability.json."""

from typing import Any

import numpy as np

from fcorun.base.records.formats import frame_csv
from fcorun.base.system.files import write_atomically
from fcorun.studies.selection.stability.bound_statement import (
    list_unpenalized,
    name_halves,
    state_bound,
    state_judged_part,
)
from fcorun.studies.selection.stability.stability_options import StabilityResult
from fcorun.studies.selection.stability.stability_picture import draw_stability
from fcorun.studies.selection.stability.voxel_maps import map_voxels
from fcorun.studies.selection.study_result import write_study_file


def write(result: StabilityResult) -> None:
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
