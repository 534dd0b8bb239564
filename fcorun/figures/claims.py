"""Whether what a paper says of a figure holds in the records."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcorun.figures.comparison import TIE_TOLERANCE, UNCLEAR, SeedValues, compare_bounds
from fcorun.figures.figure_inputs import FigureInputs
from fcorun.figures.papers import fco
from fcorun.figures.rounds_to_target import RoundsToTarget, find_rounds_to_target
from fcorun.figures.spec import Claim, Figure
from fcorun.metrics import is_baseline_row
from fcorun.records.record import Record
from fcorun.reports.pictures.axis import x_values
from fcorun.reports.run_table import DataFrame, RunTable
from fcorun.reports.seed_bands import seed_band

COLUMNS = ("figure", "algo", "says", "measured", "wanted", "holds", "test", "note", "changed")
MetricRows = Sequence[dict[str, float]]


@dataclass(frozen=True)
class Measurements:
    """Measurements that claims are checked against.

    Attributes:
        grid, grid_rows: the table of all points, and the rows of each.
        tuned: the table of the best points with all seeds.
        runs: of each algorithm's best point the seed (None: nothing depends on it) and the rows of each run.
        kind: what the seeds are called.
    """

    grid: RunTable
    tuned: RunTable
    runs: dict[str, list[tuple[Any, MetricRows]]]
    grid_rows: Sequence[MetricRows] = ()
    seed_kind: str = "seeds"


def collect_measurements(of: FigureInputs) -> Measurements:
    """What was measured for a figure."""
    runs: dict[str, list[tuple[Any, MetricRows]]] = {}
    for algo, record in zip(of.tuned.frame["algo"], of.tuned_records, strict=True):
        runs.setdefault(algo, []).append((find_seed(of.figure, record), record.rows))
    tuned = fco.add_averages(of) if of.figure.draw == "averaging" else of.tuned
    return Measurements(of.grid, tuned, runs, [record.rows for record in of.grid_records], of.figure.seed_kind)


def find_seed(figure: Figure, record: Record) -> Any:
    """The seed of a run; None if that changes nothing in it."""
    same = is_baseline_row(record.rows[-1]) or record.summary.get("drawn") is False
    return None if figure.seeded == "seed" and same else record.flat_config.get(figure.seed_keys[-1])


def check_claims(name: str, figure: Figure, found: Measurements) -> list[dict]:
    """A row a claim."""
    return [{"figure": name, "algo": c.algo, "says": c.says, **_checked(c, figure, found)} for c in figure.claims]


def _checked(claim: Claim, figure: Figure, found: Measurements) -> dict[str, str]:
    ours, wanted, verdicts = _measure(claim, claim.algo, found), [], []
    for sign, word, others in ((1, "above", claim.above), (-1, "below", claim.below)):
        for other in others:
            if isinstance(other, str):
                theirs = _measure(claim, other, found)
                factor = f"{claim.times:g} times " if claim.times != 1 else ""
                wanted.append(f"{word} {factor}{other} ({_text(claim, theirs)})")
                low, high = ({s: claim.times * v for s, v in values.items()} for values in theirs)
            else:
                wanted.append(f"{word} {float(other):g}")
                low = high = {None: float(other)}
            verdicts.append(compare_bounds(ours, (low, high), sign, found.seed_kind))
    found_out = [holds for holds, _ in verdicts]
    holds = next((h for h in ("not measured", "no", UNCLEAR) if h in found_out), "yes")
    tests = list(dict.fromkeys(test for _, test in verdicts if test)) if holds != "not measured" else []
    if tests and claim.at == "tail" and "rounds" not in figure.x and len(_named(claim)) > 1:
        tests.append(f"after equal rounds; at: {{{figure.x[0]}: NUMBER}} compares at equal {figure.x[0]}")
    return {"measured": f"{_name(claim)} {_text(claim, ours)}", "wanted": ", ".join(wanted), "holds": holds,
            "test": "; ".join(tests), "note": _note(claim, holds, found.tuned)}  # fmt: skip


def _named(claim: Claim) -> list[str]:
    """The algorithms that a claim speaks of."""
    return [claim.algo, *(other for other in (*claim.above, *claim.below) if isinstance(other, str))]


def _note(claim: Claim, holds: str, tuned: RunTable) -> str:
    """What is known of a claim that does not hold; which of its methods had not come to an end, where that counts."""
    notes = [claim.note] if holds in ("no", UNCLEAR) else []
    named = _named(claim)
    if claim.at == "tail" and holds != "not measured":
        for column, text in (("above", "ended above the optimum"), ("falling", "still falling at the end")):
            there = {*tuned.frame["algo"][tuned.column(column) > 0]}
            notes += [f"{text}: {', '.join(mine)}"] if (mine := [n for n in dict.fromkeys(named) if n in there]) else []
    return "; ".join(filter(None, notes))


def _name(claim: Claim) -> str:
    goal = "" if claim.target is None else f"{claim.target:g}"
    if isinstance(claim.at, dict):
        ((axis, value),) = claim.at.items()
        if axis == "largest":
            return f"largest {value} whose {claim.metric} is within {TIE_TOLERANCE:.1%} of its best:"
        return f"{claim.metric} after {value:,g} {axis}"
    return {
        "tail": f"{claim.metric}",
        "worst": f"worst {claim.metric}",
        "reach": f"rounds to {claim.metric} {goal}:",
        "share": f"share of points with {claim.metric} of {goal}:",
    }[claim.at]


def _text(claim: Claim, measured: tuple[SeedValues, SeedValues]) -> str:
    """The median, and the range over seeds; of rounds to a target, what is known of them."""
    values, latest = (list(each.values()) for each in measured)
    if not values:
        return "unknown"
    if claim.at == "reach":
        return str(RoundsToTarget(values[0], latest[0]))
    if len(values) < 2:
        return _number(values[0])
    least, middle, most = seed_band(values)
    return f"{_number(middle)} [{_number(least)}, {_number(most)}]"


def _number(value: float) -> str:
    return "unknown" if np.isnan(value) else f"{value:.4g}" if abs(value) < 1e4 else f"{value:,g}"


def _measure(claim: Claim, algo: str, found: Measurements) -> tuple[SeedValues, SeedValues]:
    """Return what a claim is about, a value a seed, or one number: a bound from below and one from above, which are
    the same but for rounds to a target."""
    if claim.at == "reach":
        soonest = _soonest(claim, algo, found)
        return ({None: soonest.earliest}, {None: soonest.latest}) if soonest else ({}, {})
    values = _values(claim, algo, found)
    return values, values


def _values(claim: Claim, algo: str, found: Measurements) -> SeedValues:
    higher, runs = found.grid.metrics[claim.metric].higher, found.runs.get(algo, [])
    if isinstance(claim.at, dict):
        ((axis, value),) = claim.at.items()
        if axis == "largest":
            return {None: _largest(claim, algo, value, found)}
        return {seed: _after(claim.metric, rows, axis, value, algo) for seed, rows in runs}
    if claim.at == "share":
        return {None: _share(claim, higher, found.grid.frame[found.grid.frame["algo"] == algo])}
    if claim.at == "worst":
        values = [row.get(claim.metric, np.nan) for _, rows in runs for row in rows if row["round"] > 0]
        return {None: float((np.min if higher else np.max)(values))} if values else {}
    places = np.flatnonzero(found.tuned.frame["algo"] == algo)
    seeds = [seed for seed, _ in runs] or [None] * len(places)
    tail = found.tuned.column(f"tail_{claim.metric}")
    return {seed: float(tail[place]) for seed, place in zip(seeds, places, strict=True)}


def _after(metric: str, rows: MetricRows, axis: str, amount: float, algo: str) -> float:
    """A metric at the last evaluation that took no more than an amount; nan where a run ended before it took as much.
    A baseline's solution is what it is, whatever was sent."""
    if is_baseline_row(rows[-1]):
        return rows[-1].get(metric, float("nan"))
    taken = x_values(rows, axis, algo)
    if taken[-1] < amount:
        return np.nan
    within = [row for row, so_far in zip(rows, taken, strict=True) if so_far <= amount]
    return within[-1].get(metric, float("nan"))


