"""Intervals of the scores of a record's held-out rows, and of the differences of two records, with their warnings."""

import math
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from statistics import NormalDist

import numpy as np
from jaxtyping import Float, Shaped
from threadpoolctl import threadpool_limits

from fcorun.base.errors import UserError, abbreviate, word
from fcorun.base.records.record import PREDICTIONS_FILE
from fcorun.base.system.machine import available_cores
from fcorun.base.system.random_streams import random_stream
from fcorun.data.rows.row_groups import RowGroups
from fcorun.data.tasks import Task
from fcorun.results.score_intervals.held_out_rows import (
    HeldOutRows,
    UnitCounts,
    describe_split,
    match_rows,
    read_held_out_rows,
)
from fcorun.results.score_intervals.score_table import (
    BOOTSTRAP,
    DELONG,
    OBUCHOWSKI,
    IntervalRow,
    ScoredRecord,
    ScoreIntervals,
    ScoreOptions,
    read_scored_record,
)
from fcorun.results.scores.ranking import auc_covariance
from fcorun.results.scores.score import all_scores, compute_scores
from fcorun.results.scores.weighted_rows import WeightedRows

MIN_UNITS = 10  # the least number of units of a group whose scores have intervals
FEW = 30  # rows of the smaller class, events, or units: below, intervals of 95 % cover 92 % or less
# weights that are drawn together: few calls of NumPy, on arrays that stay in a cache; C's allocator gives memory of
# arrays twice as large back to the system after each use, which takes a third of the time
_CHUNK_ENTRIES = 2**16
_MIN_DEFINED = 0.95  # the least share of samples that define the score of an interval
_CLIENTS_TOGETHER = 1000  # whose samples are kept at once
_ALL = ""  # the client of the scores of all rows
_REASONS = {
    "undefined": "more than 5 % of the samples do not define it, as a sample of one class does not",
    "constant": "it is the same in all samples, as a score at its bound is",
}


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
    names = {"groups": rows.group, "clients": rows.client}.get(resample)
    return np.arange(len(rows)) if names is None else names


def bootstrap(
    models: Sequence[HeldOutRows],
    groups: RowGroups,
    resample: str,
    options: ScoreOptions,
    rng: np.random.Generator,
) -> Bootstrap:
    """Return the scores of one or two models on the same rows, and percentile intervals of them or their difference.

    Rows are sorted by group. A sample draws as many units of each group as the group has, within clients (``Units``).
    Of two models, both have the same samples. Groups with fewer than MIN_UNITS units have no intervals. A difference of
    scores that depend on no model, as the prevalence, is left out.

    Args:
        models: the rows with the predictions of one model, or of each of two models.
        groups: the groups of the rows.
        resample: what is drawn: "rows", "groups" or "clients".
        options: the level of the intervals, and the number of samples.
        rng: the generator of the samples.
    """
    units = Units(unit_names(models[0], resample), groups, models[0].client)
    scored = [rows.to_scored_rows(groups) for rows in models]
    shelf = all_scores()

    def score(weights: np.ndarray) -> list[dict[str, np.ndarray]]:
        """Return the scores of each model, and those of the one model or the differences of the two."""
        with np.errstate(invalid="ignore", over="ignore"):
            scores = [
                compute_scores(WeightedRows(rows, weights, whole_clients=resample == "clients")) for rows in scored
            ]
        if len(models) == 1:
            return scores * 2
        first, second = scores
        names = [name for name in first if shelf[name].depends_on_model]
        return [*scores, {name: first[name] - second[name] for name in names}]

    n_cores = available_cores()
    # with several threads of BLAS, products of so few rows take twice as long
    with threadpool_limits(1), ThreadPoolExecutor(n_cores) as pool:
        *whole, compared = score(np.ones((1, len(models[0]))))
        chunks = []
        if (units.counts >= MIN_UNITS).any():
            samples = units.samples(rng, options.samples)
            while drawn := list(islice(samples, n_cores)):  # all at once would take memory
                chunks.extend(scores[-1] for scores in pool.map(score, drawn))
    low = {}
    high = {}
    defined = {}
    reasons = {}
    for name in compared:
        samples = np.full((1, len(groups)), np.nan)
        if chunks:
            samples = np.concatenate([chunk[name] for chunk in chunks])
        samples = np.where(np.isfinite(samples), samples, np.nan)
        n_defined = np.isfinite(samples).sum(axis=0)
        ends = np.full((4, len(groups)), np.nan)
        if chunks:
            has_units = units.counts >= MIN_UNITS
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # columns without values have no quantiles
                shares = (0.0, options.tail, 1 - options.tail, 1.0)
                ends[:, has_units] = np.nanquantile(samples[:, has_units], shares, axis=0)
        least, low_end, high_end, most = ends
        is_constant = most - least <= 1e-12 * np.maximum(np.abs(least), np.abs(most))
        defined[name] = n_defined
        reasons[name] = np.select(
            [units.counts < MIN_UNITS, n_defined < _MIN_DEFINED * options.samples, is_constant],
            ["units", "undefined", "constant"],
            "",
        )
        has_interval = reasons[name] == ""
        low[name] = np.where(has_interval, low_end, np.nan)
        high[name] = np.where(has_interval, high_end, np.nan)
    estimates = [{name: values[0] for name, values in scores.items()} for scores in whole]
    return Bootstrap(estimates=estimates, low=low, high=high, defined=defined, reasons=reasons, n_units=units.counts)


