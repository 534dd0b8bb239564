"""Whether what a paper says of a figure holds in the records."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcorun.figures.drawing import Drawing
from fcorun.figures.papers import fco
from fcorun.figures.spec import Claim, Figure
from fcorun.reports.table import Frame, Table

COLUMNS = ("figure", "algo", "says", "measured", "wanted", "holds", "note")
Runs = dict[str, list[list[dict[str, float]]]]


@dataclass(frozen=True)
class Measured:
    """What claims are checked against: the table of all points, that of the best points with all seeds, and of each
    algorithm's best point the rows of each seed."""

    grid: Table
    tuned: Table
    runs: Runs


def measured(of: Drawing) -> Measured:
    """What was measured for a figure."""
    runs: Runs = {}
    for algo, record in zip(of.tuned.frame["algo"], of.tuned_records, strict=True):
        runs.setdefault(algo, []).append(record.rows)
    return Measured(of.grid, fco.with_averages(of) if of.figure.draw == "averaging" else of.tuned, runs)


def check(name: str, figure: Figure, found: Measured, best: dict[str, Any]) -> list[dict]:
    """A row a claim, then one for each algorithm whose best rates the paper prints; ``best`` holds the best rates of
    each algorithm."""
    rows = [{"figure": name, "algo": c.algo, "says": c.says, **_checked(c, found)} for c in figure.claims]
    for row, claim in zip(rows, figure.claims, strict=True):
        row["note"] = claim.note if row["holds"] == "no" else ""
    for algo, rates in (figure.printed or {}).items():
        ours = best.get(algo)
        told = "not measured" if ours is None else f"({ours[0]:g}, {ours[1]:g})"
        same = "not measured" if ours is None else "yes" if np.allclose(ours, rates, rtol=1e-6) else "no"
        printed = f"({rates[0]:g}, {rates[1]:g})"
        says = "best (client_lr, server_lr)"
        note = figure.printed_note if same == "no" else ""
        rows.append({"figure": name, "algo": algo, "says": says, "measured": told, "wanted": printed, "holds": same,
                     "note": note})  # fmt: skip
    return rows


def _checked(claim: Claim, found: Measured) -> dict[str, str]:
    ours, wanted, holds = _measure(claim, claim.algo, found), [], True
    unknown = np.isnan(ours)
    for sign, word, others in ((1, "above", claim.above), (-1, "below", claim.below)):
        for other in others:
            value = _measure(claim, other, found) if isinstance(other, str) else float(other)
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


def _measure(claim: Claim, algo: str, found: Measured) -> float:
    higher, runs = found.grid.metrics[claim.metric].higher, found.runs.get(algo, [])
    if claim.at == "share":
        return _share(claim, higher, found.grid.frame[found.grid.frame["algo"] == algo])
    if claim.at == "worst":
        values = [row.get(claim.metric, np.nan) for rows in runs for row in rows]
        return float((np.min if higher else np.max)(values)) if values else float("nan")
    if claim.at == "reach":
        return float(np.median([_reach(claim, higher, rows) for rows in runs])) if runs else float("nan")
    column, tuned = f"{claim.at}_{claim.metric}", found.tuned.frame
    values = tuned[tuned["algo"] == algo][column].to_numpy(float) if column in tuned else np.array([])
    return float(np.median(values)) if len(values) else float("nan")


def _passes(claim: Claim, higher: bool | None, values: Any) -> Any:
    """Which values have come to the target: beyond it where more or less is better, else just there."""
    if higher is None:
        return np.isclose(values, claim.target or 0)
    return values >= claim.target if higher else values <= claim.target


def _reach(claim: Claim, higher: bool | None, rows: Sequence[dict[str, float]]) -> float:
    values = np.array([row.get(claim.metric, np.nan) for row in rows])
    if np.isnan(values).all():
        return float("nan")
    there = _passes(claim, higher, values)
    if higher is None:  # an exact target is reached when it is not left again
        there = np.logical_and.accumulate(there[::-1])[::-1]
    return float(rows[int(np.argmax(there))]["round"]) if there.any() else float("inf")


def _share(claim: Claim, higher: bool | None, points: Frame) -> float:
    column = f"tail_{claim.metric}"
    if column not in points or not len(points):
        return float("nan")
    return float(np.mean(_passes(claim, higher, points[column].to_numpy(float))))