def _largest(claim: Claim, algo: str, key: str, found: Measurements) -> float:
    """The largest value of a key at which a point of the grid is as good as the best one."""
    best = [
        row for row in found.grid.best_points(claim.metric).to_dict("records") if row["algo"] == algo and row["seeds"]
    ]
    points = found.grid.fold_seeds(claim.metric)
    if not best or key not in points:
        return float("nan")
    top = best[-1]["metric"]
    good = (points["algo"] == algo) & (points["status"] == "done")
    good &= (points["metric"] - top).abs() <= TIE_TOLERANCE * np.maximum(points["metric"].abs(), abs(top))
    return float(points.loc[good, key].max())


def _soonest(claim: Claim, algo: str, found: Measurements) -> RoundsToTarget | None:
    """The soonest that any point of the grid that is done comes to the target, of each the median over its seeds."""
    points, higher = found.grid.fold_seeds(claim.metric), found.grid.metrics[claim.metric].higher
    places = [rows for name, status, rows in zip(points["algo"], points["status"], points["rows"], strict=True)
              if name == algo and status == "done"]  # fmt: skip
    ends = [np.median([_reach(claim, higher, found.grid_rows[place]) for place in rows], axis=0) for rows in places]
    known = [end for end in ends if not np.isnan(end).any()]
    return RoundsToTarget(*(float(bound) for bound in np.min(known, axis=0))) if known else None


def _passes(claim: Claim, higher: bool | None, values: Any) -> Any:
    """Which values have come to the target: beyond it where more or less is better, else just there."""
    if higher is None:
        return np.isclose(values, claim.target or 0)
    return values >= claim.target if higher else values <= claim.target


def _reach(claim: Claim, higher: bool | None, rows: MetricRows) -> RoundsToTarget:
    values = np.array([row.get(claim.metric, np.nan) for row in rows])
    if np.isnan(values).all():
        return RoundsToTarget(np.nan, np.nan)
    return find_rounds_to_target([row["round"] for row in rows], _passes(claim, higher, values))


def _share(claim: Claim, higher: bool | None, points: DataFrame) -> float:
    column = f"tail_{claim.metric}"
    if column not in points or not len(points):
        return float("nan")
    return float(np.mean(_passes(claim, higher, points[column].to_numpy(float))))
