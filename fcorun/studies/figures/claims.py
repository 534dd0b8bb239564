"""Check of a figure's claims, and of the best rates that its paper prints, against the records."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fcorun.base.metrics import is_baseline_row, metric_of
from fcorun.reports.pictures.layout import has_counted, x_values
from fcorun.reports.run_table import CHOSEN_STRENGTH, RunTable, is_number, seed_band
from fcorun.reports.sweep_report import describe_unlike_rounds
from fcorun.studies.figures.figure_inputs import FigureInputs, describe_several_best
from fcorun.studies.figures.papers import fco
from fcorun.studies.figures.seed_comparison import (
    UNCLEAR,
    UNDECIDED,
    RoundsToTarget,
    SeedValues,
    average_seeds,
    compare,
    compare_bounds,
    find_rounds_to_target,
)
from fcorun.studies.figures.spec import Claim, Figure

COLUMNS = ("figure", "algo", "says", "measured", "wanted", "holds", "test", "note", "best_by", "changed")
NOT_COMPARABLE = "not comparable"
RATE_KEYS = ("client_lr", "server_lr")
_MAX_LISTED = 3  # points
# Two points of a grid tie in a metric if it differs by at most this share of the larger: a choice of fcorun.
TIE_TOLERANCE = 1e-3
MetricRows = Sequence[dict[str, float]]


@dataclass(frozen=True)
class Measurements:
    """Measurements that claims are checked against.

    Attributes:
        grid, grid_rows: the table of all points of the grid, and the rows of metrics.csv of each point.
        tuned: the table of the best points with all seeds.
        runs: by algorithm, the seeds and the rows of each run at its best point; the seeds are None if the run does
            not depend on them.
        seed_kind: the seeds in words, such as "seeds of data".
        lost_seeds_notes: a note for each algorithm that has lost seeds, which diverged or failed.
        converged: by algorithm, the seeds of the runs that ended where their algorithm's certificate was rounding: more
            rounds would have changed nothing.
        elsewhere: the algorithms that have runs under other conditions alone.
    """

    grid: RunTable
    tuned: RunTable
    runs: dict[str, list[tuple[Any, MetricRows]]]
    grid_rows: Sequence[MetricRows] = ()
    seed_kind: str = "seeds"
    lost_seeds_notes: dict[str, str] = field(default_factory=dict)
    converged: dict[str, set[Any]] = field(default_factory=dict)
    elsewhere: Collection[str] = ()

    def is_baseline(self, algo: str) -> bool:
        """Return whether an algorithm is a solver of all rows, whose rows of metrics are iterates."""
        return any(_is_of_solver(rows) for _, rows in self.runs.get(algo, []))


def collect_measurements(inputs: FigureInputs, algorithms: Collection[str] = ()) -> Measurements:
    """Collect the measurements that the claims of a figure are about; ``algorithms`` are those of all conditions."""
    runs: dict[str, list[tuple[Any, MetricRows]]] = {}
    converged: dict[str, set[Any]] = {}
    for algo, record in zip(inputs.tuned.frame["algo"], inputs.tuned_records, strict=True):
        runs.setdefault(algo, []).append((inputs.seeds_of(record), record.rows))
        if record.summary.get("convergence"):
            converged.setdefault(algo, set()).add(inputs.seeds_of(record))
    return Measurements(
        grid=inputs.grid,
        tuned=fco.add_averages(inputs) if inputs.figure.draw == "averaging" else inputs.tuned,
        runs=runs,
        grid_rows=[record.rows for record in inputs.grid_records],
        seed_kind=inputs.tuned.seed_kind,
        lost_seeds_notes=inputs.lost_seeds_notes,
        converged=converged,
        elsewhere=set(algorithms) - set(inputs.tuned.frame["algo"]),
    )


def check_claims(name: str, figure: Figure, measurements: Measurements, condition: str = "") -> list[dict]:
    """Return a row of claims.csv for each claim of the figure; ``condition`` names the measurements' among several."""
    rows = []
    for claim in figure.claims:
        row = {"figure": name, "algo": claim.algo, "says": claim.says + condition}
        rows.append(row | _check_claim(claim, figure, measurements))
    return rows


