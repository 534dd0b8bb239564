"""Intervals of the scores of a record's held-out rows, and of the differences of two records, with their warnings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from fcorun.base.errors import UserError, abbreviate, word
from fcorun.base.records.record import PREDICTIONS_FILE
from fcorun.base.system.random_streams import random_stream
from fcorun.results.score_intervals.held_out_rows import HeldOutRows, describe_split, match_rows, read_held_out_rows
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


_ALL = ""  # the client of the scores of all rows
_CLIENTS_TOGETHER = 1000  # whose samples are kept at once
FEW = 30  # rows of the smaller class, events, or units: below, intervals of 95 % cover 92 % or less
_REASONS = {
    "undefined": "more than 5 % of the samples do not define it, as a sample of one class does not",
    "constant": "it is the same in all samples, as a score at its bound is",
}


def compute_intervals(folder: Path, options: ScoreOptions, by_client: bool = True) -> ScoreIntervals:
    """Return the scores of the held-out rows of a record or selection, with intervals. Raises UserError.

    Without ``by_client`` the scores are those of all rows alone.
    """
    record = read_scored_record(folder)
    models = _read_scored_rows(record)
    resample = _resolve_resample(models[0], record, options)
    findings = Findings(resample)
    findings.add(record.find_warning(models[0].split))
    findings.add_groups(models[0], record.group)
    rows: list[IntervalRow] = []
    for of_model in models:
        if by_client:
            rows += tabulate_intervals([of_model], options, record.seed, findings)
        else:
            findings.add_rows(of_model)
            rows += _tabulate([of_model], record.seed, resample, options, findings)
    title = _title(models[0], resample, options, record.seed)
    return ScoreIntervals(rows, options.level, title, findings.sentences())


def compare_records(folders: Sequence[Path], options: ScoreOptions) -> ScoreIntervals:
    """Return the scores of the first record minus those of the second, on their common rows, with intervals.

    Both have the same samples. Each model of the first record is compared with each of the second. Raises UserError.
    """
    records = [read_scored_record(folder) for folder in folders]
    first, second = (_read_scored_rows(record) for record in records)
    resample, findings = "", Findings("")
    rows: list[IntervalRow] = []
    pair: list[HeldOutRows] = []
    for of_first, of_second in product(first, second):
        *pair, sentence = match_rows(of_first, of_second)
        if not resample:
            resample = _resolve_resample(pair[0], records[0], options)
            findings = Findings(resample)
            for record in records:
                findings.add(record.find_warning(pair[0].split, f" of {record.folder}"))
            thresholds = [record.threshold for record in records if record.threshold is not None]
            if len(set(thresholds)) > 1:
                findings.add(
                    f"the records have different thresholds, {thresholds[0]:.3g} and {thresholds[1]:.3g}: accuracy, "
                    "sensitivity, specificity and predictive values compare thresholds as much as models; the AUC, the "
                    "Brier score and the log loss have none"
                )
            findings.add_groups(pair[0], records[0].group or records[1].group)
        findings.add(sentence)
        rows += tabulate_intervals(pair, options, records[0].seed, findings)
    title = f"{folders[0]} minus {folders[1]}, {_title(pair[0], resample, options, records[0].seed)}"
    names = (str(folders[0]), str(folders[1]))
    return ScoreIntervals(rows, options.level, title, findings.sentences(), names)


def _resolve_resample(rows: HeldOutRows, record: ScoredRecord, options: ScoreOptions) -> str:
    """Return rows, groups or clients. Raises UserError for units that the rows do not have, or too few clients."""
    resample = options.resample
    path = record.folder / PREDICTIONS_FILE
    if resample == "auto":
        return "rows" if rows.group is None else "groups"
    if resample == "groups" and rows.group is None:
        advice = "give `resample=rows`, or run with `data.group=COLUMN`"
        if record.group:
            advice = "run it again with `force=true`, since it was written before groups were"
        raise UserError(f"`resample=groups`: {path} has no column group: {advice}")
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


def _title(rows: HeldOutRows, resample: str, options: ScoreOptions, seed: int) -> str:
    names = [name for name in np.unique(rows.client).tolist() if name]
    clients = f" of {len(names)} client{'s' if len(names) > 1 else ''}" if names else ""
    return (f"{len(rows):,} {describe_split(rows)} rows{clients}, {100 * options.level:g} % intervals: percentiles of "
            f"{options.samples:,} bootstrap samples of {resample}, seed {seed}")  # fmt: skip


def tabulate_intervals(
    models: Sequence[HeldOutRows], options: ScoreOptions, seed: int, findings: "Findings"
) -> list[IntervalRow]:
    """Return the intervals of the scores of one model, or of the differences of two on the same rows.

    The first intervals are those of all rows, the others those of each client. Samples draw what ``findings`` says.
    """
    for of_model in models:
        findings.add_rows(of_model)
    resample = findings.resample
    of_all = _tabulate(models, seed, resample, options, findings)
    return [*of_all, *_tabulate_clients(models, seed, resample, options, findings)]


def _tabulate(
    models: Sequence[HeldOutRows],
    seed: int,
    resample: str,
    options: ScoreOptions,
    findings: "Findings",
) -> Iterator[IntervalRow]:
    """Yield the intervals of all rows."""
    everything = RowGroups(np.zeros(len(models[0]), int))
    rng = random_stream(seed, "score intervals")
    result = bootstrap(models, everything, resample, options, rng)
    yield from _rows_of(models, result, (0, _ALL), resample, options)
    findings.add_bootstrap(result, [_ALL])


def _tabulate_clients(
    models: Sequence[HeldOutRows],
    seed: int,
    resample: str,
    options: ScoreOptions,
    findings: "Findings",
) -> Iterator[IntervalRow]:
    """Yield the intervals of each client; none if samples draw clients, which say nothing about one client."""
    if resample == "clients":
        return
    rng = random_stream(seed, "score intervals", "clients")
    for by_client, names in _split_by_client(models):
        groups = RowGroups(np.unique(by_client[0].client, return_inverse=True)[1])
        result = bootstrap(by_client, groups, resample, options, rng)
        findings.add_bootstrap(result, names)
        for c, name in enumerate(names):
            of_client = [rows.take(groups.row_group == c) for rows in by_client]
            findings.add_small_classes(of_client[0], name)
            yield from _rows_of(of_client, result, (c, name), resample, options)


def _split_by_client(models: Sequence[HeldOutRows]) -> Iterator[tuple[list[HeldOutRows], list[str]]]:
    """Yield the rows of some clients, sorted by client, with the clients' names; nothing for a single client."""
    clients = models[0].client
    names = [name for name in np.unique(clients).tolist() if name]
    if len(names) < 2:
        return
    for start in range(0, len(names), _CLIENTS_TOGETHER):
        some = names[start : start + _CLIENTS_TOGETHER]
        index = np.flatnonzero(np.isin(clients, some))
        index = index[np.argsort(clients[index], kind="stable")]
        yield [rows.take(index) for rows in models], some


