"""From records to a table."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fcorun.config import LABEL_KEYS, keys_outside_identity
from fcorun.experiment.convergence import NEAR_OPTIMUM
from fcorun.metrics import COUNTERS, MetricCatalogue, aggregate, from_summaries, is_baseline_row
from fcorun.records.formats import read_summary
from fcorun.records.record import Record
from fcorun.reports.run_table import SEED_KEYS, DataFrame, RunTable, column_values
from fcorun.sections import IDENTITY_SECTIONS

_KINDS = ("final", "best", "tail")


def build_table(records: Sequence[Record], tail_rounds: int | None = None, *, root: Path | None = None) -> RunTable:
    """A row a record, in their order; failed, interrupted and running ones hold what is known of them.

    Columns: folder (relative to ``root`` if that is given), algo, data, the keys that vary, status, reason, drawn
    (whether the seed changes anything), falling (by which share the objective was still falling at the end; empty: by
    none that matters), above (by which share the objective ended above the optimum, where that was worked out, for this
    run or for another one on the same problem, and is more than a hundredth), certified (whether a baseline's solution
    is), leaves_psi_out (where some do), rounds, final_METRIC, best_METRIC, tail_METRIC (the mean over the evaluations
    of the last ``tail_rounds`` rounds; by default as many as the run was told), seconds (without set-up and
    compilation), then the other counters (bytes_up, ...).
    A key that an algorithm does not have is empty, and so is a counter that a record does not have.
    """
    import pandas as pd

    configs = load_configs(records)
    summaries = [read_summary(record.folder) for record in records]
    metrics, varied = from_summaries(summaries), _varied(configs)
    done = "rounds_done" if "rounds" in varied else "rounds"  # the key, where it varies, says how many were asked for
    rows, names = [], {}
    for record, config, summary in zip(records, configs, summaries, strict=True):
        status, found = record.status, _measured(record, summary, tail_rounds, metrics)
        names |= dict.fromkeys(found["final"])
        label = dict(re.findall(r"(?:^|[\s,])(algo|data)=([^\s,]+)", str(status.get("label", ""))))
        rows.append(
            {
                "folder": str(_under(record.folder, root)),
                "algo": config.get("algo.name", label.get("algo")),
                "data": config.get("data.name", label.get("data")),
                **{key: config.get(_setting(key)) for key in varied},
                "status": status.get("status", "unknown"),
                "reason": status.get("reason", ""),
                "drawn": summary.get("drawn"),
                "falling": (summary.get("unfinished") or {}).get("fell"),
                "above": _above(summary.get("certificate") or {}),
                "certified": _certified(summary.get("certificate") or {}),
                "leaves_psi_out": summary.get("leaves_psi_out"),
                done: status.get("round") if status.get("status") == "running" else summary.get("round"),
                "seconds": summary.get("seconds", {}).get("steady"),
                **{name: summary.get(name) for name in COUNTERS[2:]},
                **{f"{kind}_{name}": value for kind, values in found.items() for name, value in values.items()},
            }
        )
    measured = [f"{kind}_{name}" for kind in _KINDS for name in metrics.sort(names)]
    measured = [name for name in measured if any(name in row for row in rows)]
    counters = [name for name in COUNTERS[2:] if "edge" not in name or any(row[name] is not None for row in rows)]
    without = ("leaves_psi_out",) if any(row["leaves_psi_out"] for row in rows) else ()
    ends = ("status", "reason", "drawn", "falling", "above", "certified", *without, done)
    columns = ["folder", "algo", "data", *varied, *ends, *measured, "seconds", *counters]
    frame: DataFrame = pd.DataFrame(rows, columns=columns)
    for name in (done, *counters, *varied):
        if all(type(row[name]) is int for row in rows if row[name] is not None):
            frame[name] = frame[name].astype("Int64")
    longest = max([row[done] or 0 for row in rows if not is_baseline_row(row)], default=0)  # iterations are no rounds
    tail = tail_rounds if tail_rounds is not None else _agreed(summaries, "tail_rounds")
    if tail is not None and longest:  # a run of 30 rounds has no last 100
        tail = min(tail, longest)
    titles = {config["algo.name"]: config["algo.title"] for config in configs if "algo.title" in config}
    out = RunTable(
        frame, metrics, titles, _of_each(frame, varied), tail_rounds=tail, cutoff=_agreed(summaries, "cutoff")
    )
    frame["above"] = _told(out, [_optimum(summary) for summary in summaries])
    return out


def _above(certificate: dict[str, Any]) -> float | None:
    """By which share a run ended above the optimum, unless it is there or nothing is known."""
    return certificate.get("above") if certificate.get("near") is False else None


def _optimum(summary: dict[str, Any]) -> float:
    """The optimum's objective, as far as a run tells; nan where it does not."""
    certificate, last = summary.get("certificate") or {}, summary.get("final", {}).get("objective")
    if last is None:
        return float("nan")
    if certificate.get("near") is not None and certificate.get("above") is not None:
        return last / (1 + certificate["above"])
    return last if _certified(certificate) else float("nan")


