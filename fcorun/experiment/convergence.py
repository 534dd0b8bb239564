"""The end of a run, judged by its rows: targets that were met or missed, and an objective that was still falling."""

from collections.abc import Mapping, Sequence

import numpy as np

from fcorun.errors import UserError, suggest_name
from fcorun.metrics import MetricCatalogue

MetricRows = Sequence[Mapping[str, float]]

# the largest relative gap of an objective called near the optimum: relative to the optimum's objective, or to the
# decrease since the start where the optimum's objective is about 0
NEAR_OPTIMUM = 0.01
RELATIVE_CHANGE = "change"  # the target of ``stop`` on the relative change of the minimised metric between evaluations
MIN_EVALUATIONS = 10  # fewer evaluations lie too far apart to tell a fall at the end from one long before
MORE_ROUNDS_ADVICE = "more rounds or larger rates may help"
IGNORES_PSI = "ignores the regularizer psi"
NO_RANDOMNESS = "all clients take part with all their data, and nothing else is drawn"
_MIN_FALL = 0.01  # a larger fall, relative to the metric, counts as still falling
_MIN_FALL_OF_GAIN = 0.05  # and so does a larger fall relative to the whole decrease since the start
_ROUNDING = 1e-6  # the rounding of float32, relative to the largest value
_DIVERGENCE_FACTOR = 1000  # a rise by more than this factor is divergence
_SMALL_OBJECTIVE = 1e-3  # a rise from below this value, of a model that fits all rows, is no divergence


def minimised_metric(row: Mapping[str, float]) -> str:
    """Return the metric that a run minimises: the objective, or the training loss of personal models."""
    return "personal_train_loss" if "personal_train_loss" in row else "objective"


def metric_phrase(metric: str) -> str:
    """Return the name of the minimised metric as sentences use it."""
    return "objective" if metric == "objective" else "personal models' training loss"


def describe_met_target(targets: Mapping[str, float], rows: MetricRows, metrics: MetricCatalogue) -> str:
    """Return a sentence on the first target of ``stop`` that the last evaluation has met; empty if it met none.

    Raises UserError for a metric that was not measured.
    """
    row = rows[-1]
    for name, target in targets.items():
        if name != RELATIVE_CHANGE and name not in row:
            measured = [metric for metric in metrics.targets if metric in row]
            raise UserError(
                f"stop: this run does not measure '{name}': {suggest_name(name, (RELATIVE_CHANGE, *measured))}"
            )
        value = _value(name, rows)
        if _rises(name, metrics):
            met, relation = value >= target, ">="
        else:
            met, relation = value <= target, "<="
        if met:
            sentence = f"stopped in round {row['round']}: {name} {value:.3g} {relation} {target:g}"
            return sentence + _describe_previous_evaluation(name, rows)
    return ""


def describe_unresolved_gap(targets: Mapping[str, float], row: Mapping[str, float], resolution: float) -> str:
    """Return a sentence on a duality gap that is rounding, and a target below rounding; empty otherwise.

    More rounds would show no smaller gap, and the target can be neither met nor missed. ``resolution`` is the smallest
    gap that the run's precision resolves.
    """
    if targets.get("gap", np.inf) >= resolution or not row.get("gap", np.inf) <= resolution:  # NaN while a site is away
        return ""
    return (f"stopped in round {row['round']}: gap {row['gap']:.3g} is rounding, and stop.gap={targets['gap']:g} is "
            f"below the rounding of the objective, {resolution:.1g}; give a larger target, or "
            "precision=float64")  # fmt: skip


def _describe_previous_evaluation(name: str, rows: MetricRows) -> str:
    """Return a clause that names the round of the evaluation before; empty if no rounds lie between the two."""
    if name == RELATIVE_CHANGE or len(rows) < 2 or rows[-1]["round"] - rows[-2]["round"] < 2:
        return ""
    return f", not yet in round {rows[-2]['round']}, the evaluation before"


def describe_missed_targets(targets: Mapping[str, float], rows: MetricRows, metrics: MetricCatalogue) -> str:
    """Return a sentence on the final values of the targets of ``stop``, all of them missed; empty for no targets."""
    if not targets:
        return ""
    clauses = []
    for name, target in targets.items():
        side = "below" if _rises(name, metrics) else "above"
        clauses.append(f"{name} was {_value(name, rows):.3g} at the end, {side} {target:g}")
    return f"stop: {', '.join(clauses)}"


