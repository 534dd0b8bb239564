"""Intervals of the scores of a record's held-out rows, and of the differences of two records, with their warnings."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

from fcorun.base.errors import UserError, abbreviate, word
from fcorun.base.records.record import PREDICTIONS_FILE
from fcorun.base.system.random_streams import random_stream
from fcorun.results.score_intervals.bootstrap import MIN_UNITS, Bootstrap, bootstrap, unit_names
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
from fcorun.results.scores.weighted_rows import RowGroups

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
