"""The runs of the page: a sentence about them, and their table."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from fcorun.base.cohorts import read_participation, read_turn_share
from fcorun.base.metrics import structure_metrics
from fcorun.base.records.record import FINISHED_STATUSES, Record
from fcorun.base.records.single_patients import hide_row_numbers
from fcorun.reports.build_table import load_configs
from fcorun.reports.page.elements import facts_table, html_table, screen_or_paper
from fcorun.reports.problem_values import OPEN
from fcorun.reports.run_table import RunTable, format_number, is_number
from fcorun.reports.sweep_report import STATUSES, best_marks_caption, describe_end, metric_header

_MAX_VALUES = 5  # of a key, in a sentence
_COSTS = ("seconds", "bytes_up", "bytes_down", "grad_evals")
_MAX_CONFIG_VALUES = 8  # of a key, in a cell


def describe_runs(records: Sequence[Record], runs: RunTable) -> str:
    """Return a sentence on the algorithms, the data, the rounds and what was varied. Baselines have no rounds."""
    configs = load_configs(records)
    with_rounds = []
    for config, is_baseline in zip(configs, runs.are_baselines(), strict=True):
        if config.get("rounds") is not None and not is_baseline:
            with_rounds.append(config)

    def values_of(key: str) -> list[Any]:
        return list(dict.fromkeys(config[key] for config in configs if config.get(key) is not None))

    count = "One run" if len(records) == 1 else f"{len(records)} runs"
    algos = _join([runs.algo_title(str(algo)) for algo in values_of("algo.name")]) or "an unknown algorithm"
    data = _join(values_of("data.name")) or "unknown data"
    sizes = set()
    for record in records:
        about = record.summary_or_empty.get("data") or {}
        sizes.add((about.get("clients"), about.get("examples"), about.get("features")))
    size = sizes.pop()
    if not sizes and None not in size:  # all runs have ended, on data of one size
        data += " ({:,} clients, {:,} rows for training, {:,} features)".format(*size)
    parts = [f"{count} of {algos} on {data}"]
    for section in ("regularizer", "objective"):
        if names := values_of("reg.name" if section == "regularizer" else "objective.name"):
            parts.append(f"{section} {_join(names)}")
    if with_rounds:
        parts.append(f"{_join(list(dict.fromkeys(config['rounds'] for config in with_rounds)))} rounds")
        cohorts = list(dict.fromkeys(_name_size(config.get("clients_per_round")) for config in with_rounds))
        parts.append("all clients in each" if cohorts == ["all"] else f"{_join(cohorts)} clients a round")
    text = ", ".join(parts) + "."
    varied = []
    for key in runs.varied_keys:
        problems = runs.read_problems([key], [[run] for run in range(len(runs))])
        values = [value for (value,) in problems if value is not OPEN]
        if key in ("clients_per_round", "batch_size"):
            values = ["all" if size is None else size for size in values]
        distinct = list(dict.fromkeys(value for value in values if value is not None))
        text_of_values = f"{len(distinct)} values"
        if len(distinct) <= _MAX_VALUES:
            text_of_values = ", ".join(map(format_number, distinct))
        elif all(map(is_number, distinct)):
            text_of_values += f" from {format_number(min(distinct))} to {format_number(max(distinct))}"
        varied.append(f"{key} ({text_of_values})")
    return text + (f" Varied: {', '.join(varied)}." if varied else "")


def title_runs(records: Sequence[Record], runs: RunTable) -> str:
    """Return a title: the algorithms and the data sets, or their numbers if they are many."""
    configs = load_configs(records)

    def names_of(key: str, kind: str, name_title: Callable[[str], str] = str) -> str:
        names = list(dict.fromkeys(format_number(config[key]) for config in configs if config.get(key)))
        return _join([name_title(name) for name in names]) if len(names) <= _MAX_VALUES else f"{len(names)} {kind}"

    algorithms = names_of("algo.name", "algorithms", runs.algo_title)
    return f"{algorithms or 'Runs'} on {names_of('data.name', 'data sets') or 'unknown data'}"


def _name_size(cohort: Any) -> Any:
    """Return the number of clients of a round, "all", or "10 % of the", which "clients a round" follows."""
    participation = read_participation(cohort)
    if participation is not None:
        return f"about {100 * participation:.3g} % of the"
    turn_share = read_turn_share(cohort)
    if turn_share is not None:
        return f"{100 * float(turn_share):.3g} % of the"
    return "all" if cohort is None else cohort


def _join(values: Sequence[Any]) -> str:
    """Return values as text, "a, b and c"."""
    *first, last = map(format_number, values) if values else [""]
    return f"{', '.join(first)} and {last}" if first else last


def describe_statuses(runs: RunTable, missing_runs: Sequence[str]) -> str:
    """Return a sentence on how runs ended, "" if all are done; ``missing_runs`` of a sweep have not started."""
    statuses = list(runs.frame["status"])
    missing = len(set(missing_runs))
    is_open = missing > 0 or any(status not in (*FINISHED_STATUSES, "failed") for status in statuses)
    if not is_open and set(statuses) <= {"done"}:
        return ""
    count = Counter(statuses)
    parts = [f"{count[status]} {status}" for status in STATUSES if count[status]]
    if missing:
        parts.append(f"{missing} not started")
    text = f"Of {len(runs) + missing} runs: {', '.join(parts)}."
    if is_open:
        text += " Some runs have not ended: this page shows the records at the time it was written."
    return text


def result_table(record: Record, runs: RunTable) -> str:
    """Return the table of a single run's metrics: the last value, the best value, and the mean of the tail.

    The tail of a baseline and of a run that stopped at a target is the last value. A diverged run has none.
    """
    summary = record.summary_or_empty
    final, best = (summary.get(kind) or {} for kind in ("final", "best"))
    rows = []
    for name, value in final.items():
        best_value, best_round = None, None  # a metric without a better direction has no best value
        if isinstance(best.get(name), dict):
            best_value, best_round = best[name].get("value"), best[name].get("round")
        rows.append([name, value, best_value, best_round, runs.tail_values(name)[0]])
    headers = ["metric", "at the end", "best", "at round"]
    is_diverged = summary.get("status") == "diverged"
    n_rounds = runs.tail_rounds or 0
    if n_rounds > 1 and not (summary.get("stopped") or is_diverged or runs.are_baselines().all()):
        headers.append(f"mean of the last {n_rounds} rounds")
    return html_table(headers, [row[: len(headers)] for row in rows])


def run_facts(runs: RunTable) -> str:
    """Return the table of the settings and the costs of a single run."""
    (row,) = runs.to_dicts()
    row["status"] = describe_end(row)
    rounds = "rounds" if "rounds" in runs.frame else "rounds_done"
    names = ["algo", "data", "status", rounds, *_COSTS, "folder"]
    return facts_table([(name, row[name]) for name in names if format_number(row.get(name)) not in ("", ".")])


def runs_table(runs: RunTable, metric: str) -> str:
    """Return the table of the runs: keys, status, tail averages and costs, with marks at the runs of best points."""
    best = runs.best_points(metric)
    marks = {run: "=" for tied in best["tied"] for rows in tied for run in rows}
    marks |= {run: "*" for rows in best["rows"] for run in rows}
    rounds = "rounds_done" if "rounds" in runs.varied_keys else "rounds"
    settings = list(dict.fromkeys(["algo", "data", *runs.varied_keys, "status", rounds]))
    metrics = dict.fromkeys((metric, *structure_metrics(metric), "objective", *runs.tail_metrics))
    metrics = [name for name in metrics if name in runs.tail_metrics]
    costs = [name for name in _COSTS if name in runs.frame]
    tail_values = [runs.tail_values(name) for name in metrics]
    lines = []
    for run, row in enumerate(runs.to_dicts()):
        row["status"] = describe_end(row)
        cells = [marks.get(run, "")]
        cells += [row[name] for name in settings]
        cells += [float(values[run]) for values in tail_values]
        cells += [*(row[name] for name in (*costs, "folder")), hide_row_numbers(row["reason"] or "")]
        lines.append(cells)
    metric_keys = [f"metric.{name}" if name in settings else name for name in metrics]
    keys = ["best", *settings, *metric_keys, *costs, "folder", "reason"]
    metric_headers = [" ".join(metric_header(runs, name).split()) for name in metrics]
    headers = ["best", *settings, *metric_headers, *costs, "folder", "reason"]
    caption = best_marks_caption(runs, metric, metrics, has_ties="=" in marks.values()) + "."
    return html_table(headers, lines, "runs", caption, keys=keys)


def configuration_table(records: Sequence[Record], comments: Mapping[str, str]) -> str:
    """Return a row for each key: its value, or its values if it varies, and its comment.

    On paper two keys stand side by side, without their comments and without the classes of fcorun's own choices.
    """
    configs = [config for record in records if (config := record.flat_config)]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    if not keys:
        return ""
    rows = []
    for key in keys:
        all_values = [config[key] for config in configs if key in config]
        values = list(dict.fromkeys("null" if value is None else str(value) for value in all_values))
        text = ", ".join(values[:_MAX_CONFIG_VALUES])
        if len(values) > _MAX_CONFIG_VALUES:
            text += f", ... ({len(values)} values)"
        if lacking := len(configs) - len(all_values):
            text += f" (of {len(all_values)} runs; {lacking} have no such key)"
        rows.append((key, text))
    screen = html_table(["key", "value", "what it is"], [(*row, comments.get(row[0], "")) for row in rows])
    printed = [(key, value) for key, value in rows if not (key.endswith(".class") and value.startswith("fcorun."))]
    half = (len(printed) + 1) // 2
    pairs = zip_longest(printed[:half], printed[half:], fillvalue=("", ""))
    paper = html_table(["key", "value", "key", "value"], [(*left, *right) for left, right in pairs])
    return screen_or_paper(screen, paper)


def describe_versions(records: Sequence[Record]) -> list[str]:
    """Return a sentence for each set of versions and machines that runs were made with, the most used first."""
    count: Counter[tuple] = Counter()
    for record in records:
        summary = record.summary_or_empty
        if not summary.get("versions"):
            continue
        parts = [f"{name} {number}" for name, number in summary["versions"].items()]
        parts.append(f"commit {summary['git']}" if summary.get("git") else "commit not known")
        parts += [str(summary[key]) for key in ("device", "platform") if summary.get(key)]
        count[tuple(parts)] += 1
    return [f"{n} run{'s' * (n != 1)}: {', '.join(versions)}." for versions, n in count.most_common()]
