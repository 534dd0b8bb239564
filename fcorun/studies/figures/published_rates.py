"""Check of the best rates that a paper prints against the rates that were tried."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fcorun.studies.figures.claims import TIE_TOLERANCE, find_seed
from fcorun.studies.figures.figure_inputs import FigureInputs
from fcorun.studies.figures.seed_comparison import UNCLEAR, compare

RATE_KEYS = ("client_lr", "server_lr")
_MAX_LISTED = 3  # points


def check_published_rates(name: str, inputs: FigureInputs) -> list[dict[str, str]]:
    """Return a row of claims.csv for each algorithm whose best rates the paper prints.

    The claim holds ("yes") if the printed rates are the only best point. It is "not distinguishable" if they tie with
    other points, and does not hold ("no") if another point is better or if they diverged. Two points are compared by
    their common seeds, as in claims, or by ``TIE_TOLERANCE`` if they have fewer than two.
    """
    rows = []
    problem_keys = inputs.grid.problem_keys(inputs.metric)
    for algo, rates in (inputs.figure.printed or {}).items():
        best_rows = [row for row in inputs.grid_view.best_rows() if row["algo"] == algo]
        varied = [key for key in problem_keys if len({str(row[key]) for row in best_rows}) > 1]
        for best_row in best_rows or [None]:
            problem = "".join(f", {key}={_format_value(best_row[key])}" for key in varied) if best_row else ""
            row = {"figure": name, "algo": algo, "says": f"best ({', '.join(RATE_KEYS)}){problem}"}
            row |= _check_rates(inputs, best_row, rates)
            row["note"] = inputs.figure.printed_note if row["holds"] == "no" else ""
            rows.append(row)
    return rows


def _check_rates(inputs: FigureInputs, best_row: dict[str, Any] | None, rates: Sequence[float]) -> dict[str, str]:
    """Return what was measured and wanted on the problem of a best point, whether they agree, and by which test."""
    best, points = _list_points(inputs, best_row) if best_row else (None, [])
    if best is None:
        return {"measured": "not measured", "wanted": _format_rates(rates), "holds": "not measured", "test": ""}
    ties = []
    tests = []
    for point in points:
        if point["status"] == "done" and point["rows"] != best["rows"]:
            is_distinct, test = _is_distinct(inputs, best, point)
            tests.append(test)
            if not is_distinct:
                ties.append(point)
    printed = [point for point in points if np.allclose(point["rates"], rates, rtol=1e-6)]
    status = printed[0]["status"] if printed else "missing"
    if not printed:
        holds = "not tried"
    elif any(point in (best, *ties) for point in printed):
        holds = UNCLEAR if ties else "yes"
    else:
        holds = "no" if status in ("done", "diverged") else "not measured"
        if status == "diverged":
            tests.append("the printed rates diverged")
    ties.sort(key=lambda point: point not in printed)  # the printed rates are listed first
    listed = [_format_rates(point["rates"]) for point in (best, *ties)]
    if len(listed) > _MAX_LISTED:
        listed[_MAX_LISTED:] = [f"{len(listed) - _MAX_LISTED} others"]
    done_client_rates = {point["rates"][0] for point in points if point["status"] == "done"}
    diverged_client_rates = {point["rates"][0] for point in points if point["status"] == "diverged"}
    diverged_client_rates -= done_client_rates
    all_known = all(point["rates"][0] in done_client_rates | diverged_client_rates for point in points)
    if diverged_client_rates and len(done_client_rates) == 1 and all_known:
        tests.append("all other client_lr diverged")
    wanted = _format_rates(rates)
    if status == "done":
        wanted += f", where it is {printed[0]['metric']:.4g}"
    return {
        "measured": f"{inputs.metric} {best['metric']:.4g} at {' or '.join(listed)}",
        "wanted": wanted,
        "holds": holds,
        "test": "; ".join(dict.fromkeys(tests)),
    }


def _list_points(inputs: FigureInputs, best_row: dict[str, Any]) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Return a best point with its rates, None if it has none, and all such points of the algorithm and problem."""
    keys = ["algo", *inputs.grid.problem_keys(inputs.metric)]
    points = []
    for point in inputs.grid.fold_seeds(inputs.metric).to_dict("records"):
        config = inputs.grid_records[point["rows"][0]].flat_config
        rates = [config.get(f"algo.{key}") for key in RATE_KEYS]
        if all(str(point[key]) == str(best_row[key]) for key in keys) and None not in rates:
            points.append(point | {"rates": rates})
    best = next((point for point in points if point["rows"] == best_row["rows"]), None)
    return best, points


def _is_distinct(inputs: FigureInputs, best: dict[str, Any], other: dict[str, Any]) -> tuple[bool, str]:
    """Return whether the best point is distinguishable from another one, and by which test."""
    values = inputs.grid.tail_values(inputs.metric)
    best_values, other_values = (
        {find_seed(inputs.figure, inputs.grid_records[i]): float(values[i]) for i in point["rows"]}
        for point in (best, other)
    )
    if None not in best_values and len(set(best_values) & set(other_values)) > 1:
        sign = 1 if inputs.grid.metrics[inputs.metric].higher else -1
        answer, test = compare(best_values, other_values, sign, inputs.figure.seed_kind)
        return answer == "yes", test
    a, b = best["metric"], other["metric"]
    test = f"distinguished by {TIE_TOLERANCE:.1%} of {inputs.metric}, our choice"
    return bool(abs(a - b) > TIE_TOLERANCE * max(abs(a), abs(b))), test


def _format_value(value: Any) -> str:
    """Return the value of a key that tells problems apart; a column with empty cells holds whole numbers as floats."""
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _format_rates(rates: Sequence[float]) -> str:
    return f"({', '.join(f'{rate:g}' for rate in rates)})"
