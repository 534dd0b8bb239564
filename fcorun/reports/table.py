"""From records to a table: a row a run, seeds folded, and the best point of each algorithm."""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from fcorun.config import LABELS, how_keys
from fcorun.errors import UserError, nearest
from fcorun.metrics import COUNTERS, HIGHER_IS_BETTER, PERSONAL, aggregate, headline, in_order, shared, silent
from fcorun.records.formats import read_rows
from fcorun.records.record import Record

SEEDS = ("seed", "data.seed")
STRUCTURE = ("density", "rank")
NAMED = ("algo", "data", "reg", "objective", "mirror", "topology")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# A pandas.DataFrame. Its own type hints call each look at a column a Series or a truth value or a frame.
Frame = Any
Rows = Callable[[Path], list[dict[str, float]]]


def table(
    records: Sequence[Record], tail_rounds: int | None = None, *, root: Path | None = None, read: Rows = read_rows
) -> Frame:
    """A row a record, in their order; failed, interrupted and running ones hold what is known of them.

    Columns: folder (relative to ``root`` if that is given), algo, data, the keys that vary, status, reason, rounds,
    final_METRIC, best_METRIC, tail_METRIC (the mean over the evaluations of the last ``tail_rounds`` rounds; by default
    as many as the run was told), seconds (without set-up and compilation), then the other counters (bytes_up, ...).
    A key that an algorithm does not have is empty, and so is a counter that a record does not have. ``attrs`` holds the
    tail's length and the cutoff, where the records agree on them, what pictures call the algorithms, and which keys
    vary among the records of each. ``read`` gives the rows of a folder's metrics.csv.
    """
    import pandas as pd

    configs, summaries = (
        [flat_config(record) for record in records],
        [_json(record, "summary.json") for record in records],
    )
    varied = _varied(configs)
    done = "rounds_done" if "rounds" in varied else "rounds"  # the key, where it varies, says how many were asked for
    rows, metrics = [], {}
    for record, config, summary in zip(records, configs, summaries, strict=True):
        status = record.status
        label = dict(re.findall(r"(?:^|[\s,])(algo|data)=([^\s,]+)", str(status.get("label", ""))))
        found = {kind: summary.get(kind, {}) for kind in ("final", "best", "tail")}
        if tail_rounds is not None and found["tail"] and summary.get("tail_rounds") != tail_rounds:
            found["tail"] = aggregate(read(record.folder), tail_rounds)["tail"]
        found["best"] = {name: best["value"] for name, best in found["best"].items()}
        if summary.get("status") == "diverged":  # what it was before that is in metrics.csv, and no result
            found = {kind: dict.fromkeys(values) for kind, values in found.items()}
        metrics |= dict.fromkeys(found["final"])
        rows.append(
            {
                "folder": str(_under(record.folder, root)),
                "algo": config.get("algo.name", label.get("algo")),
                "data": config.get("data.name", label.get("data")),
                **{key: config.get(_setting(key)) for key in varied},
                "status": status.get("status", "unknown"),
                "reason": status.get("reason", ""),
                done: summary.get("round"),
                "seconds": summary.get("seconds", {}).get("steady"),
                **{name: summary.get(name) for name in COUNTERS[2:]},
                **{f"{kind}_{name}": value for kind, values in found.items() for name, value in values.items()},
            }
        )
    measured = [f"{kind}_{name}" for kind in ("final", "best", "tail") for name in in_order(metrics)]
    measured = [name for name in measured if any(name in row for row in rows)]
    counters = [name for name in COUNTERS[2:] if "edge" not in name or any(row[name] is not None for row in rows)]
    columns = ["folder", "algo", "data", *varied, "status", "reason", done, *measured, "seconds", *counters]
    frame = pd.DataFrame(rows, columns=columns)
    titles = {config["algo.name"]: config["algo.title"] for config in configs if "algo.title" in config}
    frame.attrs["titles"] = titles
    frame.attrs["varied"] = {
        algo: [key for key in varied if key not in SEEDS and len({str(v) for v in values_of(own[key])}) > 1]
        for algo, own in frame.groupby("algo")
    }
    for name in (done, *counters, *varied):
        if all(type(row[name]) is int for row in rows if row[name] is not None):
            frame[name] = frame[name].astype("Int64")
    for name, kind in (("tail_rounds", "tail_rounds"), ("cutoff", "cutoff")):
        values = {summary[kind] for summary in summaries if kind in summary}
        values = {tail_rounds} if name == "tail_rounds" and tail_rounds is not None else values
        frame.attrs[name] = values.pop() if len(values) == 1 else None
    longest = max([row[done] or 0 for row in rows if not silent(row)], default=0)  # iterations are no rounds
    if frame.attrs["tail_rounds"] is not None and longest:  # a run of 30 rounds has no last 100
        frame.attrs["tail_rounds"] = min(frame.attrs["tail_rounds"], longest)
    return frame