def _told(runs: RunTable, optima: Sequence[float]) -> Any:
    """The column ``above``, filled where another run tells the optimum; own models have other ones."""
    import numpy as np

    above, last = runs.column("above").copy(), runs.column("final_objective")
    fits = (runs.frame["status"] == "done").to_numpy() & np.isnan(runs.column("final_personal_train_loss"))
    seeds = [key for key in SEED_KEYS[1:] if key in runs.frame]
    for _, own in runs.frame.groupby([*runs.problem_keys("objective"), *seeds], dropna=False):
        places = own.index.to_numpy()
        if least := min((optima[place] for place in places if optima[place] == optima[place]), default=0.0):
            shares = (last[places] - least) / abs(least)
            far = fits[places] & np.isnan(above[places]) & (shares > NEAR_OPTIMUM)
            above[places[far]] = shares[far]
    return above


def _certified(certificate: dict[str, Any]) -> bool | None:
    """Whether a baseline's solution is certified; None for other runs."""
    return None if "near" in certificate else certificate.get("certified")


def load_configs(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The flat configurations of records. Where plug-ins of different code have one name, each has its digest behind
    it, "mine (1a2b3c4d)", or its class's name if it is fcorun's: they are no seeds of one another."""
    configs = [_held(record.flat_config) for record in records]
    for section in IDENTITY_SECTIONS:
        codes = [_code(record, config, section) for record, config in zip(records, configs, strict=True)]
        of_name: dict[Any, set] = {}
        for config, code in zip(configs, codes, strict=True):
            if code is not None:
                of_name.setdefault(config.get(f"{section}.name"), set()).add(code)
        for config, code in zip(configs, codes, strict=True):
            if code is not None and len(of_name[config.get(f"{section}.name")]) > 1:
                path, digest = code
                told = digest[:8] or path.rpartition(".")[2]
                named = [key for key in (f"{section}.name", f"{section}.title") if key in config]
                config |= {key: f"{config[key]} ({told})" for key in named}
    return configs


def _code(record: Record, config: dict[str, Any], section: str) -> tuple[str, str] | None:
    """The class of a record's plug-in and the digest of its code, "" for one of fcorun; None where nothing says it."""
    path = config.get(f"{section}.class")
    if path is None:
        return None
    own = not str(path).startswith("fcorun.")
    return str(path), str(record.plugins.get(section, {}).get("digest", "")) if own else ""


def _held(config: dict[str, Any]) -> dict[str, Any]:
    """A flat configuration with no strength where ``reg.relative`` replaces it; older records hold both."""
    return config | {"reg.strength": None} if config.get("reg.relative") is not None else config


def sort_records(records: Iterable[Record], first: Sequence[str] = ()) -> list[Record]:
    """Records in the order of what was varied: by algorithm, those of ``first`` before others, by data, then by each
    key."""
    records = list(records)
    found = list(zip(records, load_configs(records), strict=True))
    varied = _varied([config for _, config in found])
    places = {algo: place for place, algo in enumerate(first)}

    def place(found: tuple[Record, dict[str, Any]]) -> tuple:
        record, config = found
        algo, data = str(config.get("algo.name", "")), str(config.get("data.name", ""))
        keys = [_rank(config.get(_setting(key))) for key in varied]
        return (places.get(algo, len(places)), algo, data, keys, str(record.folder))

    return [record for record, _ in sorted(found, key=place)]


def drop_superseded(records: Sequence[Record]) -> tuple[list[Record], str]:
    """Each run once, a finished record before others; and of finished runs with the same configuration, of other code
    or other content of the data, the one that was asked for last. How many of each kind that leaves out, in a sentence
    a kind, or nothing."""
    runs: dict[str, Record] = {}  # copies would count as several seeds
    for record in records:
        identity = record.status.get("identity") or str(record.folder)
        if identity not in runs or (record.finished and not runs[identity].finished):
            runs[identity] = record
    newest: dict[str, Record] = {}
    for record in runs.values():
        config = record.flat_config
        told = sorted((key, repr(value)) for key, value in config.items() if key not in keys_outside_identity())
        same = repr(told) if config and record.finished else str(record.folder)
        if same not in newest or _when(newest[same]) < _when(record):
            newest[same] = record
    kept = set(map(id, newest.values()))
    asides = []
    if copies := len(records) - len(runs):
        asides.append(f"{copies} of {len(records)} records are of a run that another folder holds too: left out")
    if others := len(runs) - len(newest):
        rest = f"{len(runs)} {'other ' if copies else ''}records"
        asides.append(f"{others} of {rest} are of other code or other data than one of the same configuration that was "
                      "asked for later: left out")  # fmt: skip
    return [record for record in records if id(record) in kept], "; ".join(asides)


def _when(record: Record) -> float:
    """When a record was last written, or asked for, in seconds."""
    try:
        return (record.folder / "status.json").stat().st_mtime
    except OSError:
        return 0.0


def _rank(value: Any) -> tuple[int, float, str]:
    """Where a value stands among others of its key: none, then numbers, then text."""
    number = isinstance(value, (int, float)) and value == value
    return (0, 0.0, "") if value is None else (1, float(value), "") if number else (2, 0.0, str(value))


def _measured(record: Record, summary: dict, tail_rounds: int | None, metrics: MetricCatalogue) -> dict[str, dict]:
    """The final, best and tail values of a record by metric; those of a diverged one are no results, and empty."""
    found = {kind: summary.get(kind, {}) for kind in _KINDS}
    if tail_rounds is not None and found["tail"] and summary.get("tail_rounds") != tail_rounds:
        stopped = bool(summary.get("stopped"))
        found["tail"] = aggregate(record.rows, tail_rounds, metrics, stopped=stopped)["tail"]
    found["best"] = {name: best["value"] for name, best in found["best"].items()}
    if summary.get("status") == "diverged":  # what it was before that is in metrics.csv
        found = {kind: dict.fromkeys(values) for kind, values in found.items()}
    return found


def _agreed(summaries: Iterable[dict], name: str) -> Any:
    """What all summaries that have it say; None if they differ."""
    values = {summary[name] for summary in summaries if name in summary}
    return values.pop() if len(values) == 1 else None


def _varied(configs: list[dict[str, Any]]) -> list[str]:
    """The keys that take several values in these flat configurations, in the order of the configurations."""
    values: dict[str, set] = {}
    for config in configs:
        for key, value in config.items():
            values.setdefault(key, set()).add((value is None, type(value) is bool, value))
    varied = [key for key, seen in values.items() if len(seen) > 1]
    named = [section for section in IDENTITY_SECTIONS[2:] if f"{section}.name" in varied]
    return named + [
        key for key in varied if key.split(".")[-1] not in LABEL_KEYS and key not in keys_outside_identity()
    ]


def _of_each(frame: DataFrame, varied: list[str]) -> dict[str, list[str]]:
    """The keys that vary among the runs of each algorithm, without seeds."""
    return {
        algo: [key for key in varied if key not in SEED_KEYS and len({str(v) for v in column_values(own[key])}) > 1]
        for algo, own in frame.groupby("algo")
    }


def _setting(key: str) -> str:
    return f"{key}.name" if key in IDENTITY_SECTIONS else key


def _under(folder: Path, root: Path | None) -> Path:
    return folder.relative_to(root) if root is not None and folder.is_relative_to(root) else folder