def _check_claim(claim: Claim, figure: Figure, measurements: Measurements) -> dict[str, str]:
    """Return what was measured and wanted, whether the claim holds, by which test, and a note.

    A claim about every seed is not decided if seeds of its algorithms diverged or failed, and it holds in the others.
    """
    algorithm_bounds = _measure(claim, claim.algo, measurements)
    resolution = 0.0 if _is_of_grid(claim) else _resolution(claim, measurements.tuned) * max(1.0, claim.times)
    wanted = []
    answers = []
    tests = []
    for sign, word, others in ((1, "above", claim.above), (-1, "below", claim.below)):
        for other in others:
            if isinstance(other, str):
                other_bounds = _measure(claim, other, measurements)
                factor = f"{claim.times:g} times " if claim.times != 1 else ""
                wanted.append(f"{word} {factor}{other} ({_format_values(claim, other_bounds)})")
                low, high = ({seed: claim.times * value for seed, value in values.items()} for values in other_bounds)
            else:
                wanted.append(f"{word} {float(other):g}")
                low = high = {None: float(other)}
            answer, test = compare_bounds(
                algorithm_bounds, (low, high), sign, measurements.seed_kind, resolution=resolution
            )
            answers.append(answer)
            if test and test not in tests:
                tests.append(test)
    holds = next((answer for answer in ("not measured", "no", UNCLEAR) if answer in answers), "yes")
    algorithms = _list_algorithms(claim)
    lost_seeds = "; ".join(note for algo, note in measurements.lost_seeds_notes.items() if algo in algorithms)
    if _is_of_grid(claim):
        lost_seeds = ""
    if holds == "yes" and lost_seeds:
        holds = UNDECIDED
    incomparable = _explain_incomparable(claim, measurements)
    if incomparable and (holds != "not measured" or set(algorithms) & set(measurements.elsewhere)):
        holds = NOT_COMPARABLE
    if holds in ("not measured", UNDECIDED, NOT_COMPARABLE):
        tests = []
    has_equal_rounds = not measurements.tuned.unlike_rounds(claim.metric)
    if tests and claim.at == "tail" and "rounds" not in figure.x and len(algorithms) > 1 and has_equal_rounds:
        tests.append(f"after equal rounds; at: {{{figure.x[0]}: NUMBER}} compares at equal {figure.x[0]}")
    return {
        "measured": f"{_describe_quantity(claim, measurements)} {_format_values(claim, algorithm_bounds)}",
        "wanted": ", ".join(wanted),
        "holds": holds,
        "test": "; ".join(tests),
        "note": "; ".join(
            filter(
                None,
                [
                    incomparable,
                    _describe_uncounted(claim, measurements),
                    lost_seeds,
                    _format_notes(claim, holds, measurements.tuned),
                    _describe_short_grids(claim, measurements.grid),
                ],
            )
        ),
    }


def _explain_incomparable(claim: Claim, measurements: Measurements) -> str:
    """Return a note if the numbers of a claim do not compare, "" if they do.

    The objective is another function for each strength. An algorithm may have several best points where the metric that
    chooses them does not compare them, as the objectives of two strengths.
    """
    if absent := [name for name in _list_algorithms(claim) if name in measurements.elsewhere]:
        return (
            f"{' and '.join(absent)} has runs under other conditions alone, and a claim compares within each: claim a "
            "number for each algorithm"
        )
    if isinstance(claim.at, dict) and claim.at.get("largest") in measurements.grid.condition_keys:
        return f"{claim.at['largest']} is a condition, among whose values none is chosen: claim a metric under each"
    is_of_grid = _is_of_grid(claim)
    table = measurements.grid if is_of_grid else measurements.tuned
    algorithms = _list_algorithms(claim)
    solvers = [name for name in algorithms if measurements.is_baseline(name)]
    if claim.at == "reach" and solvers:
        return f"{' and '.join(solvers)} takes iterations of a solver, not rounds: claim its metric at the end instead"
    of_claim = table.take(np.flatnonzero(table.frame["algo"].isin(algorithms)).tolist())
    compares_rounds = claim.at == "reach" or (isinstance(claim.at, dict) and "rounds" in claim.at)
    if compares_rounds and (unlike := of_claim.unlike_rounds(claim.metric)):
        return f"{describe_unlike_rounds(unlike)}: claim at: {{bytes: NUMBER}} or {{simulated_seconds: NUMBER}}"
    resolution = _resolution(claim, table)
    if claim.target is not None and claim.target < resolution:
        return (
            f"{claim.metric} {claim.target:g} is below the rounding of the objective, {resolution:.1g}: claim a larger "
            "target, or give precision=float64"
        )
    differing = [
        key for key in table.function_keys(claim.metric) or () if of_claim.frame[key].nunique(dropna=False) > 1
    ]
    if differing:
        cure = "leave study.strength out" if CHOSEN_STRENGTH in differing else "give all runs one value"
        return f"{claim.metric} is another function for each {' and '.join(differing)}: claim another metric, or {cure}"
    if is_of_grid or "data" not in table.frame:
        return ""
    several = describe_several_best(table, table.objective_keys(), algorithms)
    return several and (
        f"{several}, of which the last one is shown, since a claim cannot choose: give all runs one value, name the "
        "key in hydra.sweeper.conditions, or give another metric="
    )


