"""Curves of all runs for the page, thinned to what its charts can show."""

from collections.abc import Mapping, Sequence
from typing import Any

from fcorun.metrics import COUNTERS, silent
from fcorun.records.record import Record
from fcorun.reports.page.parts import drawn_as, said, short, words
from fcorun.reports.pictures.best import panels
from fcorun.reports.pictures.view import Look
from fcorun.reports.table import Table

RUNS = 300  # whose curves a page holds, those of best points first
NUMBERS = 90_000  # of all curves together
_LEAST = 20  # evaluations of a run
_AXES = {"rounds": "round", "bytes": "bytes", "grad_evals": "grad_evals", "seconds": "seconds"}
Rows = list[dict[str, float]]


def curves(
    records: Sequence[Record],
    runs: Table,
    sets: Mapping[str, Sequence[int]],
    looks: Mapping[str, Look],
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
    found = {place: rows for place in order[:RUNS] if (rows := records[place].rows)}
    if not found:
        return None
    metrics = [name for name in dict.fromkeys(name for rows in found.values() for name in rows[-1])
               if name not in COUNTERS]  # fmt: skip
    most = max(_LEAST, NUMBERS // (len(found) * (len(metrics) + 2)))
    arrays: dict[tuple, int] = {}
    kept = []
    titles, names = list(looks), names_of(runs)
    for place, rows in found.items():
        algo, columns = str(runs.frame["algo"][place]), {}
        for name, values in _columns(thinned(rows, most), metrics):
            columns[name] = arrays.setdefault(values, len(arrays))
        kept.append({
            "run": place, "problem": of_problem[place], "algo": said(runs.title(algo)), "name": said(names[place]),
            "line": drawn_as(titles.index(algo) if algo in titles else 0), "best": place in set(best),
            "diverged": runs.frame["status"][place] == "diverged",
            "level": len(rows) > 1 and silent({"bytes_up": 0} | rows[-1]), "columns": columns,
        })  # fmt: skip
    longest = max(map(len, found.values()))
    left = len(of_problem) - len(order[:RUNS])
    told = [f"of up to {longest} evaluations of a run {most} are drawn, evenly spaced" if longest > most else "",
            f"curves of {left} runs are left out, none of them a best point" if left > 0 else ""]  # fmt: skip
    labels = {name: {"label": words(runs.words(name)), "log": runs.metrics[name].log} for name in metrics}
    usual = [name for name in panels(metrics, metric) if name in metrics] or metrics[:1]
    return {"metrics": labels, "usual": usual, "problems": list(sets), "arrays": list(arrays), "runs": kept,
            "said": "; ".join(filter(None, told))}  # fmt: skip


def thinned(rows: Rows, most: int) -> Rows:
    """At most so many rows, evenly spaced, the first and the last among them."""
    if len(rows) <= most:
        return rows
    return [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]


def _columns(rows: Rows, names: Sequence[str]) -> Any:
    """The columns that charts may need, numbers with five digits; what a run did not count is left out."""
    for axis, name in _AXES.items():
        if axis == "bytes":
            yield axis, tuple(sum(value for key, value in row.items() if "bytes_" in key) for row in rows)
        elif name in rows[-1]:
            yield axis, tuple(float(f"{row[name]:.5g}") if name == "seconds" else row[name] for row in rows)
    for name in names:
        if name in rows[-1]:
            yield name, tuple(float(f"{row[name]:.5g}") for row in rows)


def names_of(runs: Table) -> list[str]:
    """Each run by its algorithm and the keys that vary."""
    return [", ".join([runs.title(str(row["algo"])), *(f"{key.removeprefix('algo.')}={short(row[key])}"
            for key in runs.keys if row[key] is not None)]) for row in runs.rows()]  # fmt: skip
