"""Whether what a paper says of a figure holds in the records."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcorun.figures.drawing import Drawing
from fcorun.figures.papers import fco
from fcorun.figures.spec import Claim, Figure
from fcorun.figures.verdict import UNCLEAR, Values, compared
from fcorun.metrics import silent
from fcorun.records.record import Record
from fcorun.reports.spread import band
from fcorun.reports.table import Frame, Table

COLUMNS = ("figure", "algo", "says", "measured", "wanted", "holds", "test", "note", "changed")
Runs = dict[str, list[list[dict[str, float]]]]


@dataclass(frozen=True)
class Measured:
    """What claims are checked against: the table of all points and the rows of each, that of the best points with all
    seeds and the seed of each (None: it does not depend on it), and of each algorithm's best point the rows of each
    seed."""

    grid: Table
    tuned: Table
    runs: Runs
    grid_rows: Sequence[list[dict[str, float]]] = ()
    seeds: Sequence[Any] = ()


def measured(of: Drawing) -> Measured:
    """What was measured for a figure."""
    runs: Runs = {}
    for algo, record in zip(of.tuned.frame["algo"], of.tuned_records, strict=True):
        runs.setdefault(algo, []).append(record.rows)
    tuned = fco.with_averages(of) if of.figure.draw == "averaging" else of.tuned
    seeds = [seed_of(of.figure, record) for record in of.tuned_records]
    return Measured(of.grid, tuned, runs, [record.rows for record in of.grid_records], seeds)


def seed_of(figure: Figure, record: Record) -> Any:
    """The seed of a run; None if that changes nothing in it."""
    same = silent(record.rows[-1]) or record.summary.get("drawn") is False
    return None if figure.seeded == "seed" and same else record.flat_config.get(figure.seeded)


def check(name: str, figure: Figure, found: Measured) -> list[dict]:
    """A row a claim."""
    return [{"figure": name, "algo": c.algo, "says": c.says, **_checked(c, found)} for c in figure.claims]


def _checked(claim: Claim, found: Measured) -> dict[str, str]:
    ours, wanted, verdicts = _measure(claim, claim.algo, found), [], []
    for sign, word, others in ((1, "above", claim.above), (-1, "below", claim.below)):
        for other in others:
            if isinstance(other, str):
                theirs = _measure(claim, other, found)
                factor = f"{claim.times:g} times " if claim.times != 1 else ""
                wanted.append(f"{word} {factor}{other} ({_text(claim, theirs)})")
                verdicts.append(compared(ours, {s: claim.times * v for s, v in theirs.items()}, sign))
            else:
                wanted.append(f"{word} {float(other):g}")
                verdicts.append(compared(ours, {None: float(other)}, sign))
    found_out = [holds for holds, _ in verdicts]
    holds = next((h for h in ("not measured", "no", UNCLEAR) if h in found_out), "yes")
    tests = "; ".join(dict.fromkeys(test for _, test in verdicts if test)) if holds != "not measured" else ""
    return {"measured": f"{_name(claim)} {_text(claim, ours)}", "wanted": ", ".join(wanted), "holds": holds,
            "test": tests, "note": _note(claim, holds, found.tuned)}  # fmt: skip


def _note(claim: Claim, holds: str, tuned: Table) -> str:
    """What is known of a claim that does not hold; which of its methods had not come to an end, where that counts."""
    notes = [claim.note] if holds in ("no", UNCLEAR) else []
    named = [claim.algo, *(other for other in (*claim.above, *claim.below) if isinstance(other, str))]
    if claim.at == "tail" and holds != "not measured":
        for column, text in (("above", "ended above the optimum"), ("falling", "still falling at the end")):
            there = {*tuned.frame["algo"][tuned.column(column) > 0]}
            notes += [f"{text}: {', '.join(mine)}"] if (mine := [n for n in dict.fromkeys(named) if n in there]) else []
    return "; ".join(filter(None, notes))


def _name(claim: Claim) -> str:
    goal = "" if claim.target is None else f"{claim.target:g}"
    return {
        "tail": f"{claim.metric}",
        "worst": f"worst {claim.metric}",
        "reach": f"rounds to {claim.metric} {goal}",
        "share": f"share of points with {claim.metric} of {goal}",
    }[claim.at]


def _text(claim: Claim, values: Values) -> str:
    """The median, and the range over seeds."""

    def number(value: float) -> str:
        return "never" if np.isinf(value) and claim.at == "reach" else "unknown" if np.isnan(value) else f"{value:.4g}"

    if len(values) < 2:
        return number(next(iter(values.values()), float("nan")))
    low, middle, high = band(list(values.values()))
    return f"{number(middle)} [{number(low)}, {number(high)}]"


def _measure(claim: Claim, algo: str, found: Measured) -> Values:
    """What is claimed of an algorithm: a value a seed, or one number."""
    higher, runs = found.grid.metrics[claim.metric].higher, found.runs.get(algo, [])
    if claim.at == "share":
        return {None: _share(claim, higher, found.grid.frame[found.grid.frame["algo"] == algo])}
    if claim.at == "worst":
        values = [row.get(claim.metric, np.nan) for rows in runs for row in rows if row["round"] > 0]
        return {None: float((np.min if higher else np.max)(values))} if values else {}
    if claim.at == "reach":
        return _soonest(claim, algo, higher, found)
    column, tuned = f"{claim.at}_{claim.metric}", found.tuned.frame
    values = tuned[column].to_numpy(float) if column in tuned else np.full(len(tuned), np.nan)
    seeds = [*found.seeds, *[None] * (len(tuned) - len(found.seeds))]
    return {seed: float(value) for name, seed, value in zip(tuned["algo"], seeds, values, strict=True) if name == algo}


def _soonest(claim: Claim, algo: str, higher: bool | None, found: Measured) -> Values:
    """The least number of rounds to the target over all points of the grid that are done, of each the median over its
    seeds."""
    points = found.grid.points(claim.metric)
    places = [rows for name, status, rows in zip(points["algo"], points["status"], points["rows"], strict=True)
              if name == algo and status == "done"]  # fmt: skip
    reached = [float(np.median([_reach(claim, higher, found.grid_rows[place]) for place in rows])) for rows in places]
    known = [value for value in reached if not np.isnan(value)]
    return {None: min(known)} if known else {}


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