def _rows_of(
    models: Sequence[HeldOutRows], result: Bootstrap, group: tuple[int, str], resample: str, options: ScoreOptions
) -> Iterator[IntervalRow]:
    """Yield the intervals of a group, given its number and its client, whose rows are those of ``models``."""
    c, client = group
    for name in result.low:
        row = IntervalRow(
            split=models[0].split,
            models=tuple(rows.model for rows in models),
            client=client,
            n=len(models[0]),
            events=models[0].n_events,
            score=name,
            method=BOOTSTRAP,
            values=tuple(float(estimates[name][c]) for estimates in result.estimates),
            low=float(result.low[name][c]),
            high=float(result.high[name][c]),
            samples=int(result.defined[name][c]),
        )
        yield row
        if name == "auc" and result.n_units[c] >= MIN_UNITS:
            yield _delong(row, models, resample, options)


def _delong(row: IntervalRow, models: Sequence[HeldOutRows], resample: str, options: ScoreOptions) -> IntervalRow:
    """Return the interval of an area under the curve, or of a difference, by its estimated covariance."""
    from scipy.special import ndtr, ndtri  # scipy.stats takes longer to import than all else takes

    cluster = None if resample == "rows" else unit_names(models[0], resample)
    scores = np.stack([rows.log_odds for rows in models])
    _, covariance = auc_covariance(models[0].target == 1, scores, cluster)
    contrast = np.array([1.0, -1.0])[: len(models)]
    variance = float(contrast @ covariance @ contrast)
    low = high = float("nan")
    p_value = None
    if variance > np.finfo(float).eps ** 2:  # an area of 1 has none
        margin = float(-ndtri(options.tail)) * variance**0.5
        bounds = (0.0, 1.0) if len(models) == 1 else (-1.0, 1.0)
        low, high = max(row.estimate - margin, bounds[0]), min(row.estimate + margin, bounds[1])
        if len(models) > 1:
            p_value = float(2 * ndtr(-abs(row.estimate) / variance**0.5))
    method = DELONG if resample == "rows" else OBUCHOWSKI
    return replace(row, method=method, low=low, high=high, p_value=p_value, samples=None)