def _resolution(claim: Claim, table: RunTable) -> float:
    """Return the difference of the metric of a claim below which it is rounding, in runs of its algorithms."""
    runs = table.frame["algo"].isin(_list_algorithms(claim)).to_numpy()
    return float(table.resolution(claim.metric)[runs].max(initial=0))


def _is_of_grid(claim: Claim) -> bool:
    """Return whether a claim is about all points of the grid, not about the best ones."""
    return claim.at in ("reach", "share") or (isinstance(claim.at, dict) and "largest" in claim.at)


def _list_algorithms(claim: Claim) -> list[str]:
    """Return the algorithms that a claim compares."""
    return [claim.algo, *(other for other in (*claim.above, *claim.below) if isinstance(other, str))]


def _format_notes(claim: Claim, holds: str, tuned: RunTable) -> str:
    """Return the note of a claim that does not hold, and the names of its algorithms that had not converged."""
    notes = [claim.note] if claim.note and holds in ("no", UNCLEAR, UNDECIDED) else []
    if claim.at == "tail" and holds not in ("not measured", NOT_COMPARABLE):
        for column, text in (("above", "ended above the optimum"), ("falling", "still falling at the end")):
            unfinished = set(tuned.frame["algo"][tuned.column(column) > 0])
            algorithms = [name for name in dict.fromkeys(_list_algorithms(claim)) if name in unfinished]
            if algorithms:
                notes.append(f"{text}: {', '.join(algorithms)}")
        claimed = tuned.frame[tuned.frame["algo"].isin(_list_algorithms(claim)) & tuned.has_rounds()]
        column = "rounds_done" if "rounds_done" in claimed else "rounds"
        if tuned.has_stopped and claimed[column].nunique() > 1:
            notes.append("runs that met a target of stop count by where they ended, not by how soon")
    return "; ".join(notes)


def _describe_uncounted(claim: Claim, measurements: Measurements) -> str:
    """Return a note on the algorithms whose runs did not count the cost at which a claim compares, "" for none."""
    if not isinstance(claim.at, dict) or "largest" in claim.at:
        return ""
    (axis,) = claim.at
    uncounted = []
    for algo in dict.fromkeys(_list_algorithms(claim)):
        runs = [rows for _, rows in measurements.runs.get(algo, [])]
        if not measurements.is_baseline(algo) and not all(has_counted(rows, axis) for rows in runs):
            uncounted.append(algo)
    return f"{axis} was not counted in {', '.join(uncounted)}" if uncounted else ""


def _describe_short_grids(claim: Claim, grid: RunTable) -> str:
    """Return a note on the numbers of a claim's algorithms that were chosen among two values, "" for none."""
    chosen_among_two: dict[str, list[str]] = {}
    for algo in dict.fromkeys(_list_algorithms(claim)):
        points = grid.frame[grid.frame["algo"] == algo]
        for key in grid.varied_by_algo.get(algo, []):
            if key.startswith("algo.") and points[key].nunique() == 2:
                chosen_among_two.setdefault(key, []).append(algo)
    parts = [f"{key} of {' and '.join(algos)}" for key, algos in chosen_among_two.items()]
    return f"rests on two values each of {', '.join(parts)}" if parts else ""


