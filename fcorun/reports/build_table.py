"""The table of runs, read from records."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.base.config import (
    IDENTITY_SECTIONS,
    LABEL_KEYS,
    keys_outside_identity,
)
from fcorun.base.metrics import (
    COUNTERS,
    EPSILON,
    GAP_METRICS,
    GAP_RESOLUTION,
    NEAR_OPTIMUM,
    OPTIONAL_COUNTERS,
    MetricCatalogue,
    aggregate,
    differ_in_epsilon,
    from_summaries,
    is_baseline_row,
)
from fcorun.base.override_text import split_overrides
from fcorun.base.records.record import Record
from fcorun.reports.run_table import (
    CHOSEN_STRENGTH,
    DATA_SEED_KEYS,
    SEED_KEYS,
    DataFrame,
    RunTable,
    is_number,
)

_ENDS_WITH_DIGEST = re.compile(r" \([0-9a-f]{8}\)$")  # the names that ``load_configs`` tells apart
_KINDS = ("final", "best", "tail")


def build_table(
    records: Sequence[Record],
    tail_rounds: int | None = None,
    *,
    root: Path | None = None,
    conditions: Sequence[str] | None = None,
) -> RunTable:
    """Return a table with a row for each record, in their order. Runs that are not done have empty cells.

    Columns: folder (relative to ``root``), algo, data, the varied keys, status, reason, then

    - drawn: whether the numbers of the run depend on the seed;
    - falling: the share by which the objective was still falling at the end; empty if it was flat;
    - above: the share by which the objective ended above the optimum, if this run or another one on the same problem
      computed the optimum, and the share is more than a hundredth;
    - certified: whether a baseline's solution is certified;
    - resolution: the smallest gap to the optimum that is no rounding of the objective (only if some run has a gap);
    - spectral_gap: that of the graph (only if some run has one);
    - chosen_strength: the strength that a run chose (only if some run did, by ``study.strength``);
    - ignores_regularizer: whether the algorithm ignores the regularizer (only if some run does);
    - away: the rounds that a run over sites went on without a site (only if some run did);
    - rounds (rounds_done if the key ``rounds`` varies), final_METRIC, best_METRIC, tail_METRIC (the mean over the last
      ``tail_rounds`` rounds, by default those of the run's own configuration);
    - seconds (without set-up and compilation), and the other counters (bytes_up, ...).

    A key that an algorithm does not have is empty, and so is a counter that a record does not have, and a condition on
    which a baseline does not depend. Points are compared within each combination of the ``conditions`` of their sweep,
    of what asks for privacy, and of seeds that draw another world.
    """
    import pandas as pd

    configs = load_configs(records)
    summaries = [record.summary_or_empty for record in records]
    metrics = from_summaries(summaries)
    varied = find_varied_keys(configs)
    conditions = tuple(dict.fromkeys((*(conditions or ()), *_find_own_conditions(varied, configs, summaries))))
    rounds = "rounds_done" if "rounds" in varied else "rounds"
    rows: list[dict[str, Any]] = []
    measured: dict[str, None] = {}
    for record, config, summary in zip(records, configs, summaries, strict=True):
        values = _read_metrics(record, summary, tail_rounds, metrics)
        measured |= dict.fromkeys(values["final"])
        row = _describe_run(record, config, summary, root)
        row |= _read_keys(record, config, varied, conditions)
        row[rounds] = row.pop("rounds_done")
        row["resolution"] = _resolve_gap(config, row, values["final"])
        for kind, by_metric in values.items():
            row |= {f"{kind}_{name}": value for name, value in by_metric.items()}
        rows.append(row)
    values_columns = [f"{kind}_{name}" for kind in _KINDS for name in metrics.sort(measured)]
    values_columns = [name for name in values_columns if any(name in row for row in rows)]
    unused = {name for name in OPTIONAL_COUNTERS if all(row[name] is None for row in rows)}
    counters = [name for name in COUNTERS[2:] if name not in unused]
    end_columns = ["status", "reason", "drawn", "falling", "above", "certified"]
    optional = ("resolution", "spectral_gap", CHOSEN_STRENGTH, "ignores_regularizer", "away")
    end_columns += [name for name in optional if any(row[name] for row in rows)]
    columns = ["folder", "algo", "data", *varied, *end_columns, rounds, *values_columns, "seconds", *counters]
    frame: DataFrame = pd.DataFrame(rows, columns=columns)
    _keep_integers(frame, rows, (rounds, *counters, *varied))
    tail = tail_rounds if tail_rounds is not None else _common_value(summaries, "tail_rounds")
    longest = max([row[rounds] or 0 for row in rows if not is_baseline_row(row)], default=0)
    if tail is not None and longest:  # a run of 30 rounds has no last 100
        tail = min(tail, longest)
    runs = RunTable(
        frame,
        metrics,
        _distinct_titles(configs),
        tail_rounds=tail,
        cutoff=_common_value(summaries, "cutoff"),
        renamed_data=[name for name in frame["data"].dropna().unique() if _ENDS_WITH_DIGEST.search(name)],
        has_stopped=any(summary.get("stopped") and not summary.get("convergence") for summary in summaries),
        reads_files=any(config.get("data.path") or config.get("data.root") for config in configs),
        conditions=conditions,
        seeds_of_data=_find_seeds_of_data(configs),
    )
    optima = [_read_optimum(summary, config) for summary, config in zip(summaries, configs, strict=True)]
    frame["above"] = _share_above_optimum(runs, optima)
    for key in runs.open_conditions:  # a baseline is run once for all cohorts
        frame[key] = frame[key].mask(runs.are_baselines())
    return runs


def tabulate_plans(
    configs: list[dict[str, Any]], conditions: Sequence[str], choices_of_privacy: Collection[str]
) -> RunTable:
    """Return a table of runs that have not begun, by their flat configurations: the keys that vary, and no results.

    Conditions are those of the sweep and those that ``build_table`` finds by the keys alone.
    """
    import pandas as pd

    varied = find_varied_keys(configs)
    rows = []
    for config in configs:
        row = {"algo": config["algo.name"], "data": config["data.name"], "status": "new"}
        rows.append(row | {key: config.get(_config_key(key)) for key in varied})
    own = [key for key in varied if is_environment_seed(key) or asks_for_privacy(key, choices_of_privacy)]
    frame = pd.DataFrame(rows, columns=["algo", "data", *varied, "status"])
    return RunTable(frame, conditions=[*conditions, *own], seeds_of_data=_find_seeds_of_data(configs))


def asks_for_privacy(key: str, choices: Collection[str]) -> bool:
    """Return whether a key says how private a run must be, of which less is always better for the model.

    ``choices`` are the fields of the mechanisms that do not, ``Privacy.choices``.
    """
    section, _, field_name = key.partition(".")
    return section == "privacy" and field_name not in choices


def is_environment_seed(key: str) -> bool:
    """Return whether a key is the seed of a clock, a graph or faults, and not of the method or the data.

    Its values draw other environments, of which the luckiest is no choice.
    """
    section, _, field_name = key.partition(".")
    return field_name == "seed" and section not in ("algo", "data")


def _find_own_conditions(varied: Sequence[str], configs: Sequence[dict], summaries: Sequence[dict]) -> list[str]:
    """Return the varied keys that are conditions by themselves.

    They ask for privacy, are seeds of the environment, or are such that private runs alike in all others end at
    another epsilon.

    Runs that met a target or diverged have spent less, by their own numbers: they do not count.
    """
    choices: set[str] = set()
    for summary in summaries:
        choices.update(map(str, (summary.get("privacy") or {}).get("choices", ())))
    found = [key for key in varied if is_environment_seed(key) or asks_for_privacy(key, choices)]
    for key in varied:
        epsilons: dict[tuple, list[float]] = {}
        for config, summary in zip(configs, summaries, strict=True):
            epsilon = summary.get("final", {}).get(EPSILON)
            if epsilon is not None and summary.get("status") == "done" and not summary.get("stopped"):
                others = [name for name in ("algo.name", "data.name", *varied) if name != key]
                values = tuple(str(config.get(_config_key(name))) for name in others)
                epsilons.setdefault(values, []).append(epsilon)
        if any(differ_in_epsilon(spent) for spent in epsilons.values()):
            found.append(key)
    return found


def _find_seeds_of_data(configs: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the keys of seeds that take several values on each data set, from cohorts to data."""
    values: dict[str, dict[str, set]] = {}
    for config in configs:
        seeds = values.setdefault(str(config.get("data.name")), {key: set() for key in SEED_KEYS})
        for key in SEED_KEYS:
            if key in config:
                seeds[key].add(config[key])
    return {data: [key for key in SEED_KEYS if len(seeds[key]) > 1] for data, seeds in values.items()}


def _describe_run(record: Record, config: dict[str, Any], summary: dict[str, Any], root: Path | None) -> dict[str, Any]:
    """Return the cells of a record's row but for its varied keys and its metrics."""
    status = record.status
    certificate = summary.get("certificate") or {}
    folder = record.folder
    if root is not None and folder.is_relative_to(root):
        folder = folder.relative_to(root)
    label = dict(re.findall(r"(?:^|[\s,])(algo|data)=([^\s,]+)", str(status.get("label", ""))))
    return {
        "folder": str(folder),
        "algo": config.get("algo.name", label.get("algo")),
        "data": config.get("data.name", label.get("data")),
        "status": status.get("status", "unknown"),
        "reason": status.get("reason", ""),
        "drawn": summary.get("drawn"),
        "falling": (summary.get("unfinished") or {}).get("fell"),
        "above": certificate.get("above") if certificate.get("near") is False else None,
        "certified": _is_certified(certificate),
        "spectral_gap": summary.get("spectral_gap"),
        CHOSEN_STRENGTH: (summary.get("selection") or {}).get("strength"),
        "ignores_regularizer": summary.get("ignores_regularizer"),
        "away": "; ".join(summary.get("away") or ()) or None,
        "rounds_done": status.get("round") if status.get("status") == "running" else summary.get("round"),
        "seconds": summary.get("seconds", {}).get("steady"),
        **{name: summary.get(name) for name in COUNTERS[2:]},
    }


def _read_keys(
    record: Record, config: dict[str, Any], keys: Sequence[str], conditions: Sequence[str]
) -> dict[str, Any]:
    """Return the values of keys; "unknown" for a condition that a run without a configuration does not name."""
    cells = {key: config.get(_config_key(key)) for key in keys}
    if not record.flat_config:
        cells |= {key: "unknown" for key in keys if key in conditions and _config_key(key) not in config}
    return cells


def _read_label(record: Record) -> dict[str, Any]:
    """Return the values that the label of a run gives which failed before it had a configuration."""
    values: dict[str, Any] = {}
    for key, _, text in (given.partition("=") for given in split_overrides(str(record.status.get("label", "")))):
        try:
            values[_config_key(key)] = json.loads(text)  # numbers, null, true and false
        except ValueError:
            values[_config_key(key)] = text
    return values


def _resolve_gap(config: dict[str, Any], row: dict[str, Any], final: dict[str, float | None]) -> float | None:
    """Return the smallest gap that the precision of a run resolves at its last objective; None for a run without gaps.

    The solver of a baseline computes in float64.
    """
    objective = final.get("objective")
    if objective is None or not any(name in final for name in GAP_METRICS):
        return None
    precision = "float64" if is_baseline_row(row) else config.get("precision", "float32")
    return GAP_RESOLUTION[precision] * abs(objective)


def _distinct_titles(configs: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the title of each algorithm that has one, followed by its name where another has the same title."""
    titles = {config["algo.name"]: config["algo.title"] for config in configs if "algo.title" in config}
    count = Counter(titles.values())
    return {name: f"{title} ({name})" if count[title] > 1 else title for name, title in titles.items()}


def _keep_integers(frame: DataFrame, rows: Sequence[dict[str, Any]], names: Iterable[str]) -> None:
    """Set the columns ``names`` that hold integers alone again: pandas made reals of those with empty cells."""
    import pandas as pd

    for name in names:
        numbers = [row[name] for row in rows]
        if all(type(number) is int for number in numbers if number is not None):
            has_large = any(number is not None and abs(number) >= 2**63 for number in numbers)
            frame[name] = pd.array(numbers, dtype=object if has_large else "Int64")


def _read_optimum(summary: dict[str, Any], config: dict[str, Any]) -> float:
    """Return the optimum of the objective if a run computed it, else nan.

    A baseline with the option ``client`` has solved the problem of one client alone.
    """
    certificate = summary.get("certificate") or {}
    last = summary.get("final", {}).get("objective")
    if last is None:
        return float("nan")
    if certificate.get("near") is not None and certificate.get("above") is not None:
        above = certificate["above"]  # a share of the optimum without its sign
        if last >= 0 and above > 1:  # the optimum may be negative
            return float("nan")
        return last / (1 + above if last >= 0 else 1 - above)
    is_of_one_client = config.get("algo.client") is not None
    return last if _is_certified(certificate) and not is_of_one_client else float("nan")


def _share_above_optimum(runs: RunTable, optima: Sequence[float]) -> Any:
    """Return the column ``above``, filled from the optimum of another run on the same problem.

    Runs with personal models are left out: they have other optima. A condition that is no key of the data, such as the
    cohort, leaves the optimum as it is.
    """
    above = runs.column("above").copy()
    last = runs.column("final_objective")
    eligible = (runs.frame["status"] == "done").to_numpy() & np.isnan(runs.column("final_personal_train_loss"))
    seeds = [key for key in DATA_SEED_KEYS if key in runs.frame]
    keys = dict.fromkeys((*runs.data_keys, *runs.function_keys("objective"), *seeds))
    for _, group in runs.frame.groupby([*keys], dropna=False):
        rows = group.index.to_numpy()
        known = [optima[row] for row in rows if not np.isnan(optima[row])]
        optimum = min(known, default=0.0)
        if optimum:
            shares = (last[rows] - optimum) / abs(optimum)
            far = eligible[rows] & np.isnan(above[rows]) & (shares > NEAR_OPTIMUM)
            above[rows[far]] = shares[far]
    return above


def _is_certified(certificate: dict[str, Any]) -> bool | None:
    """Return whether a baseline's solution is certified; None for other runs."""
    return None if "near" in certificate else certificate.get("certified")


def load_configs(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the flat configurations of records, with names that tell plug-ins of different code or rows apart.

    If plug-ins of different code have one name, the digest of the code follows the name, "mine (1a2b3c4d)", or the
    name of the class for one of fcorun's. Otherwise their runs would count as seeds of one another. Likewise the digest
    of the rows follows the name of data whose rows differ although no option does, as of a file that was edited.
    """
    configs = []
    known_keys = {key for record in records for key in record.flat_config}
    for record in records:
        config = record.flat_config
        if not config:
            config = {key: value for key, value in _read_label(record).items() if key in known_keys}
        if config.get("reg.relative") is not None or config.get("study.strength") is not None:  # replaces the strength
            config = config | {"reg.strength": None}
        configs.append(config)
    for section in IDENTITY_SECTIONS:
        codes: list[tuple[str, str]] = []  # the class of each plug-in and the digest of its code, "" for fcorun's
        codes_of_name: dict[Any, set] = {}
        for record, config in zip(records, configs, strict=True):
            path = str(config.get(f"{section}.class", ""))
            digest = ""
            if path and not path.startswith("fcorun."):
                digest = str(record.plugins.get(section, {}).get("digest", ""))
            codes.append((path, digest))
            codes_of_name.setdefault(config.get(f"{section}.name"), set()).add((path, digest))
        for config, (path, digest) in zip(configs, codes, strict=True):
            if not path or len(codes_of_name[config.get(f"{section}.name")] - {("", "")}) == 1:
                continue
            suffix = digest[:8] or path.rpartition(".")[2]
            for key in (f"{section}.name", f"{section}.title"):
                if key in config:
                    config[key] = f"{config[key]} ({suffix})"
    _name_changed_rows(records, configs)
    return configs


def _name_changed_rows(records: Sequence[Record], configs: Sequence[dict[str, Any]]) -> None:
    """Append the digest of the rows to the names of data that have other rows with the same options in some record."""
    digests_of_data: dict[str, dict[int, str]] = {}  # by the options of the data, then by the index of the record
    for i, (record, config) in enumerate(zip(records, configs, strict=True)):
        digest = (record.summary_or_empty.get("data") or {}).get("fingerprint")
        if digest:
            options = repr([(key, value) for key, value in config.items() if key.startswith("data.")])
            digests_of_data.setdefault(options, {})[i] = digest
    for digests in digests_of_data.values():
        if len(set(digests.values())) > 1:
            for i, digest in digests.items():
                configs[i]["data.name"] = f"{configs[i].get('data.name')} ({digest[:8]})"


def sort_records(records: Iterable[Record], first: Sequence[str] = ()) -> list[Record]:
    """Return records sorted by algorithm, those of ``first`` before others, then by data, then by each varied key."""
    records = list(records)
    configs = load_configs(records)
    varied = find_varied_keys(configs)
    position = {algo: i for i, algo in enumerate(first)}

    def sort_key(item: tuple[Record, dict[str, Any]]) -> tuple:
        record, config = item
        algo, data = str(config.get("algo.name", "")), str(config.get("data.name", ""))
        values = []
        for key in varied:  # none, then numbers, then text
            value = config.get(_config_key(key))
            values.append((value is not None, not is_number(value), value if is_number(value) else str(value)))
        return (position.get(algo, len(position)), algo, data, values, str(record.folder))

    return [record for record, _ in sorted(zip(records, configs, strict=True), key=sort_key)]


def drop_superseded(records: Sequence[Record]) -> tuple[list[Record], str]:
    """Return each run once, and a sentence on the records that are left out, or "".

    Of copies of one run, a finished record is kept. Of finished runs with the same configuration but other code or
    other data, the last written one is kept.
    """
    runs: dict[str, Record] = {}  # copies would count as several seeds
    for record in sorted(records, key=lambda record: not record.finished):
        runs.setdefault(record.status.get("identity") or str(record.folder), record)
    newest: dict[str, Record] = {}
    for record in sorted(runs.values(), key=_last_written):
        settings = str(record.folder)
        if record.finished and (config := record.flat_config):
            ignored = keys_outside_identity()
            settings = repr(sorted((key, repr(value)) for key, value in config.items() if key not in ignored))
        newest[settings] = record
    sentences = []
    if copies := len(records) - len(runs):
        sentences.append(f"{copies} of {len(records)} records are of a run that another folder holds too: left out")
    if superseded := len(runs) - len(newest):
        total = f"{len(runs)} {'other ' if copies else ''}records"
        sentences.append(
            f"{superseded} of {total} have the configuration of a run that was finished or asked for later, with "
            "other code or other data: left out"
        )
    kept = {id(record) for record in newest.values()}
    return [record for record in records if id(record) in kept], "; ".join(sentences)


def _last_written(record: Record) -> float:
    """Return the time at which a record was last written or asked for, in seconds since the epoch."""
    try:
        return (record.folder / "status.json").stat().st_mtime
    except OSError:
        return 0.0


def _read_metrics(record: Record, summary: dict, tail_rounds: int | None, metrics: MetricCatalogue) -> dict[str, dict]:
    """Return the final, best and tail values of a record by metric; None for those of a diverged run."""
    values = {kind: summary.get(kind, {}) for kind in _KINDS}
    if tail_rounds is not None and values["tail"] and summary.get("tail_rounds") != tail_rounds:
        stopped = bool(summary.get("stopped"))
        values["tail"] = aggregate(record.rows, tail_rounds, metrics, stopped=stopped)["tail"]
    values["best"] = {name: best["value"] for name, best in values["best"].items()}
    if summary.get("status") == "diverged":
        values = {kind: dict.fromkeys(by_metric) for kind, by_metric in values.items()}
    return values


def _common_value(summaries: Iterable[dict], name: str) -> Any:
    """Return the value that all summaries with this key agree on; None if they differ."""
    values = {summary[name] for summary in summaries if name in summary}
    return values.pop() if len(values) == 1 else None


def find_varied_keys(configs: list[dict[str, Any]]) -> list[str]:
    """Return the keys that take several values in flat configurations, in the order of the configurations.

    A section whose name varies comes first, as ``reg`` for ``reg.name``. Algorithm and data have columns of their own.
    """
    values_of_key: dict[str, set] = {}
    for config in configs:
        for key, value in config.items():
            values_of_key.setdefault(key, set()).add((value is None, type(value) is bool, value))
    varied = [key for key, values in values_of_key.items() if len(values) > 1]
    sections = [section for section in IDENTITY_SECTIONS[2:] if f"{section}.name" in varied]
    ignored = keys_outside_identity()
    return sections + [key for key in varied if key.split(".")[-1] not in LABEL_KEYS and key not in ignored]


def _config_key(key: str) -> str:
    return f"{key}.name" if key in IDENTITY_SECTIONS else key
