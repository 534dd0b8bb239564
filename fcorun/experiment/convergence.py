"""How a run ends, judged by its rows: a target that is met or missed, an objective that is still falling."""

from collections.abc import Mapping, Sequence

import numpy as np

from fcorun.errors import UserError, suggest_name
from fcorun.metrics import MetricCatalogue

MetricRows = Sequence[Mapping[str, float]]

NEAR_OPTIMUM = (
    0.01  # of the optimum's objective, or where that is less than so much of what was gained, of that: being there
)
RELATIVE_CHANGE = "change"  # among targets: the relative change of what is minimised, from one evaluation to the next
_SHARE, _OF_GAIN = 0.01, 0.05  # of its size, of all that was gained: what is called falling
MIN_EVALUATIONS = 10  # evaluations, of which nothing can be told
_ROUNDING = 1e-6  # of the largest value: what float32 makes of a constant
_GROWN = 1000  # times the size that the objective had at the start, or at its lowest: what is called divergence
_SMALL = 1e-3  # of an objective: a rise from almost 0, of a model that fits all rows, is no divergence
MORE_ROUNDS_ADVICE = "more rounds or larger rates may help"
NO_RANDOMNESS = "all clients take part with all their data, and nothing else is drawn"


def minimised_metric(row: Mapping[str, float]) -> str:
    """The metric that a run minimises: the objective, or of own models their training loss."""
    return "personal_train_loss" if "personal_train_loss" in row else "objective"


def metric_phrase(metric: str) -> str:
    """What a sentence calls the metric that a run minimises."""
    return "objective" if metric == "objective" else "own models' training loss"


def describe_met_target(targets: Mapping[str, float], rows: MetricRows, metrics: MetricCatalogue) -> str:
    """Which of the targets of ``stop`` the last evaluation has met, as a sentence; empty for none.

    Raises UserError for a metric that was not measured.
    """
    row = rows[-1]
    for name, target in targets.items():
        if name != RELATIVE_CHANGE and name not in row:
            known = suggest_name(name, (RELATIVE_CHANGE, *(n for n in row if metrics[n].higher is not None)))
            raise UserError(f"stop: this run does not measure '{name}': {known}")
        higher, value = _higher(name, metrics), _value(name, rows)
        if value >= target if higher else value <= target:
            reached = f"stopped in round {row['round']}: {name} {value:.3g} {'>=' if higher else '<='} {target:g}"
            return reached + _since(name, rows)
    return ""


def _since(name: str, rows: MetricRows) -> str:
    """Say when the evaluation before was, where rounds lie between in which nothing was measured."""
    if name == RELATIVE_CHANGE or len(rows) < 2 or rows[-1]["round"] - rows[-2]["round"] < 2:
        return ""
    return f", not yet in round {rows[-2]['round']}, the evaluation before"


def describe_missed_targets(targets: Mapping[str, float], rows: MetricRows, metrics: MetricCatalogue) -> str:
    """What the targets of ``stop`` had come to at the end of a run that met none of them; empty for no targets."""
    found = (
        f"{name} was {_value(name, rows):.3g} at the end, {'below' if _higher(name, metrics) else 'above'} {target:g}"
        for name, target in targets.items()
    )
    return f"stop: {', '.join(found)}" if targets else ""


def _higher(name: str, metrics: MetricCatalogue) -> bool:
    return name != RELATIVE_CHANGE and bool(metrics[name].higher)


def _value(name: str, rows: MetricRows) -> float:
    return rows[-1][name] if name != RELATIVE_CHANGE else _change(rows)


def _change(rows: MetricRows) -> float:
    """By which share of it what is minimised has changed at the last evaluation."""
    if len(rows) < 2:
        return float("inf")
    metric = minimised_metric(rows[-1])
    before, now = rows[-2][metric], rows[-1][metric]
    return abs(now - before) / max(abs(now), abs(before)) if now != before else 0.0


def explain_growth(rows: MetricRows) -> str:
    """Return why a run whose state is finite has diverged, as a sentence; empty where it has not.

    What it minimises has risen, from the first evaluation to the last, by more than 1,000 times its size at the start
    or at its lowest, whichever is larger.
    """
    metric = minimised_metric(rows[-1]) if rows else ""
    if metric not in (rows[-1] if rows else ()):
        return ""
    first, last, lowest = rows[0][metric], rows[-1][metric], min(row[metric] for row in rows)
    if last - first <= _GROWN * max(abs(first), abs(lowest), _SMALL):
        return ""
    size = f"more than {_GROWN:,} times its size at the start"
    return f"the {metric_phrase(metric)} rose from {first:.3g} to {last:.3g}, by {size}"


def measure_remaining_descent(rows: MetricRows) -> dict | None:
    """What says that a run's objective was still falling when it ended; None where it was not.

    The mean over the last tenth of the evaluations is compared with that over the tenth before. It has fallen if the
    difference is over 1 % of it, or over 5 % of what was gained in all (a run that has hardly begun), and over what
    noise may do: three times the largest rise from one evaluation to the next in the second half of the run, divided
    by the root of how many evaluations a mean is of. Of fewer than ten evaluations nothing is said: they lie too far
    apart to tell a fall at the end from one long before.

    Returns "metric", "evaluations" (a tenth of them), "fell" and "of_gain" (the two shares).
    """
    if len(rows) < MIN_EVALUATIONS:
        return None
    name, count = minimised_metric(rows[-1]), len(rows) // 10
    values = np.array([row[name] for row in rows])
    before, last, noise = _tenths(values)
    fell, gained, size = before - last, values[0] - last, max(abs(before), abs(last))
    if not (gained > 0 and fell > max(noise, min(_SHARE * size, _OF_GAIN * gained))):
        return None
    return {"metric": name, "evaluations": count, "fell": float(fell / size), "of_gain": float(fell / gained)}


def is_descending(rows: MetricRows) -> bool:
    """Return whether the objective fell at the end by more than noise may do, however little, as ``unfinished`` has
    it."""
    before, last, noise = _tenths(np.array([row[minimised_metric(rows[-1])] for row in rows]))
    return bool(before - last > noise)


def _tenths(values: np.ndarray) -> tuple[float, float, float]:
    """Return the means over the last tenth but one of the values and over the last tenth, and what noise may do."""
    count = max(len(values) // 10, 1)
    rises = np.diff(values[len(values) // 2 :])
    noise = max(3 * rises.max(initial=0) / np.sqrt(count), _ROUNDING * np.abs(values).max())
    return float(values[-2 * count : -count].mean()), float(values[-count:].mean()), float(noise)


def describe_remaining_descent(found: Mapping) -> str:
    """What ``unfinished`` found, as a sentence."""
    count, fell, of_gain = found["evaluations"], 100 * found["fell"], 100 * found["of_gain"]
    when = f"over the last {count} evaluations" if count > 1 else "at the last evaluation"
    then = f"over the {count} before" if count > 1 else "at the one before"
    lower = f"{fell:.2g} % lower than {then}, {of_gain:.2g} % of all it gained"
    return f"not finished: {when} the {metric_phrase(found['metric'])} was {lower}: {MORE_ROUNDS_ADVICE}"
