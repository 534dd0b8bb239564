"""The files of a stability selection, and what is said of it on the terminal."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fcorun.records.formats import frame_csv, json_text
from fcorun.records.record import STABILITY_FILE
from fcorun.selection.folds import count_rows
from fcorun.selection.stability.options import StabilityResult
from fcorun.selection.stability.picture import draw_stability
from fcorun.selection.terminal import format_cost
from fcorun.system.files import write_atomically

STUDY_FILE = STABILITY_FILE


def write(of: StabilityResult, seconds: float) -> None:
    """Write stability.csv, a row for each feature, the most frequent first, those without penalty last; clients.csv,
    how alike clients' own supports are; stability.json; and the picture."""
    write_atomically(of.folder / "stability.csv", frame_csv(_features(of)))
    if of.client_similarity is not None:
        write_atomically(of.folder / "clients.csv", frame_csv(_clients(of)))
    found, place = of.scores, of.scores.region_length - 1
    content = {
        "identity": of.study.identity,
        "label": of.study.label,
        "status": "done",
        "number": of.path.param_name,
        "range": of.path.range_description,
        "region": [float(of.path.values[0]), float(of.path.values[place])],
        "threshold": of.options.threshold,
        "subsamples": of.options.subsamples,
        "by": of.options.by,
        "rows": count_rows(of.data),
        "features": int((~found.unpenalised).sum()),
        "unpenalised": list_unpenalised(of),
        "q": float(found.q[place]),
        "bound": float(found.bound[place]),
        "stable": [name for name, stable in zip(of.features, found.stable.tolist(), strict=True) if stable],
        "jaccard": average_similarity(of.client_similarity),
        "cost": of.cost,
        "remarks": [*state_bound(of), *of.warnings],
        "seconds": seconds,
    }
    write_atomically(of.folder / STUDY_FILE, json_text(content | {"status": "running"}))
    for name, picture in draw_stability(of).items():
        write_atomically(of.folder / name, picture)
    write_atomically(of.folder / STUDY_FILE, json_text(content))


def list_unpenalised(of: StabilityResult) -> list[str]:
    """The features that are not penalised."""
    return [name for name, there in zip(of.features, of.scores.unpenalised, strict=True) if there]


def average_similarity(alike: np.ndarray | None) -> float | None:
    """The mean similarity of two clients; None where there are no two that have one."""
    pairs = np.array([]) if alike is None else alike[np.triu_indices(len(alike), 1)]
    return float(np.nanmean(pairs)) if np.isfinite(pairs).any() else None


def describe_stability(of: StabilityResult) -> Iterator[str]:
    """The stable features, the bound with what it rests on, clients, remarks, what it cost, and where it lies."""
    found, names = of.scores, of.features
    order = np.argsort(-found.max_frequency, kind="stable")
    stable = [f"{names[j]} ({found.max_frequency[j]:.2f})" for j in order if found.stable[j]]
    shown = ", ".join(stable[:20]) + (f", and {len(stable) - 20} more" if len(stable) > 20 else "")
    share = f"chosen on at least {of.options.threshold:g} of the halves"
    others = list_unpenalised(of)
    yield f"{len(stable)} of {len(names) - len(others)} features are stable, {share}: {shown or 'none'}"
    if others:
        yield f"not penalised (reg.factors), so neither chosen nor counted: {', '.join(others)}"
    yield from state_bound(of)
    if (mean := average_similarity(of.client_similarity)) is not None:
        yield (
            f"clients by themselves, {of.path.param_name}={of.path.values[found.region_length - 1]:.4g}: two of "
            f"them share "
            f"{mean:.2f} of what either chooses (Jaccard index, mean over pairs)"
        )
    yield from of.warnings
    yield f"this cost {format_cost(of.cost)}"
    files = ["stability.csv", *(["clients.csv"] if of.client_similarity is not None else []), "stability.png and .pdf"]
    yield f"{of.folder}/ holds {', '.join(files)}"


def state_bound(of: StabilityResult) -> list[str]:
    """The bound on false selections, and what it rests on."""
    found, place = of.scores, of.scores.region_length - 1
    q, count = found.q[place], int((~found.unpenalised).sum())
    drawn = "rows" if of.data.group is None or of.options.by == "clients" else "groups of rows"
    strata = "within each client" if of.options.by == "rows" else "among the clients"
    over = f" (more than errors={of.options.errors:g})" if found.bound[place] > of.options.errors else ""
    ends = [f"{value:.4g}" for value in (of.path.values[0], of.path.values[place])]
    bound = (
        f"bound: q^2 / ((2 threshold - 1) d) = {found.bound[place]:.3g}{over}, with q = {q:.3g} of d = {count} "
        f"features chosen on a half, for {of.path.param_name} from {ends[0]} to {ends[1]}"
    )
    rests = (
        f"so many stable features are expected at most whose chance on a half is q / d or less, if {drawn} are drawn "
        f"independently {strata} (Shah and Samworth 2013, theorem 1); these are the false ones, if noise features "
        "are exchangeable and the choice no worse than guessing (Meinshausen and Buehlmann 2010, theorem 1); q was "
        "estimated from these rows, and the path's end chosen by it"
    )
    return [bound, rests]


def _features(of: StabilityResult) -> Any:
    import pandas as pd

    found = of.scores
    reached = found.frequency >= of.options.threshold - 1e-12
    first = np.where(reached.any(axis=0), of.path.values[reached.argmax(axis=0)], np.nan)
    frame = pd.DataFrame(
        {
            "feature": of.features,
            "stable": found.stable,
            **({"penalised": ~found.unpenalised} if found.unpenalised.any() else {}),
            "frequency": found.max_frequency,
            f"{of.path.param_name}_reached": first,
        }
    )
    each = pd.DataFrame(found.frequency.T, columns=[f"{of.path.param_name}={value:.6g}" for value in of.path.values])
    return pd.concat([frame, each], axis=1).iloc[np.argsort(-found.max_frequency, kind="stable")]


def _clients(of: StabilityResult) -> Any:
    import pandas as pd

    assert of.client_similarity is not None
    names = list(of.data.clients) or [str(m) for m in range(len(of.data.sizes))]
    frame = pd.DataFrame(of.client_similarity, columns=names)
    frame.insert(0, "client", names)
    return frame
