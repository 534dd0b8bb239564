"""The curves of all runs for the page, thinned to the resolution of its charts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from fcorun.base.metrics import COUNTERS, is_baseline_row
from fcorun.base.records.record import Record
from fcorun.reports.pictures.best_curves import choose_sweep_panels
from fcorun.reports.pictures.layout import DASHES, CurveStyle, curve_style, sum_bytes
from fcorun.reports.run_table import RunTable, format_number

MAX_RUNS = 300  # whose curves a page holds, runs of best points first
# of all curves together, about, unless runs would have fewer than _MIN_EVALUATIONS evaluations
MAX_NUMBERS = 90_000
_MIN_EVALUATIONS = 20  # of a run
_AXES = {"rounds": "round"} | {name: name for name in ("bytes", "grad_evals", "seconds", "simulated_seconds")}
_FOREGROUND = "@fg"  # the colour of text: black on a light page
# names that plotly has for the dashes of the pictures
_DASHES = ("solid", "dash", "dot", "dashdot", "longdashdot", "1px,6px", "longdash")
Evaluations = list[dict[str, float]]


def collect_curves(
    records: Sequence[Record],
    runs: RunTable,
    problems: Mapping[str, Sequence[int]],
    curve_styles: Mapping[str, CurveStyle],
    *,
    metric: str,
    best: Sequence[int],
) -> dict[str, Any] | None:
    """Return the data that the page draws curves from; None if no run has evaluations.

    ``problems`` has the positions of the runs on each problem, ``best`` those of best points. In the result, ``arrays``
    holds each different column once, ``columns`` of ``runs`` are indices of arrays, and ``left_out`` says which
    evaluations and runs are not drawn. ``usual_metrics`` are those to show first: of metrics that are one function on
    each problem, if there are some.
    """
    problem_of_run = {run: i for i, positions in enumerate(problems.values()) for run in positions}
    is_best = set(best)
    order = [*best, *(run for run in problem_of_run if run not in is_best)]
    evaluations = {run: rows for run in order[:MAX_RUNS] if (rows := records[run].rows)}
    if not evaluations:
        return None
    metrics = dict.fromkeys(name for rows in evaluations.values() for name in rows[-1])
    metrics = [name for name in metrics if name not in COUNTERS]
    max_rows = max(_MIN_EVALUATIONS, MAX_NUMBERS // (len(evaluations) * (len(metrics) + 2)))
    arrays: dict[tuple, int] = {}
    curves = []
    names = name_runs(runs)
    for run, rows in evaluations.items():
        algo = str(runs.frame["algo"][run])
        style = curve_styles.get(algo) or curve_style(0)
        colour = _FOREGROUND if style.colour == "#000000" else style.colour
        columns = {}
        for name, values in _read_columns(thin(rows, max_rows), metrics):
            columns[name] = arrays.setdefault(values, len(arrays))
        curves.append(
            {
                "run": run,
                "problem": problem_of_run[run],
                "algo": escape(runs.algo_title(algo), quote=False),
                "name": escape(names[run], quote=False),
                "line": {"color": colour, "dash": _DASHES[DASHES.index(style.line_dash)]},
                "best": run in is_best,
                "diverged": runs.frame["status"][run] == "diverged",
                "baseline": len(rows) > 1 and is_baseline_row({"bytes_up": 0} | rows[-1]),
                "columns": columns,
            }
        )
    labels = {}
    for name in metrics:
        labels[name] = {"label": _label_of(runs.axis_label(name)), "log": runs.metrics[name].log}
    parts = [runs.take(positions) for positions in problems.values()]
    comparable = [name for name in metrics if all(part.is_one_function(name) for part in parts)]
    usual = [name for name in choose_sweep_panels(comparable, metric) if name in comparable]
    left_out = []
    longest = max(map(len, evaluations.values()))
    if longest > max_rows:
        left_out.append(f"of up to {longest} evaluations of a run {max_rows} are drawn, evenly spaced")
    if len(problem_of_run) > MAX_RUNS:
        more = len(problem_of_run) - MAX_RUNS
        which = ", none of them a best point" if len(is_best) <= MAX_RUNS else ""
        left_out.append(f"curves of {more} runs are left out{which}")
    return {
        "metrics": labels,
        "axes": {name: labels[name]["label"] for name in metrics if runs.metrics[name].monotone},
        "usual_metrics": usual or metrics[:1],
        "problems": list(problems),
        "arrays": list(arrays),
        "runs": curves,
        "left_out": "; ".join(left_out),
    }


def thin(rows: Evaluations, max_rows: int) -> Evaluations:
    """Return at most ``max_rows`` rows, evenly spaced, with the first and the last."""
    if len(rows) <= max_rows:
        return rows
    return [rows[round(i * (len(rows) - 1) / (max_rows - 1))] for i in range(max_rows)]


def _read_columns(rows: Evaluations, names: Sequence[str]) -> Iterator[tuple[str, tuple]]:
    """Yield the columns that charts may need, numbers with five digits, without counters that a run does not have."""
    for axis, name in _AXES.items():
        if axis == "bytes":
            yield axis, tuple(map(sum_bytes, rows))
        elif name in rows[-1]:
            yield axis, tuple(float(f"{row[name]:.5g}") if name.endswith("seconds") else row[name] for row in rows)
    for name in names:
        if name in rows[-1]:
            yield name, tuple(float(f"{row[name]:.5g}") for row in rows)


def name_runs(runs: RunTable) -> list[str]:
    """Return a name for each run: its algorithm and the varied keys."""
    names = []
    for row in runs.to_dicts():
        parts = [runs.algo_title(str(row["algo"]))]
        for key in runs.varied_keys:
            if row[key] is not None:
                parts.append(f"{key.removeprefix('algo.')}={format_number(row[key])}")
        names.append(", ".join(parts))
    return names


def _label_of(text: str) -> str:
    """Return a label of a picture for plotly, which reads some elements of HTML, such as subscripts.

    >>> _label_of("|w$_j$| > 0.1")
    '|w<sub>j</sub>| &gt; 0.1'
    """
    text = re.sub(r"\\mathrm\{([^}]*)\}", r"\1", escape(text, quote=False))
    return re.sub(r"\$_\{?([^}$]*)\}?\$", r"<sub>\1</sub>", text).replace("\n", "<br>")