def points(frame: Frame, metric: str) -> Frame:
    """The runs of a table with their seeds folded: a row for each algorithm, data set and setting of the other keys.

    Columns: algo, data, the keys that vary but for the seeds, metric (the median over seeds of tail_METRIC), low and
    high (its 10 % and 90 % quantiles), the medians of ``structure`` where there are any, seeds (how many are done),
    status (diverged if any seed is), rows (the places of the runs in ``frame``).
    """
    import numpy as np
    import pandas as pd

    chief = [key for key in keys(frame) if key not in SEEDS]
    shown = [name for name in structure(metric) if f"tail_{name}" in frame and name != metric]
    groups: dict[tuple, list[int]] = {}
    for place, values in enumerate(zip(*(values_of(frame[key]) for key in ("algo", "data", *chief)), strict=True)):
        groups.setdefault(values, []).append(place)
    tails = {name: measured(frame, name) for name in (metric, *shown)}
    statuses, found = list(frame["status"]), []
    for values, places in groups.items():
        has = [statuses[place] for place in places]
        done = [place for place in places if statuses[place] == "done" and np.isfinite(tails[metric][place])]
        status = "diverged" if "diverged" in has else "done" if done else Counter(has).most_common(1)[0][0]
        middle = [np.quantile(tails[metric][done], q) if done else np.nan for q in (0.5, 0.1, 0.9)]
        medians = {name: np.median(tails[name][done]) if done else np.nan for name in shown}
        found.append([*values, *middle, *medians.values(), len(done), status, places])
    return pd.DataFrame(
        found, columns=["algo", "data", *chief, "metric", "low", "high", *shown, "seeds", "status", "rows"]
    )


def structure(metric: str) -> tuple[str, ...]:
    """The figures of structure that go with a metric: those of the clients' own models if that is of them."""
    return tuple(PERSONAL + name if metric.startswith(PERSONAL) else name for name in STRUCTURE)


def measured(frame: Frame, metric: str):
    """tail_METRIC of each run; where clients have no own models, what is personal is that of the global one."""
    import numpy as np

    values = _column(frame, f"tail_{metric}")
    return np.where(np.isnan(values), _column(frame, f"tail_{shared(metric)}"), values)


def best_points(frame: Frame, metric: str | None = None) -> Frame:
    """The best point of each algorithm on each data set by the median over seeds of tail_METRIC; columns of ``points``.

    A point that diverged with any seed is never best; of equal ones the lower objective wins. An algorithm without a
    point that is done has a row that says so, and no numbers. ``metric`` is by default the headline of what was
    measured. Raises UserError for a metric that is not there or is better in no direction.
    """
    import numpy as np
    import pandas as pd

    metric = chosen(frame, metric)
    folded = points(frame, metric)
    rows = []
    for _, group in folded.groupby(["algo", "data"], sort=False, dropna=False):
        done = group[(group["status"] == "done") & group["metric"].notna()]
        if len(done):
            sign = -1 if HIGHER_IS_BETTER[metric] else 1
            objective = _column(frame, "tail_objective" if "tail_objective" in frame else f"tail_{metric}")
            ties = [float(np.median(objective[places])) for places in done["rows"]]
            first = min(zip(sign * done["metric"], ties, done.index, strict=True))  # of equals the lower objective
            rows.append(folded.loc[first[-1]].to_dict())
        else:
            has = set(group["status"])
            status = next((s for s in ("diverged", "failed", "interrupted", "running") if s in has), "unmeasured")
            first = group.iloc[0]
            rows.append({"algo": first["algo"], "data": first["data"], "seeds": 0, "status": status, "rows": []})
    return pd.DataFrame(rows, columns=folded.columns)


def chosen(frame: Frame, metric: str | None) -> str:
    """The metric to judge by: ``metric``, or the headline of what was measured. Raises UserError as ``best_points``."""
    there = [name.removeprefix("tail_") for name in frame if name.startswith("tail_")]
    if metric is None:
        return headline(there)
    judged = [name for name in there if name in HIGHER_IS_BETTER]
    if metric in there and metric not in judged:
        raise UserError(f"metric={metric} is better in no direction; choose one of {', '.join(judged)}")
    if metric not in (judged or HIGHER_IS_BETTER):
        raise UserError(f"metric={metric} was not measured: {nearest(metric, judged or HIGHER_IS_BETTER)}")
    return metric


def keys(frame: Frame) -> list[str]:
    """The keys that vary in a table."""
    names = list(frame)
    return names[names.index("data") + 1 : names.index("status")]


def values_of(column: Any) -> list:
    """The values of a column, None where it has none."""
    return [None if missing else value for value, missing in zip(column.tolist(), column.isna(), strict=True)]


def _column(frame: Frame, name: str):
    import numpy as np

    return frame[name].to_numpy(float) if name in frame else np.full(len(frame), np.nan)


def _varied(configs: list[dict[str, Any]]) -> list[str]:
    """The keys that take several values in these flat configurations, in the order of the configurations."""
    values: dict[str, set] = {}
    for config in configs:
        for key, value in config.items():
            values.setdefault(key, set()).add((value is None, type(value) is bool, value))
    varied = [key for key, seen in values.items() if len(seen) > 1]
    named = [section for section in NAMED[2:] if f"{section}.name" in varied]
    return named + [key for key in varied if key.split(".")[-1] not in LABELS and key not in how_keys()]


def _setting(key: str) -> str:
    return f"{key}.name" if key in NAMED else key


def flat_config(record: Record) -> dict[str, Any]:
    """A record's configuration with dotted keys; empty if there is none. Lists become text."""

    def flat(values: dict, prefix: str) -> dict[str, Any]:
        found = {}
        for key, value in values.items():
            if isinstance(value, dict):
                found |= flat(value, f"{prefix}{key}.")
            else:
                found[prefix + key] = str(value) if isinstance(value, list) else value
        return found

    try:
        return flat(yaml.load((record.folder / "config.yaml").read_bytes(), _LOADER) or {}, "")
    except (OSError, yaml.YAMLError, AttributeError):
        return {}


def _json(record: Record, name: str) -> dict[str, Any]:
    try:
        return json.loads((record.folder / name).read_text())
    except (OSError, ValueError):
        return {}


def _under(folder: Path, root: Path | None) -> Path:
    return folder.relative_to(root) if root is not None and folder.is_relative_to(root) else folder
