"""Percentile intervals of scores, or of differences of scores, by the bootstrap."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from fcorun.results.models.score_intervals.score_options import ScoreOptions
from fcorun.results.models.score_intervals.scored_rows import HeldOutRows
from fcorun.results.models.score_intervals.segments import RowSegments, Units, number_units
from fcorun.results.models.score_intervals.weighted_scores import Scorer, prepare_scorer

MIN_UNITS = 10  # the least number of units of a segment whose scores have intervals
_MIN_DEFINED = 0.95  # the least share of samples that define the score of an interval


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """Scores of C segments of rows with their intervals. Scores and ends are arrays by name, (C,) each.

    Attributes:
        estimates: the scores of the rows, for each of the models.
        low, high: the ends of the interval of the score, or of the difference of two models; nan if there is none.
        defined: the number of samples that define the score.
        reasons: why a score has no interval: "units", "undefined" or "constant", else "".
        n_units: the number of units of each segment, (C,).
    """

    estimates: list[dict[str, np.ndarray]]
    low: dict[str, np.ndarray]
    high: dict[str, np.ndarray]
    defined: dict[str, np.ndarray]
    reasons: dict[str, np.ndarray]
    n_units: np.ndarray


def unit_names(rows: HeldOutRows, resample: str) -> np.ndarray:
    """Return the unit of each row that a sample draws: its group, its client, or the row itself, (n,)."""
    if resample == "groups":
        assert rows.group is not None
        return rows.group
    return rows.client if resample == "clients" else np.arange(len(rows))


def bootstrap(
    models: Sequence[HeldOutRows],
    segments: RowSegments,
    resample: str,
    options: ScoreOptions,
    rng: np.random.Generator,
) -> Bootstrap:
    """Return the scores of one or two models on the same rows, and the intervals of the scores or of their difference.

    Rows are sorted by segment. A sample draws as many units of each segment as the segment has. Of two models, both
    have the same samples. Segments with fewer than MIN_UNITS units have no intervals.

    Args:
        models: the rows with the predictions of one model, or of each of two models.
        segments: the segments of the rows.
        resample: what is drawn: "rows", "groups" or "clients".
        options: the level of the intervals, and the number of samples.
        rng: the generator of the samples.
    """
    units = Units(number_units(unit_names(models[0], resample), segments), segments)
    scorers = [prepare_scorer(rows, segments, whole_clients=resample == "clients") for rows in models]
    ones = np.ones((1, len(models[0])))
    with np.errstate(invalid="ignore", over="ignore"):
        estimates = [{name: values[0] for name, values in scorer(ones).items()} for scorer in scorers]
        names = list(_score_or_subtract(scorers, ones))
        chunks = []
        if (units.counts >= MIN_UNITS).any():
            chunks = [_score_or_subtract(scorers, weights) for weights in units.samples(rng, options.samples)]
    low, high, defined, reasons = {}, {}, {}, {}
    for name in names:
        samples = np.full((0, len(segments)), np.nan)
        if chunks:
            samples = np.concatenate([chunk[name] for chunk in chunks])
        low[name], high[name], defined[name], reasons[name] = _percentiles(samples, units.counts, options)
    return Bootstrap(estimates=estimates, low=low, high=high, defined=defined, reasons=reasons, n_units=units.counts)


def _score_or_subtract(scorers: Sequence[Scorer], weights: np.ndarray) -> dict[str, np.ndarray]:
    """Return the scores of the weighted rows, or those of the first model minus those of the second.

    A difference of prevalences, which depend on no model, is left out.
    """
    first, *others = (scorer(weights) for scorer in scorers)
    if not others:
        return first
    return {name: first[name] - others[0][name] for name in first if name != "prevalence"}


def _percentiles(
    samples: Float[np.ndarray, "B C"], n_units: np.ndarray, options: ScoreOptions
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the ends of the intervals, the number of samples that define the score, and why there is no interval."""
    is_defined = np.isfinite(samples)
    defined = is_defined.sum(axis=0)
    reasons = np.full(len(n_units), "", dtype=object)
    low, high = np.full(len(n_units), np.nan), np.full(len(n_units), np.nan)
    for c in range(len(n_units)):
        values = samples[is_defined[:, c], c]
        if n_units[c] < MIN_UNITS:
            reasons[c] = "units"
        elif len(values) < _MIN_DEFINED * options.samples:
            reasons[c] = "undefined"
        elif np.ptp(values) <= 1e-12 * np.abs(values).max():
            reasons[c] = "constant"
        else:
            low[c], high[c] = np.quantile(values, [options.tail, 1 - options.tail])
    return low, high, defined, reasons
