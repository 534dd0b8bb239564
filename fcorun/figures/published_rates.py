"""Whether the best rates that a paper prints are the best of those that were tried."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fcorun.figures.claims import find_seed
from fcorun.figures.comparison import TIE_TOLERANCE, UNCLEAR, compare
from fcorun.figures.figure_inputs import FigureInputs

RATE_KEYS = ("client_lr", "server_lr")
_MOST = 3  # points that are told one by one


def check_published_rates(name: str, of: FigureInputs) -> list[dict[str, str]]:
    """A row for each algorithm whose best rates the paper prints.

    They hold if they are the best point and no other cannot be told from it; are not distinguishable if they are one of
    several such points; and do not hold if they are another or diverged. Two points are told apart by their common
    seeds, as those of claims are, where there are several, else by ``ALIKE``.
    """
    rows = []
    for algo, rates in (of.figure.printed or {}).items():
        told = _judged(of, algo, rates)
        note = of.figure.printed_note if told["holds"] == "no" else ""
        says = f"best ({', '.join(RATE_KEYS)})"
        rows.append({"figure": name, "algo": algo, "says": says, **told, "note": note})
    return rows


def _judged(of: FigureInputs, algo: str, rates: Sequence[float]) -> dict[str, str]:
    best, points = _points(of, algo)
    if best is None:
        return {"measured": "not measured", "wanted": _text(rates), "holds": "not measured", "test": ""}
    done = [point for point in points if point["status"] == "done" and point["rows"] != best["rows"]]
    verdicts = [_apart(of, best, point) for point in done]
    alike = [point for point, (apart, _) in zip(done, verdicts, strict=True) if not apart]
    tests = [test for _, test in verdicts]
    same = [point for point in points if np.allclose(point["rates"], rates, rtol=1e-6)]
    if not same:
        holds = "not tried"
    elif any(point in (best, *alike) for point in same):
        holds = UNCLEAR if alike else "yes"
    else:
        holds = "no" if same[0]["status"] in ("done", "diverged") else "not measured"
        tests += ["the printed rates diverged"] if same[0]["status"] == "diverged" else []
    alike.sort(key=lambda point: point not in same)  # the printed ones are among those that are told
    told = [_text(point["rates"]) for point in (best, *alike)]
    more = [f"{len(told) - _MOST} others"] if len(told) > _MOST else []
    ended = {point["rates"][0] for point in points if point["status"] == "done"}
    lost = {point["rates"][0] for point in points if point["status"] == "diverged"} - ended
    if lost and len(ended) == 1 and all(point["rates"][0] in ended | lost for point in points):
        tests.append("all other client_lr diverged")
    found = f"{of.metric} {best['metric']:.4g} at {' or '.join([*told[:_MOST], *more])}"
    there = f", where it is {same[0]['metric']:.4g}" if same and same[0]["status"] == "done" else ""
    return {"measured": found, "wanted": _text(rates) + there, "holds": holds, "test": "; ".join(dict.fromkeys(tests))}


def _points(of: FigureInputs, algo: str) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The best point of an algorithm, None if it has none, and all points of the same problem, with their rates."""
    best = [row for row in of.grid_view.best_rows() if row["algo"] == algo]
    if not best:
        return None, []
    apart, points = of.grid.problem_keys(of.metric), []
    for point in of.grid.fold_seeds(of.metric).to_dict("records"):
        own = of.grid_records[point["rows"][0]].config.get("algo", {})
        if (
            point["algo"] == algo
            and {*RATE_KEYS} <= {*own}
            and all(str(point[key]) == str(best[-1][key]) for key in apart)
        ):
            points.append(point | {"rates": [own[key] for key in RATE_KEYS]})
    return next((point for point in points if point["rows"] == best[-1]["rows"]), None), points


def _apart(of: FigureInputs, best: dict[str, Any], other: dict[str, Any]) -> tuple[bool, str]:
    """Whether the best point can be told from another, and by what test."""
    values = of.grid.tail_values(of.metric)
    ours, theirs = (
        {find_seed(of.figure, of.grid_records[place]): float(values[place]) for place in point["rows"]}
        for point in (best, other)
    )
    if None not in ours and len({*ours} & {*theirs}) > 1:
        holds, test = compare(ours, theirs, 1 if of.grid.metrics[of.metric].higher else -1, of.figure.seed_kind)
        return holds == "yes", test
    a, b = best["metric"], other["metric"]
    test = f"told apart by {TIE_TOLERANCE:.1%} of {of.metric}, our choice"
    return bool(abs(a - b) > TIE_TOLERANCE * max(abs(a), abs(b))), test


def _text(rates: Sequence[float]) -> str:
    return f"({', '.join(f'{rate:g}' for rate in rates)})"
