"""The files of a stability selection, and what is said of it on the terminal."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fcorun.records.formats import frame_csv, json_text
from fcorun.records.record import STABILITY
from fcorun.selection.folds import counts
from fcorun.selection.report import costs
from fcorun.selection.stability.asked import Stable
from fcorun.selection.stability.picture import draw
from fcorun.system.files import write_whole

MARK = STABILITY


def write(of: Stable, seconds: float) -> None:
    """Write stability.csv, a row for each feature, the most frequent first, those without penalty last; clients.csv,
    how alike clients' own supports are; stability.json; and the picture."""
    write_whole(of.folder / "stability.csv", frame_csv(_features(of)))
    if of.clients is not None:
        write_whole(of.folder / "clients.csv", frame_csv(_clients(of)))
    found, place = of.found, of.found.region - 1
    content = {
        "identity": of.study.identity,
        "label": of.study.label,
        "status": "done",
        "number": of.path.number,
        "range": of.path.said,
        "region": [float(of.path.values[0]), float(of.path.values[place])],
        "threshold": of.options.threshold,
        "subsamples": of.options.subsamples,
        "by": of.options.by,
        "rows": counts(of.data),
        "features": int((~found.free).sum()),
        "unpenalised": free(of),
        "q": float(found.q[place]),
        "bound": float(found.bound[place]),
        "stable": [name for name, stable in zip(of.features, found.stable.tolist(), strict=True) if stable],
        "jaccard": mean_of(of.clients),
        "cost": of.cost,
        "remarks": [*assumptions(of), *of.remarks],
        "seconds": seconds,
    }
    write_whole(of.folder / MARK, json_text(content | {"status": "running"}))
    for name, picture in draw(of).items():
        write_whole(of.folder / name, picture)
    write_whole(of.folder / MARK, json_text(content))


def free(of: Stable) -> list[str]:
    """The features that are not penalised."""
    return [name for name, there in zip(of.features, of.found.free, strict=True) if there]


def mean_of(alike: np.ndarray | None) -> float | None:
    """The mean similarity of two clients; None where there are no two that have one."""
    pairs = np.array([]) if alike is None else alike[np.triu_indices(len(alike), 1)]
    return float(np.nanmean(pairs)) if np.isfinite(pairs).any() else None


def tell_stable(of: Stable) -> Iterator[str]:
    """The stable features, the bound with what it rests on, clients, remarks, what it cost, and where it lies."""
    found, names = of.found, of.features
    order = np.argsort(-found.most, kind="stable")
    stable = [f"{names[j]} ({found.most[j]:.2f})" for j in order if found.stable[j]]
    shown = ", ".join(stable[:20]) + (f", and {len(stable) - 20} more" if len(stable) > 20 else "")
    share = f"chosen on at least {of.options.threshold:g} of the halves"
    others = free(of)
    yield f"{len(stable)} of {len(names) - len(others)} features are stable, {share}: {shown or 'none'}"
    if others:
        yield f"not penalised (reg.factors), so neither chosen nor counted: {', '.join(others)}"
    yield from assumptions(of)
    if (mean := mean_of(of.clients)) is not None:
        yield (f"clients by themselves, {of.path.number}={of.path.values[found.region - 1]:.4g}: two of them share "
               f"{mean:.2f} of what either chooses (Jaccard index, mean over pairs)")  # fmt: skip
    yield from of.remarks
    yield f"this cost {costs(of.cost)}"
    files = ["stability.csv", *(["clients.csv"] if of.clients is not None else []), "stability.png and .pdf"]
    yield f"{of.folder}/ holds {', '.join(files)}"


def assumptions(of: Stable) -> list[str]:
    """The bound on false selections, and what it rests on."""
    found, place = of.found, of.found.region - 1
    q, count = found.q[place], int((~found.free).sum())
    drawn = "rows" if of.data.group is None or of.options.by == "clients" else "groups of rows"
    strata = "within each client" if of.options.by == "rows" else "among the clients"
    over = f" (more than errors={of.options.errors:g})" if found.bound[place] > of.options.errors else ""
    ends = [f"{value:.4g}" for value in (of.path.values[0], of.path.values[place])]
    bound = (
        f"bound: q^2 / ((2 threshold - 1) d) = {found.bound[place]:.3g}{over}, with q = {q:.3g} of d = {count} "
        f"features chosen on a half, for {of.path.number} from {ends[0]} to {ends[1]}"
    )
    rests = (
        f"so many stable features are expected at most whose chance on a half is q / d or less, if {drawn} are drawn "
        f"independently {strata} (Shah and Samworth 2013, theorem 1); these are the false ones, if noise features "
        "are exchangeable and the choice no worse than guessing (Meinshausen and Buehlmann 2010, theorem 1); q was "
        "estimated from these rows, and the path's end chosen by it"
    )
    return [bound, rests]


def _features(of: Stable) -> Any:
    import pandas as pd

    found = of.found
    reached = found.frequency >= of.options.threshold - 1e-12
    first = np.where(reached.any(axis=0), of.path.values[reached.argmax(axis=0)], np.nan)
    frame = pd.DataFrame(
        {
            "feature": of.features,
            "stable": found.stable,
            **({"penalised": ~found.free} if found.free.any() else {}),
            "frequency": found.most,
            f"{of.path.number}_reached": first,
        }
    )
    each = pd.DataFrame(found.frequency.T, columns=[f"{of.path.number}={value:.6g}" for value in of.path.values])
    return pd.concat([frame, each], axis=1).iloc[np.argsort(-found.most, kind="stable")]


def _clients(of: Stable) -> Any:
    import pandas as pd

    assert of.clients is not None
    names = list(of.data.clients) or [str(m) for m in range(len(of.data.sizes))]
    frame = pd.DataFrame(of.clients, columns=names)
    frame.insert(0, "client", names)
    return frame