def _rises(name: str, metrics: MetricCatalogue) -> bool:
    """Return whether a target is met by values at or above it: of a metric to maximise, or of a monotone cost."""
    return name != RELATIVE_CHANGE and metrics.rises_to_target(name)


def _value(name: str, rows: MetricRows) -> float:
    """Return the value of a target's metric at the last evaluation."""
    return rows[-1][name] if name != RELATIVE_CHANGE else _relative_change(rows)


def _relative_change(rows: MetricRows) -> float:
    """Return the relative change of the minimised metric at the last evaluation; inf at the first one."""
    if len(rows) < 2:
        return float("inf")
    metric = minimised_metric(rows[-1])
    before, now = rows[-2][metric], rows[-1][metric]
    if now == before:
        return 0.0
    return abs(now - before) / max(abs(now), abs(before))


def explain_growth(rows: MetricRows) -> str:
    """Return a sentence on why a run whose state is finite has diverged; empty if it has not diverged.

    A run has diverged if its minimised metric rose, from the first evaluation to the last, by more than 1,000 times
    its size at the start or at its lowest, whichever is larger.
    """
    if not rows:
        return ""
    metric = minimised_metric(rows[-1])
    if metric not in rows[-1]:
        return ""
    first, last, lowest = rows[0][metric], rows[-1][metric], min(row[metric] for row in rows)
    if last - first <= _DIVERGENCE_FACTOR * max(abs(first), abs(lowest), _SMALL_OBJECTIVE):
        return ""
    size = f"more than {_DIVERGENCE_FACTOR:,} times its size at the start"
    return f"the {metric_phrase(metric)} rose from {first:.3g} to {last:.3g}, by {size}"


def measure_remaining_descent(rows: MetricRows) -> dict | None:
    """Measure how fast the minimised metric was still falling when a run ended; None if it had come to rest.

    The mean over the last tenth of the evaluations is compared with the mean over the tenth before. The metric was
    falling if the difference is over 1 % of the metric, or over 5 % of the whole decrease (a run that has hardly
    begun), and over the noise: three times the largest rise from one evaluation to the next in the second half of the
    run, divided by the root of the number of evaluations in a mean. Returns None for fewer than ten evaluations.

    Returns "metric", "evaluations" (a tenth of them), "fell" and "of_gain" (the two shares).
    """
    if len(rows) < MIN_EVALUATIONS:
        return None
    metric = minimised_metric(rows[-1])
    values = np.array([row[metric] for row in rows])
    before, last, noise = _compare_tenths(values)
    fall, gain = before - last, values[0] - last
    size = max(abs(before), abs(last))
    still_falling = gain > 0 and fall > max(noise, min(_MIN_FALL * size, _MIN_FALL_OF_GAIN * gain))
    if not still_falling:
        return None
    return {
        "metric": metric,
        "evaluations": len(rows) // 10,
        "fell": float(fall / size),
        "of_gain": float(fall / gain),
    }


def is_descending(rows: MetricRows) -> bool:
    """Return whether the minimised metric fell at the end by more than noise, however little."""
    metric = minimised_metric(rows[-1])
    before, last, noise = _compare_tenths(np.array([row[metric] for row in rows]))
    return bool(before - last > noise)


def _compare_tenths(values: np.ndarray) -> tuple[float, float, float]:
    """Return the mean over the last tenth but one of the values, the mean over the last tenth, and the noise."""
    count = max(len(values) // 10, 1)
    rises = np.diff(values[len(values) // 2 :])
    noise = max(3 * rises.max(initial=0) / np.sqrt(count), _ROUNDING * np.abs(values).max())
    return float(values[-2 * count : -count].mean()), float(values[-count:].mean()), float(noise)


def describe_remaining_descent(descent: Mapping) -> str:
    """Return a sentence on the result of ``measure_remaining_descent``."""
    count = descent["evaluations"]
    if count > 1:
        period, previous_period = f"over the last {count} evaluations", f"over the {count} before"
    else:
        period, previous_period = "at the last evaluation", "at the one before"
    fall, share_of_gain = 100 * descent["fell"], 100 * descent["of_gain"]
    return (f"not finished: {period} the {metric_phrase(descent['metric'])} was {fall:.2g} % lower than "
            f"{previous_period}, {share_of_gain:.2g} % of all it gained: {MORE_ROUNDS_ADVICE}")  # fmt: skip
