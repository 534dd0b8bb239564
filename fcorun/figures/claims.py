"""Whether what a paper says of a figure holds in the records."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fcorun.figures.spec import Claim, Figure
from fcorun.metrics import HIGHER_IS_BETTER
from fcorun.reports.table import Frame

COLUMNS = ("figure", "algo", "says", "measured", "wanted", "holds", "note")
Runs = dict[str, list[list[dict[str, float]]]]  # of each algorithm's best point, the rows of each seed


def check(name: str, figure: Figure, grid: Frame, tuned: Frame, runs: Runs, best: dict[str, Any]) -> list[dict]:
    """A row a claim, then one for each algorithm whose best rates the paper prints.

    ``grid`` is the table of all points, ``tuned`` that of the best points with all seeds, whose rows ``runs`` holds;
    ``best`` holds the best rates of each algorithm.
    """
    rows = [{"figure": name, "algo": c.algo, "says": c.says, **_checked(c, grid, tuned, runs)} for c in figure.claims]
    for row, claim in zip(rows, figure.claims, strict=True):
        row["note"] = claim.note if row["holds"] == "no" else ""
    for algo, rates in (figure.printed or {}).items():
        found = best.get(algo)
        told = "not measured" if found is None else f"({found[0]:g}, {found[1]:g})"
        same = "not measured" if found is None else "yes" if np.allclose(found, rates, rtol=1e-6) else "no"
        printed = f"({rates[0]:g}, {rates[1]:g})"
        says = "best (client_lr, server_lr)"
        note = figure.printed_note if same == "no" else ""
        rows.append({"figure": name, "algo": algo, "says": says, "measured": told, "wanted": printed, "holds": same,
                     "note": note})  # fmt: skip
    return rows


def _checked(claim: Claim, grid: Frame, tuned: Frame, runs: Runs) -> dict[str, str]:
    def measured(algo: str) -> float:
        return _measure(claim, algo, grid, tuned, runs)

    ours, wanted, holds = measured(claim.algo), [], True
    unknown = np.isnan(ours)
    for sign, word, others in ((1, "above", claim.above), (-1, "below", claim.below)):
        for other in others:
            value = measured(other) if isinstance(other, str) else float(other)
            unknown |= np.isnan(value)
            holds &= bool(sign * ours > sign * value * (claim.times if isinstance(other, str) else 1))
            factor = f"{claim.times:g} times " if claim.times != 1 else ""
            wanted.append(f"{word} {factor}{other} ({_text(claim, value)})" if isinstance(other, str)
                          else f"{word} {value:g}")  # fmt: skip
    told = f"{_name(claim)} {_text(claim, ours)}"
    return {
        "measured": told,
        "wanted": ", ".join(wanted),
        "holds": "not measured" if unknown else "yes" if holds else "no",
    }


def _name(claim: Claim) -> str:
    goal = "" if claim.target is None else f"{claim.target:g}"
    return {
        "tail": f"{claim.metric}",
        "worst": f"worst {claim.metric}",
        "reach": f"rounds to {claim.metric} {goal}",
        "share": f"share of points with {claim.metric} of {goal}",
    }[claim.at]


def _text(claim: Claim, value: float) -> str:
    return "never" if np.isinf(value) and claim.at == "reach" else "unknown" if np.isnan(value) else f"{value:.4g}"


def _measure(claim: Claim, algo: str, grid: Frame, tuned: Frame, runs: Runs) -> float:
    if claim.at == "share":
        return _share(claim, grid[grid["algo"] == algo])
    if claim.at == "worst":
        values = [row.get(claim.metric, np.nan) for rows in runs.get(algo, []) for row in rows]
        return float((np.min if HIGHER_IS_BETTER.get(claim.metric) else np.max)(values)) if values else float("nan")
    if claim.at == "reach":
        return float(np.median([_reach(claim, rows) for rows in runs[algo]])) if runs.get(algo) else float("nan")
    column = f"{claim.at}_{claim.metric}"
    values = tuned[tuned["algo"] == algo][column].to_numpy(float) if column in tuned else np.array([])
    return float(np.median(values)) if len(values) else float("nan")


def _passes(claim: Claim, values: Any) -> Any:
    """Which values have come to the target: beyond it where more or less is better, else just there."""
    higher = HIGHER_IS_BETTER.get(claim.metric)
    return np.isclose(values, claim.target or 0) if higher is None else (
        values >= claim.target if higher else values <= claim.target
    )  # fmt: skip


def _reach(claim: Claim, rows: Sequence[dict[str, float]]) -> float:
    values = np.array([row.get(claim.metric, np.nan) for row in rows])
    if np.isnan(values).all():
        return float("nan")
    there = _passes(claim, values)
    if claim.metric not in HIGHER_IS_BETTER:  # an exact target is reached when it is not left again
        there = np.logical_and.accumulate(there[::-1])[::-1]
    return float(rows[int(np.argmax(there))]["round"]) if there.any() else float("inf")


def _share(claim: Claim, points: Frame) -> float:
    column = f"tail_{claim.metric}"
    if column not in points or not len(points):
        return float("nan")
    return float(np.mean(_passes(claim, points[column].to_numpy(float))))