def _describe_quantity(claim: Claim, measurements: Measurements) -> str:
    """Return the quantity that a claim is about."""
    if isinstance(claim.at, dict):
        ((axis, value),) = claim.at.items()
        if axis == "largest":
            return f"largest {value} whose {claim.metric} is within {TIE_TOLERANCE:.1%} of its best:"
        return f"{claim.metric} after {value:,g} {axis}"
    target = "" if claim.target is None else f"{claim.target:g}"
    has_direction = measurements.grid.metrics[claim.metric].higher is not None
    at_target = f"{target} or better" if has_direction else f"equal to {target}"
    return {
        "tail": f"{claim.metric}",
        "worst": f"worst {claim.metric}",
        "reach": f"rounds to {claim.metric} {target}:",
        "share": f"share of points whose {claim.metric} is {at_target}:",
    }[claim.at]


def _format_values(claim: Claim, bounds: tuple[SeedValues, SeedValues]) -> str:
    """Return the median and the band over seeds of ``seed_band``, with the bounds of a value between evaluations."""
    lower, upper = (average_seeds(values) for values in bounds)
    if not len(lower):
        return "unknown"
    if claim.at == "reach":
        return str(RoundsToTarget(lower[0], upper[0]))
    least, median, _ = seed_band(lower)
    _, upper_median, most = seed_band(upper)
    text = _format_number(median)
    if upper_median != median and not np.isnan(median):
        text += f" to {_format_number(upper_median)}, the evaluations around it,"
    return text if len(lower) < 2 else f"{text} [{_format_number(least)}, {_format_number(most)}]"


def _format_number(value: float) -> str:
    if np.isnan(value):
        return "unknown"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,g}"


def _measure(claim: Claim, algo: str, measurements: Measurements) -> tuple[SeedValues, SeedValues]:
    """Return the lower and the upper bound, by seed, of the quantity of a claim: they differ between evaluations."""
    if claim.at == "reach":
        rounds = _fewest_rounds(claim, algo, measurements)
        return ({None: rounds.earliest}, {None: rounds.latest}) if rounds else ({}, {})
    runs = measurements.runs.get(algo, [])
    if isinstance(claim.at, dict):
        ((axis, amount),) = claim.at.items()
        if axis == "largest":
            values = {None: _largest_good_value(claim, algo, amount, measurements)}
        else:
            bounds = {}
            for seed, rows in runs:
                stands_still = seed in measurements.converged.get(algo, ())
                bounds[seed] = _bounds_after(claim.metric, rows, axis, amount, algo, stands_still=stands_still)
            return {seed: low for seed, (low, _) in bounds.items()}, {seed: high for seed, (_, high) in bounds.items()}
    elif claim.at == "share":
        values = {None: _share_at_target(claim, algo, measurements.grid)}
    elif claim.at == "worst":
        evaluations = [metric_of(row, claim.metric) for _, rows in runs for row in _list_evaluations(rows)]
        worst = np.min if measurements.grid.metrics[claim.metric].higher else np.max
        values = {None: float(worst(evaluations))} if evaluations else {}
    else:
        indices = np.flatnonzero(measurements.tuned.frame["algo"] == algo)
        seeds = [seed for seed, _ in runs] or [None] * len(indices)
        tail = measurements.tuned.tail_values(claim.metric)
        values = {seed: float(tail[i]) for seed, i in zip(seeds, indices, strict=True)}
    return values, values


def _is_of_solver(rows: MetricRows) -> bool:
    """Return whether the rows of a run are iterates of a baseline's solver."""
    return bool(rows) and rows[-1]["round"] > 0 and is_baseline_row(rows[-1])


def _list_evaluations(rows: MetricRows) -> MetricRows:
    """Return the evaluations of a run after its start; of a baseline, whose rows are iterates, its solution alone."""
    return rows[-1:] if _is_of_solver(rows) else [row for row in rows if row["round"] > 0]