class Units:
    """The units that a bootstrap draws with replacement, separately in each group: rows, groups of data, or clients.

    Within a group, a sample has as many units of each client as the client has. Clients with fewer than MIN_UNITS units
    are drawn together, since a client with one unit would be the same in all samples. So are units with rows of
    several clients, and clients that are units themselves. If these are fewer than MIN_UNITS units, the smallest other
    client is drawn with them.

    Attributes:
        row_unit: the unit of each row, (n,), from 0 to U - 1. A unit has rows of one group: equal names in two groups
            are two units.
        counts: the number of units of each group, (G,).
    """

    def __init__(self, names: Shaped[np.ndarray, " n"], groups: RowGroups, clients: Shaped[np.ndarray, " n"]):
        number = np.unique(names, return_inverse=True)[1].astype(np.int64)
        pair = groups.row_group * (int(number.max()) + 1) + number
        _, first_row, row_unit = np.unique(pair, return_index=True, return_inverse=True)
        unit_group = groups.row_group[first_row]
        self.counts = np.bincount(unit_group)
        client = np.unique(clients, return_inverse=True)[1].astype(np.int64)
        unit_client = client[first_row]
        together = int(client.max()) + 1  # the number of those that are not drawn within a client
        has_other_client = client != unit_client[row_unit]
        unit_client[row_unit[has_other_client]] = together
        first_stratum = unit_group * (together + 1)
        _, stratum, sizes = np.unique(first_stratum + unit_client, return_inverse=True, return_counts=True)
        unit_client[sizes[stratum] < MIN_UNITS] = together
        strata, stratum, sizes = np.unique(first_stratum + unit_client, return_inverse=True, return_counts=True)
        group_of_stratum = strata // (together + 1)
        has_others = np.bincount(group_of_stratum)[group_of_stratum] > 1
        is_together = strata % (together + 1) == together
        for few in np.flatnonzero(is_together & has_others & (sizes < MIN_UNITS)):
            others = np.flatnonzero((group_of_stratum == group_of_stratum[few]) & ~is_together)
            unit_client[stratum == others[sizes[others].argmin()]] = together
        _, stratum, sizes = np.unique(first_stratum + unit_client, return_inverse=True, return_counts=True)
        position = np.argsort(np.argsort(stratum, kind="stable"))  # so that the units of a stratum are adjacent
        self.row_unit = position[row_unit]
        self._unit_count = np.repeat(sizes, sizes)
        self._unit_start = np.repeat(np.cumsum(sizes) - sizes, sizes)

    def draw_weights(self, rng: np.random.Generator, n_samples: int) -> Float[np.ndarray, "B n"]:
        """Draw how often each row is in each of ``n_samples`` samples: multinomial counts of the rows' units."""
        n_units = len(self._unit_count)
        drawn = self._unit_start + (rng.random((n_samples, n_units)) * self._unit_count).astype(np.int64)
        drawn += n_units * np.arange(n_samples)[:, None]  # numbers of their own in each sample, for one bincount
        counts = np.bincount(drawn.ravel(), minlength=n_samples * n_units).reshape(n_samples, n_units)
        return counts.astype(float).take(self.row_unit, axis=1)

    def samples(self, rng: np.random.Generator, n_samples: int) -> Iterator[Float[np.ndarray, "B n"]]:
        """Yield the weights of ``n_samples`` samples in chunks."""
        width = max(_CHUNK_ENTRIES // len(self.row_unit), 1)
        for start in range(0, n_samples, width):
            yield self.draw_weights(rng, min(width, n_samples - start))


def compute_intervals(folder: Path, options: ScoreOptions, by_client: bool = True) -> ScoreIntervals:
    """Return the scores of the held-out rows of a record or selection, with intervals. Raises UserError.

    Without ``by_client`` the scores are those of all rows alone.
    """
    record = read_scored_record(folder)
    models = _read_scored_rows(record)
    tabulation = Tabulation(_resolve_resample(models[0], options), options, record.seed)
    tabulation.warn(record.find_warning(models[0].split))
    tabulation.warn(record.describe_weights())
    rows: list[IntervalRow] = []
    for of_model in models:
        rows += tabulation.tabulate([of_model], by_client=by_client)
    return ScoreIntervals(rows, options.level, tabulation.title(models[0]), tabulation.sentences())


def compare_records(folders: Sequence[Path], options: ScoreOptions) -> ScoreIntervals:
    """Return the scores of the first record minus those of the second, on their common rows, with intervals.

    Both have the same samples. Each model of the first record is compared with each of the second. Raises UserError.
    """
    records = [read_scored_record(folder) for folder in folders]
    matches = [match_rows(*pair) for pair in product(*(_read_scored_rows(record) for record in records))]
    common = matches[0][0]
    tabulation = Tabulation(_resolve_resample(common, options), options, records[0].seed)
    for record in records:
        tabulation.warn(record.find_warning(common.split, f" of {record.folder}"))
        tabulation.warn(record.describe_weights())
    thresholds = [record.threshold for record in records if record.threshold is not None]
    if len(set(thresholds)) > 1:
        tabulation.warn(
            f"the records have different thresholds, {thresholds[0]:.3g} and {thresholds[1]:.3g}: accuracy, "
            "sensitivity, specificity and predictive values compare thresholds as much as models; the AUC, the "
            "Brier score and the log loss have none"
        )
    rows: list[IntervalRow] = []
    for *pair, sentence in matches:
        tabulation.warn(sentence)
        rows += tabulation.tabulate(pair)
    names = (str(folders[0]), str(folders[1]))
    title = f"{names[0]} minus {names[1]}, {tabulation.title(matches[-1][0])}"
    return ScoreIntervals(rows, options.level, title, tabulation.sentences(), names)


def _resolve_resample(rows: HeldOutRows, options: ScoreOptions) -> str:
    """Return rows, groups or clients. Raises UserError for units that the rows do not have, or too few clients."""
    resample = options.resample
    path = rows.folder / PREDICTIONS_FILE
    if resample == "auto":
        return "rows" if rows.group is None else "groups"
    if resample == "groups" and rows.group is None:
        raise UserError(f"`resample=groups`: {path} has no column group: give `resample=rows`, or run with "
                        "`data.group=COLUMN`")  # fmt: skip
    if resample == "clients":
        clients = set(rows.client.tolist())
        if clients == {""}:
            raise UserError(f"`resample=clients`: {path} names no clients: give `resample=rows`")
        if len(clients) < MIN_UNITS:
            raise UserError(f"`resample=clients`: {len(clients)} clients are too few for intervals, which need "
                            f"{MIN_UNITS}: give `resample=rows`, whose intervals are for these clients")  # fmt: skip
    return resample


def _read_scored_rows(record: ScoredRecord) -> list[HeldOutRows]:
    """Return the held-out rows of each model. Raises UserError if the record's objective defines no scores of them."""
    models = read_held_out_rows(record.folder, record.task)
    is_quantity = any(rows.target_task.is_quantity for rows in models)
    if is_quantity and record.score_names is not None and "rmse" not in record.score_names:
        raise UserError(f"the predictions of {record.folder} are no expected values, so that scores.csv has their loss "
                        "alone, which predictions.csv does not have: no interval is computed")  # fmt: skip
    return models


class Tabulation:
    """The computation of tables of intervals, which collects warnings about them.

    Attributes:
        resample: what samples draw: rows, groups or clients.
        options: the level of the intervals, and the number of samples.
        seed: the seed of the samples.
    """

    def __init__(self, resample: str, options: ScoreOptions, seed: int):
        self.resample = resample
        self.options = options
        self.seed = seed
        self._sentences: dict[str, None] = {}  # in their order, each once
        self._clients: dict[str, dict[str, None]] = {}  # the clients of each kind of finding

    def tabulate(self, models: Sequence[HeldOutRows], by_client: bool = True) -> list[IntervalRow]:
        """Return the intervals of the scores of one model, or of the differences of two on the same rows.

        The first intervals are those of all rows, the others those of each client. There are none of a single client,
        and none if samples draw clients, which say nothing about one client.
        """
        if self.resample == "rows" and models[0].group is not None:
            self.warn(word("rows of a group are taken as independent: `resample=groups` does not assume that"))
        everything = RowGroups(np.zeros(len(models[0]), int))
        (counts,) = models[0].count_units(everything, by_group=self.resample == "groups")
        self._warn_small_classes(models[0].target_task, len(models[0]), counts, _ALL)
        for rows in models:
            if rows.has_unknown_level is not None and rows.has_unknown_level.any():
                self.warn(f"{rows.has_unknown_level.sum()} of {len(rows):,} rows have a level that no training row "
                          "has: the column warnings of predictions.csv says how it is coded")  # fmt: skip
            if rows.classes and rows.probability is None:
                self.warn(
                    "predictions.csv has labels and no probabilities: there is no AUC, Brier score or calibration"
                )
        table = [*self._tabulate_groups(models, everything, [_ALL], random_stream(self.seed, "score intervals"))]
        clients = models[0].client
        names = [name for name in np.unique(clients).tolist() if name]
        if not by_client or self.resample == "clients" or len(names) < 2:
            return table
        rng = random_stream(self.seed, "score intervals", "clients")
        for start in range(0, len(names), _CLIENTS_TOGETHER):
            some = names[start : start + _CLIENTS_TOGETHER]
            index = np.flatnonzero(np.isin(clients, some))
            index = index[np.argsort(clients[index], kind="stable")]
            groups = RowGroups(np.unique(clients[index], return_inverse=True)[1])
            table += self._tabulate_groups([rows.take(index) for rows in models], groups, some, rng)
        return table

    def _tabulate_groups(
        self, models: Sequence[HeldOutRows], groups: RowGroups, clients: Sequence[str], rng: np.random.Generator
    ) -> Iterator[IntervalRow]:
        """Yield the intervals of each group, whose rows are those of one of the clients."""
        shelf = all_scores()
        result = bootstrap(models, groups, self.resample, self.options, rng)
        model_names = tuple(rows.model for rows in models)
        columns = {}
        for name, low in result.low.items():
            values = np.stack([estimates[name] for estimates in result.estimates], axis=1)
            arrays = (values, low, result.high[name], result.defined[name], result.reasons[name])
            columns[name] = list(zip(*(array.tolist() for array in arrays), strict=True))
        units = models[0].count_units(groups, by_group=self.resample == "groups")
        row_counts = models[0].count_units(groups, by_group=False)
        for c, (client, start, size) in enumerate(zip(clients, groups.starts, groups.sizes.tolist(), strict=True)):
            n_units = int(result.n_units[c])
            if client == _ALL and self.resample != "rows" and n_units >= MIN_UNITS:
                self._warn_few(n_units, self.resample, client)
            if client != _ALL and size >= MIN_UNITS:
                self._warn_small_classes(models[0].target_task, size, units[c], client)
            missing: dict[str, list[str]] = {}
            for name, column in columns.items():
                values, low, high, defined, reason = column[c]
                row = IntervalRow(
                    split=models[0].split,
                    models=model_names,
                    client=client,
                    n=size,
                    events=row_counts[c].events,
                    score=name,
                    method=BOOTSTRAP,
                    values=tuple(values),
                    low=low,
                    high=high,
                    units=units[c],
                    samples=defined,
                )
                yield row
                if shelf[name].has_delong_intervals and n_units >= MIN_UNITS:
                    client_rows = [rows.take(slice(start, start + size)) for rows in models]
                    yield _delong(row, client_rows, self.resample, self.options)
                missing.setdefault(reason, []).append(name)
            for reason, names in missing.items():
                if reason and client != _ALL:
                    self._clients.setdefault(reason, {})[client] = None
                elif reason == "units":
                    self.warn(f"{n_units} {self.resample} are too few for intervals, which need {MIN_UNITS}")
                elif reason:
                    self.warn(f"no interval of {', '.join(names)}: {_REASONS[reason]}")

    def title(self, rows: HeldOutRows) -> str:
        """Return what is computed of held-out rows, in one line."""
        names = [name for name in np.unique(rows.client).tolist() if name]
        clients = f" of {len(names)} client{'s' if len(names) > 1 else ''}" if names else ""
        within = f" within clients of {MIN_UNITS} or more" if len(names) > 1 and self.resample != "clients" else ""
        options = self.options
        return (f"{len(rows):,} {describe_split(rows)} rows{clients}, {100 * options.level:g} % intervals: percentiles "
                f"of {options.samples:,} bootstrap samples of {self.resample}{within}, seed {self.seed}")  # fmt: skip

    def sentences(self) -> list[str]:
        """Return the warnings, a sentence each."""
        beginnings = {
            "units": f"no intervals for clients with fewer than {MIN_UNITS} {self.resample}: ",
            "few": f"intervals may cover less than their level for clients with fewer than {FEW} rows of a class, "
            f"events or rows{', or groups with such rows' if self.resample == 'groups' else ''}: ",
            "undefined": "some scores have no interval, because samples do not define them, for clients: ",
            "constant": "some scores have no interval, because they are the same in all samples, for clients: ",
        }
        by_client = [text + abbreviate([*self._clients.get(kind, ())]) for kind, text in beginnings.items()]
        return [*self._sentences, *(text for text in by_client if text not in beginnings.values())]

    def warn(self, sentence: str) -> None:
        """Add a warning unless it is empty or known."""
        if sentence:
            self._sentences[sentence] = None

    def _warn_small_classes(self, task: Task, n_rows: int, units: UnitCounts, client: str) -> None:
        """Warn of few rows of a class, or of few events, of all rows, or of a client, given their counts.

        Where samples draw groups, the groups with such rows are counted, and not the rows.
        """
        count = n_rows
        kind = "rows"
        if task.has_events and units.events is not None:
            count = units.events
            kind = "events"
        elif units.smallest_class is not None:
            count = units.smallest_class
            kind = "rows of the smallest class"
        if kind != "rows" and self.resample == "groups":
            kind = f"groups with {kind}"
        self._warn_few(count, kind, client)

    def _warn_few(self, count: int, kind: str, client: str) -> None:
        """Warn if a count is small, of all rows, or of a client."""
        if count < FEW and client == _ALL:
            self.warn(f"{count} {kind} are few: below {FEW}, intervals may cover less than their level")
        elif count < FEW:
            self._clients.setdefault("few", {})[client] = None


def _delong(row: IntervalRow, models: Sequence[HeldOutRows], resample: str, options: ScoreOptions) -> IntervalRow:
    """Return the interval of an area under the curve, or of a difference, by its estimated covariance."""
    cluster = None if resample == "rows" else unit_names(models[0], resample)
    scores = np.stack([rows.log_odds for rows in models])
    _, covariance = auc_covariance(models[0].target == 1, scores, cluster)
    contrast = np.array([1.0, -1.0])[: len(models)]
    variance = float(contrast @ covariance @ contrast)
    low = high = float("nan")
    p_value = None
    if variance > np.finfo(float).eps ** 2:  # an area of 1 has none
        margin = -NormalDist().inv_cdf(options.tail) * variance**0.5  # SciPy takes longer to import than all else
        least = 1.0 - len(models)  # 0 of an area, -1 of a difference
        low = max(row.estimate - margin, least)
        high = min(row.estimate + margin, 1.0)
        if len(models) > 1:
            p_value = math.erfc(abs(row.estimate) / (2 * variance) ** 0.5)
    method = DELONG if resample == "rows" else OBUCHOWSKI
    return row._replace(method=method, low=low, high=high, p_value=p_value, samples=None)