class Findings:
    """Warnings about the intervals of a record, collected while they are computed.

    Attributes:
        resample: what samples draw: rows, groups or clients.
    """

    def __init__(self, resample: str):
        self.resample = resample
        self._sentences: list[str] = []
        self._clients: dict[str, list[str]] = {}  # the clients of each kind of finding

    def sentences(self) -> list[str]:
        """Return the warnings, a sentence each."""
        endings = {
            "units": f"no intervals for clients with fewer than {MIN_UNITS} {self.resample}: ",
            "class": f"intervals may cover less than their level for clients with fewer than {FEW} rows of a class, "
            "events or rows: ",
            "undefined": "some scores have no interval, because samples do not define them, for clients: ",
            "constant": "some scores have no interval, because they are the same in all samples, for clients: ",
        }
        by_client = [text + abbreviate(self._clients[kind]) for kind, text in endings.items() if kind in self._clients]
        return [*self._sentences, *by_client]

    def add(self, sentence: str) -> None:
        """Add a warning unless it is empty or known."""
        if sentence and sentence not in self._sentences:
            self._sentences.append(sentence)

    def add_groups(self, rows: HeldOutRows, group: str) -> None:
        """Warn if rows of a group are taken as independent. ``group`` is the column of groups of the data, or ""."""
        if self.resample != "rows":
            return
        if rows.group is not None:
            self.add(word("rows of a group are taken as independent: `resample=groups` does not assume that"))
        elif group:
            self.add(word(f"rows of a group (`data.group={group}`) are taken as independent, since predictions.csv "
                     "has no groups: run it again with `force=true`"))  # fmt: skip

    def add_rows(self, rows: HeldOutRows) -> None:
        """Warn of predictions that few rows support, or that numbers cannot tell apart."""
        self.add_small_classes(rows, _ALL)
        if rows.classes and rows.probability is None:
            self.add("predictions.csv has labels and no probabilities: there is no AUC, Brier score or calibration")
        elif rows.target_task.has_two_classes and rows.has_rounded_probabilities:
            self.add("some probabilities are 0 or 1 by rounding: log loss and calibration take them as the nearest "
                     "numbers between")  # fmt: skip

    def add_small_classes(self, rows: HeldOutRows, client: str) -> None:
        """Warn of few rows of a class, or of few events."""
        least, kind = len(rows), "rows"
        if rows.target_task.has_events:
            least, kind = rows.n_events or 0, "events"
        elif rows.classes:
            least = int(np.bincount(rows.target, minlength=len(rows.classes)).min())
            kind = "rows of the smallest class"
        if least >= FEW:
            return
        if client == _ALL:
            self._add_few(least, kind)
        elif len(rows) >= MIN_UNITS:
            self._add_client("class", client)

    def _add_few(self, count: int, kind: str) -> None:
        self.add(f"{count} {kind} are few: below {FEW}, intervals may cover less than their level")

    def add_bootstrap(self, result: Bootstrap, clients: Sequence[str]) -> None:
        """Warn of scores without an interval, of all rows or of clients."""
        for c, client in enumerate(clients):
            if client == _ALL and self.resample != "rows" and MIN_UNITS <= result.n_units[c] < FEW:
                self._add_few(int(result.n_units[c]), self.resample)
            missing: dict[str, list[str]] = {}
            for name, reasons in result.reasons.items():
                if reasons[c]:
                    missing.setdefault(reasons[c], []).append(name)
            for reason, names in missing.items():
                if client != _ALL:
                    self._add_client(reason, client)
                elif reason == "units":
                    self.add(f"{result.n_units[c]} {self.resample} are too few for intervals, which need {MIN_UNITS}")
                else:
                    self.add(f"no interval of {', '.join(names)}: {_REASONS[reason]}")

    def _add_client(self, kind: str, client: str) -> None:
        names = self._clients.setdefault(kind, [])
        if client not in names:
            names.append(client)