def _bounds_after(
    metric: str, rows: MetricRows, axis: str, amount: float, algo: str, *, stands_still: bool
) -> tuple[float, float]:
    """Return the values of a metric at the evaluations around ``amount``, the lower one first.

    They are the last evaluation that took no more and the first that took no less, which may be one. A baseline has its
    solution. Both are NaN if the run did not count ``axis``, if it ended before, unless it ``stands_still`` at its end,
    or if its first evaluation had taken more.
    """
    values = [metric_of(row, metric) for row in rows]
    if is_baseline_row(rows[-1]):
        return values[-1], values[-1]
    if not has_counted(rows, axis):
        return np.nan, np.nan
    amounts = x_values(rows, axis, algo)
    if amounts[-1] < amount and stands_still:
        return values[-1], values[-1]
    if not amounts[0] <= amount <= amounts[-1]:
        return np.nan, np.nan
    before, after = values[np.searchsorted(amounts, amount, "right") - 1], values[np.searchsorted(amounts, amount)]
    return min(before, after), max(before, after)


def _largest_good_value(claim: Claim, algo: str, key: str, measurements: Measurements) -> float:
    """Return the largest number of ``key`` at which a point of the grid ties with the best point; NaN without one."""
    best_points = measurements.grid.best_points(claim.metric).to_dict("records")
    best = [row for row in best_points if row["algo"] == algo and row["seeds"]]
    points = measurements.grid.fold_seeds(claim.metric)
    if not best or key not in points:
        return float("nan")
    optimum = best[-1]["metric"]
    is_good = (points["algo"] == algo) & (points["status"] == "done")
    tolerance = TIE_TOLERANCE * np.maximum(points["metric"].abs(), abs(optimum))
    is_good &= (points["metric"] - optimum).abs() <= np.maximum(tolerance, _resolution(claim, measurements.grid))
    return max((float(value) for value in points.loc[is_good, key].tolist() if is_number(value)), default=np.nan)


def _fewest_rounds(claim: Claim, algo: str, measurements: Measurements) -> RoundsToTarget | None:
    """Return the fewest rounds to the target over all finished points of the grid, each the median over its seeds."""
    higher = measurements.grid.metrics[claim.metric].higher
    medians = []
    for point in measurements.grid.fold_seeds(claim.metric).to_dict("records"):
        if point["algo"] == algo and point["status"] == "done":
            rounds = []
            for i in point["rows"]:
                rows = measurements.grid_rows[i]
                values = np.array([metric_of(row, claim.metric) for row in rows])
                if np.isnan(values).all():
                    rounds.append(RoundsToTarget(np.nan, np.nan))
                else:
                    is_at_target = _is_at_target(claim, higher, values)
                    rounds.append(find_rounds_to_target([row["round"] for row in rows], is_at_target))
            medians.append(np.median(rounds, axis=0))
    known = [median for median in medians if not np.isnan(median).any()]
    return RoundsToTarget(*(float(bound) for bound in np.min(known, axis=0))) if known else None


def _is_at_target(claim: Claim, higher: bool | None, values: Any) -> Any:
    """Return which values are at the target: at least as good, or equal for a metric without a direction."""
    if higher is None:
        return np.isclose(values, claim.target or 0)
    return values >= claim.target if higher else values <= claim.target


def _share_at_target(claim: Claim, algo: str, grid: RunTable) -> float:
    """Return the share of an algorithm's points, each the median over its seeds, that are done and at the target."""
    points = grid.fold_seeds(claim.metric)
    points = points[points["algo"] == algo]
    if claim.metric not in grid.tail_metrics or not len(points):
        return float("nan")
    is_at_target = _is_at_target(claim, grid.metrics[claim.metric].higher, points["metric"].to_numpy(float))
    return float(np.mean(is_at_target & (points["status"] == "done")))


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
            values = {key: best_row[key] for key in varied} if best_row else {}
            # a column with empty cells holds whole numbers as floats
            texts = {key: f"{value:.10g}" if isinstance(value, float) else value for key, value in values.items()}
            problem = "".join(f", {key}={text}" for key, text in texts.items())
            row = {"figure": name, "algo": algo, "says": f"best ({', '.join(RATE_KEYS)}){problem}"}
            row |= _check_rates(inputs, best_row, rates)
            row["note"] = inputs.figure.printed_note if row["holds"] == "no" else ""
            rows.append(row)
    return rows


