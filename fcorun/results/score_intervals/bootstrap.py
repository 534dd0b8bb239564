"""Percentile intervals of scores, or of differences of scores, by the bootstrap."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from fcorun.results.score_intervals.held_out_rows import HeldOutRows
from fcorun.results.score_intervals.score_table import ScoreOptions
from fcorun.results.scores.score import all_scores, compute_scores
from fcorun.results.scores.weighted_rows import RowGroups, WeightedRows

MIN_UNITS = 10  # the least number of units of a group whose scores have intervals
_CHUNK_ENTRIES = 2**16  # weights that are drawn together, so that they stay in the cache of a core
_MIN_DEFINED = 0.95  # the least share of samples that define the score of an interval


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """Scores of G groups of rows with their intervals. Scores and ends are arrays by name, (G,) each.

    Attributes:
        estimates: the scores of the rows, for each of the models.
        low, high: the ends of the interval of the score, or of the difference of two models; nan if there is none.
        defined: the number of samples that define the score.
        reasons: why a score has no interval: "units", "undefined" or "constant", else "".
        n_units: the number of units of each group, (G,).
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
    groups: RowGroups,
    resample: str,
    options: ScoreOptions,
    rng: np.random.Generator,
) -> Bootstrap:
    """Return the scores of one or two models on the same rows, and the intervals of the scores or of their difference.

    Rows are sorted by group. A sample draws as many units of each group as the group has. Of two models, both
    have the same samples. Groups with fewer than MIN_UNITS units have no intervals.

    Args:
        models: the rows with the predictions of one model, or of each of two models.
        groups: the groups of the rows.
        resample: what is drawn: "rows", "groups" or "clients".
        options: the level of the intervals, and the number of samples.
        rng: the generator of the samples.
    """
    units = Units(number_units(unit_names(models[0], resample), groups), groups)
    scored = [rows.to_scored_rows(groups) for rows in models]

    def score(weights: np.ndarray) -> list[dict[str, np.ndarray]]:
        return [compute_scores(WeightedRows(rows, weights, whole_clients=resample == "clients")) for rows in scored]

    with np.errstate(invalid="ignore", over="ignore"):
        whole = score(np.ones((1, len(models[0]))))
        estimates = [{name: values[0] for name, values in scores.items()} for scores in whole]
        names = list(_subtract(whole))
        chunks = []
        if (units.counts >= MIN_UNITS).any():
            chunks = [_subtract(score(weights)) for weights in units.samples(rng, options.samples)]
    low, high, defined, reasons = {}, {}, {}, {}
    for name in names:
        samples = np.full((0, len(groups)), np.nan)
        if chunks:
            samples = np.concatenate([chunk[name] for chunk in chunks])
        low[name], high[name], defined[name], reasons[name] = _percentiles(samples, units.counts, options)
    return Bootstrap(estimates=estimates, low=low, high=high, defined=defined, reasons=reasons, n_units=units.counts)


def _subtract(scores: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the scores of one model, or those of the first model minus those of the second.

    A difference of scores that depend on no model, as the prevalence, is left out.
    """
    first, *others = scores
    if not others:
        return first
    shelf = all_scores()
    return {name: first[name] - others[0][name] for name in first if shelf[name].depends_on_model}


def _percentiles(
    samples: Float[np.ndarray, "B G"], n_units: np.ndarray, options: ScoreOptions
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


class Units:
    """The units that a bootstrap draws with replacement, separately in each group: rows, groups of data, or clients.

    Attributes:
        row_unit: the unit of each row, (n,), from 0 to U - 1. A unit has rows of one group.
        counts: the number of units of each group, (G,).
    """

    def __init__(self, row_unit: Int[np.ndarray, " n"], groups: RowGroups):
        unit_group = np.zeros(int(row_unit.max()) + 1, int)
        unit_group[row_unit] = groups.row_group
        self.counts = np.bincount(unit_group)
        by_group = np.argsort(unit_group, kind="stable")
        position = np.empty_like(by_group)
        position[by_group] = np.arange(len(by_group))
        self.row_unit = position[row_unit]  # the units of a group are adjacent
        self._unit_count = np.repeat(self.counts, self.counts)
        self._unit_start = np.repeat(np.cumsum(self.counts) - self.counts, self.counts)

    def draw_weights(self, rng: np.random.Generator, n_samples: int) -> Float[np.ndarray, "B n"]:
        """Draw how often each row is in each of ``n_samples`` samples: multinomial counts of the rows' units."""
        n_units = len(self._unit_count)
        drawn = self._unit_start + (rng.random((n_samples, n_units)) * self._unit_count).astype(np.int64)
        drawn += n_units * np.arange(n_samples)[:, None]  # numbers of their own in each sample, for one bincount
        counts = np.bincount(drawn.ravel(), minlength=n_samples * n_units).reshape(n_samples, n_units)
        return counts.astype(float)[:, self.row_unit]

    def samples(self, rng: np.random.Generator, n_samples: int) -> Iterator[Float[np.ndarray, "B n"]]:
        """Yield the weights of ``n_samples`` samples in chunks."""
        width = max(_CHUNK_ENTRIES // len(self.row_unit), 1)
        for start in range(0, n_samples, width):
            yield self.draw_weights(rng, min(width, n_samples - start))


def number_units(names: np.ndarray, groups: RowGroups) -> Int[np.ndarray, " n"]:
    """Return a number for each row's unit, (n,), given their names; equal names in two groups are two units."""
    number = np.unique(names, return_inverse=True)[1].astype(np.int64)
    pair = groups.row_group * (int(number.max()) + 1) + number
    return np.unique(pair, return_inverse=True)[1]
