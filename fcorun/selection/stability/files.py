"""Files of a stability selection, and the lines that ``fcorun stability`` prints."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fcorun.records.formats import frame_csv, json_text
from fcorun.records.record import STABILITY_FILE
from fcorun.selection.cross_validation.terminal import format_cost
from fcorun.selection.folds import count_rows
from fcorun.selection.stability.options import StabilityResult
from fcorun.selection.stability.picture import draw_stability
from fcorun.system.files import write_atomically

STUDY_FILE = STABILITY_FILE


_MAX_NAMED_FEATURES = 20  # in a line


def write(result: StabilityResult, seconds: float) -> None:
    """Write stability.csv, clients.csv, stability.json, and the picture.

    stability.csv has a row for each feature, from the most to the least frequent; features without penalty come last.
    clients.csv has the similarity of the clients' own supports.
    """
    folder, path, scores = result.folder, result.path, result.scores
    write_atomically(folder / "stability.csv", frame_csv(_tabulate_features(result)))
    if result.client_similarity is not None:
        write_atomically(folder / "clients.csv", frame_csv(_tabulate_clients(result)))
    last = scores.region_length - 1
    content = {
        "identity": result.study.identity,
        "label": result.study.label,
        "status": "done",
        "number": path.param_name,
        "range": path.range_description,
        "region": [float(path.values[0]), float(path.values[last])],
        "threshold": result.options.threshold,
        "subsamples": result.options.subsamples,
        "by": result.options.by,
        "rows": count_rows(result.data),
        "features": int((~scores.unpenalised).sum()),
        "unpenalised": list_unpenalised(result),
        "q": float(scores.q[last]),
        "bound": float(scores.bound[last]),
        "stable": [name for name, stable in zip(result.features, scores.stable, strict=True) if stable],
        "jaccard": average_similarity(result.client_similarity),
        "cost": result.cost,
        "remarks": [*state_bound(result), *result.warnings],
        "seconds": seconds,
    }
    write_atomically(folder / STUDY_FILE, json_text(content | {"status": "running"}))
    for name, picture in draw_stability(result).items():
        write_atomically(folder / name, picture)
    write_atomically(folder / STUDY_FILE, json_text(content))


def list_unpenalised(result: StabilityResult) -> list[str]:
    """Return the names of the features that are not penalised."""
    return [name for name, free in zip(result.features, result.scores.unpenalised, strict=True) if free]


def average_similarity(similarity: np.ndarray | None) -> float | None:
    """Return the mean similarity of two clients; None if no two clients have one."""
    if similarity is None:
        return None
    pairs = similarity[np.triu_indices(len(similarity), 1)]
    return float(np.nanmean(pairs)) if np.isfinite(pairs).any() else None


def describe_stability(result: StabilityResult) -> Iterator[str]:
    """Yield the stable features, the bound and its assumptions, clients, warnings, the cost, and the files."""
    scores, names, path = result.scores, result.features, result.path
    order = np.argsort(-scores.max_frequency, kind="stable")
    stable = [f"{names[j]} ({scores.max_frequency[j]:.2f})" for j in order if scores.stable[j]]
    listing = ", ".join(stable[:_MAX_NAMED_FEATURES]) or "none"
    if len(stable) > _MAX_NAMED_FEATURES:
        listing += f", and {len(stable) - _MAX_NAMED_FEATURES} more"
    unpenalised = list_unpenalised(result)
    yield (
        f"{len(stable)} of {len(names) - len(unpenalised)} features are stable, chosen on at least "
        f"{result.options.threshold:g} of the halves: {listing}"
    )
    if unpenalised:
        yield f"not penalised (reg.factors), so neither chosen nor counted: {', '.join(unpenalised)}"
    yield from state_bound(result)
    mean = average_similarity(result.client_similarity)
    if mean is not None:
        yield (
            f"clients by themselves, {path.param_name}={path.values[scores.region_length - 1]:.4g}: two of "
            f"them share {mean:.2f} of what either chooses (Jaccard index, mean over pairs)"
        )
    yield from result.warnings
    yield f"this cost {format_cost(result.cost)}"
    files = ["stability.csv", "stability.png and .pdf"]
    if result.client_similarity is not None:
        files.insert(1, "clients.csv")
    yield f"{result.folder}/ holds {', '.join(files)}"


def state_bound(result: StabilityResult) -> list[str]:
    """Return two sentences: the bound on false selections, and its assumptions."""
    scores, options, path = result.scores, result.options, result.path
    last = scores.region_length - 1
    q, bound = scores.q[last], scores.bound[last]
    units = "rows" if result.data.group is None or options.by == "clients" else "groups of rows"
    strata = "within each client" if options.by == "rows" else "among the clients"
    excess = f" (more than errors={options.errors:g})" if bound > options.errors else ""
    return [
        f"bound: q^2 / ((2 threshold - 1) d) = {bound:.3g}{excess}, with q = {q:.3g} of "
        f"d = {int((~scores.unpenalised).sum())} features chosen on a half, for {path.param_name} from "
        f"{path.values[0]:.4g} to {path.values[last]:.4g}",
        f"so many stable features are expected at most whose chance on a half is q / d or less, if {units} are drawn "
        f"independently {strata} (Shah and Samworth 2013, theorem 1); these are the false ones, if noise features "
        "are exchangeable and the choice no worse than guessing (Meinshausen and Buehlmann 2010, theorem 1); q was "
        "estimated from these rows, and the path's end chosen by it",
    ]


def _tabulate_features(result: StabilityResult) -> Any:
    """Return a frame with a row for each feature.

    The column ``{param}_reached`` is the first value of the whole path at which the frequency reaches the threshold.
    """
    import pandas as pd

    scores, path = result.scores, result.path
    is_frequent = scores.frequency >= result.options.threshold - 1e-12
    first_value = np.where(is_frequent.any(axis=0), path.values[is_frequent.argmax(axis=0)], np.nan)
    columns = {"feature": result.features, "stable": scores.stable}
    if scores.unpenalised.any():
        columns["penalised"] = ~scores.unpenalised
    columns |= {"frequency": scores.max_frequency, f"{path.param_name}_reached": first_value}
    frequencies = pd.DataFrame(scores.frequency.T, columns=[f"{path.param_name}={value:.6g}" for value in path.values])
    frame = pd.concat([pd.DataFrame(columns), frequencies], axis=1)
    return frame.iloc[np.argsort(-scores.max_frequency, kind="stable")]


def _tabulate_clients(result: StabilityResult) -> Any:
    """Return a frame with the similarity of every two clients."""
    import pandas as pd

    names = result.data.client_names
    frame = pd.DataFrame(result.client_similarity, columns=names)
    frame.insert(0, "client", names)
    return frame