def _check_rates(inputs: FigureInputs, best_row: dict[str, Any] | None, rates: Sequence[float]) -> dict[str, str]:
    """Return what was measured and wanted on the problem of a best point, whether they agree, and by which test."""
    points = _list_points(inputs, best_row) if best_row else []
    best = next((point for point in points if point["rows"] == best_row["rows"]), None) if best_row else None
    wanted = _format_rates(rates)
    if best is None:
        return {"measured": "not measured", "wanted": wanted, "holds": "not measured", "test": ""}
    ties = []
    tests = []
    for point in points:
        if point["status"] == "done" and point is not best:
            is_distinct, test = _is_distinct(inputs, best, point)
            tests.append(test)
            if not is_distinct:
                ties.append(point)
    printed = [point for point in points if np.allclose(point["rates"], rates, rtol=1e-6)]
    status = printed[0]["status"] if printed else "missing"
    holds = "not measured"
    if not printed:
        holds = "not tried"
    elif any(point in (best, *ties) for point in printed):
        holds = UNCLEAR if ties else "yes"
    elif status in ("done", "diverged"):
        holds = "no"
        if status == "diverged":
            tests.append("the printed rates diverged")
    ties.sort(key=lambda point: point not in printed)  # the printed rates are listed first
    listed = [_format_rates(point["rates"]) for point in (best, *ties)]
    if len(listed) > _MAX_LISTED:
        listed[_MAX_LISTED:] = [f"{len(listed) - _MAX_LISTED} others"]
    ends: dict[float, set[str]] = {}  # of the points at each client_lr
    for point in points:
        ends.setdefault(point["rates"][0], set()).add(point["status"])
    not_done = [statuses for statuses in ends.values() if "done" not in statuses]
    if not_done and len(not_done) == len(ends) - 1 and all("diverged" in statuses for statuses in not_done):
        tests.append("all other client_lr diverged")
    if status == "done":
        wanted += f", where it is {printed[0]['metric']:.4g}"
    return {
        "measured": f"{inputs.metric} {best['metric']:.4g} at {' or '.join(listed)}",
        "wanted": wanted,
        "holds": holds,
        "test": "; ".join(dict.fromkeys(tests)),
    }


def _list_points(inputs: FigureInputs, best_row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all points of the algorithm and the problem of a best point that have rates, with their rates."""
    keys = ["algo", *inputs.grid.problem_keys(inputs.metric)]
    points = []
    for point in inputs.grid.fold_seeds(inputs.metric).to_dict("records"):
        config = inputs.grid_records[point["rows"][0]].flat_config
        rates = [config.get(f"algo.{key}") for key in RATE_KEYS]
        if all(str(point[key]) == str(best_row[key]) for key in keys) and None not in rates:
            points.append(point | {"rates": rates})
    return points


def _is_distinct(inputs: FigureInputs, best: dict[str, Any], other: dict[str, Any]) -> tuple[bool, str]:
    """Return whether the best point is distinguishable from another one, and by which test."""
    values = inputs.grid.tail_values(inputs.metric)
    resolution = float(inputs.grid.resolution(inputs.metric)[[*best["rows"], *other["rows"]]].max())
    best_values, other_values = (
        {inputs.seeds_of(inputs.grid_records[i]): float(values[i]) for i in point["rows"]} for point in (best, other)
    )
    if None not in best_values and len(set(best_values) & set(other_values)) > 1:
        sign = 1 if inputs.grid.metrics[inputs.metric].higher else -1
        answer, test = compare(best_values, other_values, sign, inputs.grid.seed_kind, resolution=resolution)
        return answer == "yes", test
    a, b = best["metric"], other["metric"]
    test = f"distinguished by {TIE_TOLERANCE:.1%} of {inputs.metric}, our choice"
    return bool(abs(a - b) > max(TIE_TOLERANCE * max(abs(a), abs(b)), resolution)), test


def _format_rates(rates: Sequence[float]) -> str:
    return f"({', '.join(f'{rate:g}' for rate in rates)})"
