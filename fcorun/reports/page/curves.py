"""Curves of all runs for the page, thinned to what its charts can show."""

from collections.abc import Mapping, Sequence
from typing import Any

from fcorun.metrics import COUNTERS, is_baseline_row
from fcorun.records.record import Record
from fcorun.reports.page.elements import format_value, label_to_html, line_style, to_text
from fcorun.reports.pictures.best_curves import choose_sweep_panels
from fcorun.reports.pictures.problem_view import CurveStyle
from fcorun.reports.run_table import RunTable

MAX_RUNS = 300  # whose curves a page holds, those of best points first
MAX_NUMBERS = 90_000  # of all curves together
_LEAST = 20  # evaluations of a run
_AXES = {"rounds": "round", "bytes": "bytes", "grad_evals": "grad_evals", "seconds": "seconds"}
Evaluations = list[dict[str, float]]


def collect_curves(
    records: Sequence[Record],
    runs: RunTable,
    sets: Mapping[str, Sequence[int]],
    looks: Mapping[str, CurveStyle],
    *,
    metric: str,
    best: Sequence[int],
) -> dict[str, Any] | None:
    """What the page draws curves from; None where no run has rows.

    ``sets`` are the places of the runs on each problem, ``best`` those of best points. ``arrays`` holds each different
    column once; of ``runs``, ``columns`` says where. ``said`` tells what was left out.
    """
    of_problem = {place: i for i, places in enumerate(sets.values()) for place in places}
    order = [*best, *(place for place in of_problem if place not in set(best))]
    found = {place: rows for place in order[:MAX_RUNS] if (rows := records[place].rows)}
    if not found:
        return None
    metrics = [name for name in dict.fromkeys(name for rows in found.values() for name in rows[-1])
               if name not in COUNTERS]  # fmt: skip
    most = max(_LEAST, MAX_NUMBERS // (len(found) * (len(metrics) + 2)))
    arrays: dict[tuple, int] = {}
    kept = []
    titles, names = list(looks), name_runs(runs)
    for place, rows in found.items():
        algo, columns = str(runs.frame["algo"][place]), {}
        for name, values in _columns(thin(rows, most), metrics):
            columns[name] = arrays.setdefault(values, len(arrays))
        kept.append(
            {
                "run": place,
                "problem": of_problem[place],
                "algo": to_text(runs.algo_title(algo)),
                "name": to_text(names[place]),
                "line": line_style(titles.index(algo) if algo in titles else 0),
                "best": place in set(best),
                "diverged": runs.frame["status"][place] == "diverged",
                "level": len(rows) > 1 and is_baseline_row({"bytes_up": 0} | rows[-1]),
                "columns": columns,
            }
        )
    longest = max(map(len, found.values()))
    left = len(of_problem) - len(order[:MAX_RUNS])
    told = [f"of up to {longest} evaluations of a run {most} are drawn, evenly spaced" if longest > most else "",
            f"curves of {left} runs are left out, none of them a best point" if left > 0 else ""]  # fmt: skip
    labels = {name: {"label": label_to_html(runs.axis_label(name)), "log": runs.metrics[name].log} for name in metrics}
    usual = [name for name in choose_sweep_panels(metrics, metric) if name in metrics] or metrics[:1]
    return {"metrics": labels, "usual": usual, "problems": list(sets), "arrays": list(arrays), "runs": kept,
            "said": "; ".join(filter(None, told))}  # fmt: skip


def thin(rows: Evaluations, most: int) -> Evaluations:
    """At most so many rows, evenly spaced, the first and the last among them."""
    if len(rows) <= most:
        return rows
    return [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]


def _columns(rows: Evaluations, names: Sequence[str]) -> Any:
    """The columns that charts may need, numbers with five digits; what a run did not count is left out."""
    for axis, name in _AXES.items():
        if axis == "bytes":
            yield axis, tuple(sum(value for key, value in row.items() if "bytes_" in key) for row in rows)
        elif name in rows[-1]:
            yield axis, tuple(float(f"{row[name]:.5g}") if name == "seconds" else row[name] for row in rows)
    for name in names:
        if name in rows[-1]:
            yield name, tuple(float(f"{row[name]:.5g}") for row in rows)


def name_runs(runs: RunTable) -> list[str]:
    """Each run by its algorithm and the keys that vary."""
    return [", ".join([runs.algo_title(str(row["algo"])), *(f"{key.removeprefix('algo.')}={format_value(row[key])}"
            for key in runs.varied_keys if row[key] is not None)]) for row in runs.to_dicts()]  # fmt: skip
