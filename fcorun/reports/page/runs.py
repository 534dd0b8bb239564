"""What was run, in a sentence, and the table of runs."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from fcorun.metrics import structure_metrics
from fcorun.records.formats import read_summary
from fcorun.records.record import FINISHED_STATUSES, Record
from fcorun.reports.build_table import load_configs
from fcorun.reports.page.elements import (
    facts_table,
    format_value,
    html_table,
    scrollable_table,
    sortable_headers,
    table_cell,
)
from fcorun.reports.run_table import RunTable, column_values
from fcorun.reports.sweep_report import STATUSES, describe_end, metric_header, tail_caption

_MOST = 5  # values of a key that are told one by one


def describe_runs(records: Sequence[Record], runs: RunTable) -> str:
    """What was run: algorithms, data, rounds, what was varied."""
    configs = load_configs(records)

    def each(key: str) -> list[Any]:
        return list(dict.fromkeys(config[key] for config in configs if config.get(key) is not None))

    count = "One run" if len(records) == 1 else f"{len(records)} runs"
    text = f"{count} of {_listed([runs.algo_title(str(algo)) for algo in each('algo.name')]) or 'an unknown algorithm'}"
    text += f" on {_listed(each('data.name')) or 'unknown data'}{_size(records)}"
    told = [f"{word} {_listed(found)}" for word, key in (("regularizer", "reg.name"), ("objective", "objective.name"))
            if (found := each(key))]  # fmt: skip
    rounds, cohort = each("rounds"), each("clients_per_round")
    told += [f"{_listed(rounds)} rounds"] if rounds else []
    told += [f"{_listed(cohort)} clients a round"] if cohort else ["all clients in each"] if rounds else []
    text += (", " if told else "") + ", ".join(told) + "."
    varied = [f"{key} ({_values(column_values(runs.frame[key]))})" for key in runs.varied_keys]
    return text + (f" Varied: {', '.join(varied)}." if varied else "")


def title_runs(records: Sequence[Record], runs: RunTable) -> str:
    """Return which algorithms were run on which data; where there are many, how many."""
    configs = load_configs(records)

    def named(key: str, kind: str, called: Callable[[str], str] = str) -> str:
        names = list(dict.fromkeys(format_value(config[key]) for config in configs if config.get(key)))
        return _listed([called(name) for name in names]) if len(names) < _MOST else f"{len(names)} {kind}"

    algorithms = named("algo.name", "algorithms", runs.algo_title)
    return f"{algorithms or 'Runs'} on {named('data.name', 'data sets') or 'unknown data'}"


def _size(records: Sequence[Record]) -> str:
    """How large the data are, where all runs are on the same."""
    found = {(d.get("clients"), d.get("examples"), d.get("features"))
             for record in records if (d := read_summary(record.folder).get("data"))}  # fmt: skip
    if len(found) != 1 or None in (size := found.pop()):
        return ""
    return " ({:,} clients, {:,} rows for training, {:,} features)".format(*size)


def _listed(values: Sequence[Any]) -> str:
    *first, last = map(format_value, values) if values else [""]
    return f"{', '.join(first)} and {last}" if first else last


def _values(values: Sequence[Any]) -> str:
    """Values of a key: a few one by one, of many numbers how many from where to where."""
    kept = list(dict.fromkeys(value for value in values if value is not None))
    if len(kept) <= _MOST:
        return ", ".join(map(format_value, kept))
    if all(isinstance(value, (int, float)) for value in kept):
        return f"{len(kept)} values from {format_value(min(kept))} to {format_value(max(kept))}"
    return f"{len(kept)} values"


def describe_statuses(runs: RunTable, absent: Sequence[str]) -> str:
    """How runs ended, where not all are done; ``absent`` are those of a sweep that are not there."""
    ends, statuses, missing = Counter(runs.frame["status"]), list(runs.frame["status"]), len(set(absent))
    told = [f"{ends[name]} {name}" for name in STATUSES if ends[name]]
    told += [f"{missing} not begun" if missing > 0 else ""]
    open_ = missing > 0 or any(status not in (*FINISHED_STATUSES, "failed") for status in statuses)
    if not open_ and set(ends) <= {"done"}:
        return ""
    text = f"Of {len(runs) + max(missing, 0)} runs: {', '.join(filter(None, told))}."
    return text + (" Not all have come to an end: this page shows what there was when it was made." if open_ else "")


_TOOK = ("seconds", "bytes_up", "bytes_down", "grad_evals")


def result_table(record: Record, runs: RunTable) -> str:
    """Return a row for each metric of a single run: at the end, at its best, and the average of the tail."""
    found = read_summary(record.folder)
    final, best, tail = ({**(found.get(kind) or {})} for kind in ("final", "best", "tail"))
    rows = [[name, value, *_best(best.get(name)), tail.get(name)] for name, value in final.items()]
    heads = ["metric", "at the end", "best", "at round", f"mean of the last {found.get('tail_rounds')} rounds"]
    return html_table(heads, rows) if rows else ""


def _best(found: Any) -> tuple[Any, Any]:
    """Return the best value of a metric and its round; a metric that is better in no direction has none."""
    return (found.get("value"), found.get("round")) if isinstance(found, dict) else (None, None)


def run_facts(runs: RunTable) -> str:
    """Return what a single run was, and what it took."""
    (row,) = runs.to_dicts()
    row["status"] = describe_end(row)
    names = ["algo", "data", "status", "rounds" if "rounds" in runs.frame else "rounds_done", *_TOOK, "folder"]
    return facts_table([(name, row[name]) for name in names if format_value(row.get(name)) not in ("", ".")])


def runs_table(runs: RunTable, metric: str) -> str:
    """Return a row for each run, those of the best points marked: its keys, how it ended, tail averages, its costs."""
    best = runs.best_points(metric)
    marks = {place: "=" for tied in best["tied"] for rows in tied for place in rows}
    marks |= {place: "*" for rows in best["rows"] for place in rows}
    done = "rounds_done" if "rounds" in runs.varied_keys else "rounds"
    shown = list(dict.fromkeys(["algo", "data", *runs.varied_keys, "status", done]))
    tails = [
        name
        for name in dict.fromkeys((metric, *structure_metrics(metric), "objective", *runs.tail_metrics))
        if name in runs.tail_metrics
    ]
    after = [name for name in _TOOK if name in runs.frame]
    heads = [
        "best",
        *shown,
        *(" ".join(metric_header(runs, name).split()) for name in tails),
        *after,
        "folder",
        "remark",
    ]
    keys = ["best", *shown, *tails, *after, "folder", "remark"]
    values, lines = [runs.tail_values(name) for name in tails], []
    for place, row in enumerate(runs.to_dicts()):
        row["status"] = describe_end(row)
        told = [marks.get(place, ""), *(row[name] for name in shown), *(float(each[place]) for each in values)]
        told += [row[name] for name in (*after, "folder", "reason")]
        lines.append(f'<tr data-run="{place}">{"".join(map(table_cell, told))}</tr>')
    below = f"* best point of each algorithm by {metric}" + (", = tied with it" if "=" in marks.values() else "")
    text = f"{below}; {tail_caption(runs, tails)}."
    return scrollable_table(
        f"<thead><tr>{sortable_headers(keys, heads)}</tr></thead><tbody>{chr(10).join(lines)}</tbody>", "runs", text
    )
