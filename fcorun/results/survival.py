"""Times to events: baseline hazards, probabilities of survival, and their calibration at a time.

Times are signed: t for an event at t, -t for a row that is censored at t. ``p`` is a linear predictor. Calibration sets
the predicted risk of an event up to a time beside the one that was observed. Of rows that are censored before the time
nobody knows whether they had an event by then. The observed risk of a group is therefore one minus the estimate of
Kaplan and Meier (JASA 1958), with the interval of its log(-log) (Kalbfleisch and Prentice 1980), whose variance is
Greenwood's. Censoring must not depend on the risk within a group.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from fcorun.base.errors import UserError, abbreviate, word
from fcorun.base.records.formats import columns_csv, csv_text
from fcorun.base.records.record import BASELINE_HAZARD_FILE, PREDICTIONS_FILE, Record
from fcorun.base.records.tables import BASELINE_HAZARD
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.row_groups import has_dependent_rows, split_between_ties
from fcorun.data.tables.column_roles import offer_frequency
from fcorun.data.tasks import find_task
from fcorun.methods.objectives.objective import Objective
from fcorun.results.model_outputs import Arrays, compute_predictions
from fcorun.results.score_intervals.held_out_rows import HeldOutRows, read_held_out_rows
from fcorun.results.score_intervals.score_table import read_scored_record

_BASELINE_COLUMNS = ("client", "time", "events", "at_risk", "cumulative_hazard")
_ALL_CLIENTS = ""  # the client of the baseline hazard of all training rows, as one risk set


def baseline_hazard(
    times: Float[np.ndarray, " n"], p: Float[np.ndarray, " n"], weight: Float[np.ndarray, " n"]
) -> list[dict[str, float]]:
    """Return Breslow's cumulative baseline hazard of one client: a row for each time of an event, and the last time.

    The cumulative hazard of a row is the baseline's times exp(p). Sums have the rows' ``weight``, and rows of weight 0
    have no part.
    """
    times = times[weight > 0]
    p = p[weight > 0]
    weight = weight[weight > 0]
    if not len(times):
        return []
    time, position = np.unique(np.abs(times), return_inverse=True)
    events = np.bincount(position, np.where(times > 0, weight, 0))
    at_risk = np.cumsum(np.bincount(position, weight)[::-1])[::-1]
    log_sum = np.full(len(time), -np.inf)
    np.logaddexp.at(log_sum, position, np.log(weight) + p)
    log_risk = np.logaddexp.accumulate(log_sum[::-1])[::-1]
    cumulative = np.cumsum(events * np.exp(-log_risk))
    is_listed = events > 0
    is_listed[-1] = True
    columns = {"time": time, "events": events, "at_risk": at_risk, "cumulative_hazard": cumulative}
    values = {name: column[is_listed].tolist() for name, column in columns.items()}
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def baseline_hazards(objective: Objective, data: FederatedData, solution: Arrays) -> str:
    """Return the content of baseline_hazard.csv: the baseline hazards by the training rows of each client, and of all.

    The rows of all clients together, whose client is "", are taken as one risk set. A client without a training row of
    positive weight has no row.
    """
    train = data.train
    p = compute_predictions(objective, solution, train.x, data.features.scale)
    if train.offset is not None:
        p = p + train.offset
    weight = np.ones(len(train)) if train.weight is None else train.weight
    parts = {_ALL_CLIENTS: slice(None)}
    for name, start, stop in zip(data.client_names, train.offsets[:-1], train.offsets[1:], strict=True):
        parts[name] = slice(start, stop)
    rows = []
    for name, part in parts.items():
        rows += [{"client": name} | row for row in baseline_hazard(train.y[part], p[part], weight[part])]
    return csv_text(rows) if rows else columns_csv(dict.fromkeys(_BASELINE_COLUMNS, ()))


def check_time(at: float) -> None:
    """Raise UserError for a time that is not positive and finite."""
    if not (math.isfinite(at) and at > 0):
        raise UserError(f"`at={at:g}` must be a positive time")


@dataclass(frozen=True, eq=False)
class SurvivalProbabilities:
    """Probabilities of no event up to a time.

    Attributes:
        values: the probabilities, (n,), nan where there is none.
        baseline: whose baseline hazard each of them is by, (n,): a client, "all clients", or in the record of a site
            "all clients of this site"; "" for none.
        substitution: a sentence on clients without a baseline hazard of their own; "" where all have one.
        warnings: the sentence, and others on rows without a probability.
    """

    values: Float[np.ndarray, " n"]
    baseline: np.ndarray
    substitution: str
    warnings: list[str]


def survival_probabilities(
    record: Record, p: Float[np.ndarray, " n"], clients: np.ndarray, at: float, baseline: str | None = None
) -> SurvivalProbabilities:
    """Return the probabilities of no event up to the time ``at``, given linear predictors.

    Rows of a client without a baseline hazard have that of the client ``baseline``, None: that of all training rows
    together. If no row has a client, all are of the only client of the site that keeps the record. A probability is nan
    after the last time of the training rows that its hazard is by.
    Raises UserError for a time that is not positive, for a ``baseline`` that the record does not have, and for a record
    without baseline hazards, or with personal models, whose hazards are not known.
    """
    check_time(at)
    if record.personal:
        raise UserError(f"{record.folder} has personal models, and baseline hazards of the shared model alone: "
                        "leave --at out")  # fmt: skip
    baselines = _read_baselines(record)
    names = [name for name in baselines if name != _ALL_CLIENTS]
    known = f"the record has the baseline hazards of {abbreviate(names) if names else 'no client'}"
    if baseline is not None and baseline not in names:
        raise UserError(f"`baseline={baseline}`: {known}; give one of them, or none for that of all clients together")
    substitute = baseline or _ALL_CLIENTS
    of_site = " of this site" if record.summary.get("data", {}).get("sites") else ""
    if of_site and len(names) == 1 and set(clients.tolist()) == {None}:
        clients = np.full(len(clients), names[0], object)
    title = baseline or f"all clients{of_site}"
    probabilities = np.full(len(p), np.nan)
    sources = np.full(len(p), "", object)
    unknown = []
    later = []
    for name in dict.fromkeys(clients.tolist()):
        is_unknown = name not in names
        if is_unknown:
            unknown.append(name)
        if is_unknown and substitute not in baselines:
            continue
        time, hazard = baselines[substitute if is_unknown else name]
        if at > time[-1]:
            later.append(f"{title if is_unknown else name} ({time[-1]:g})")
            continue
        number = int(np.searchsorted(time, at, side="right"))
        rows = clients == name
        probabilities[rows] = np.exp(-(hazard[number - 1] if number else 0.0) * np.exp(p[rows]))
        sources[rows] = title if is_unknown else name
    named = " and ".join(_name_rows(unknown))
    substitution = ""
    warnings = []
    if unknown and substitute in baselines:
        substitution = (f"{named} have no baseline hazard of their own and get that of {title}: how far theirs "
                        "differs is not known")  # fmt: skip
        warnings.append(substitution + ("" if baseline else word("; `baseline=CLIENT` takes that of one client")))
    elif unknown:
        warnings.append(f"no probability of survival for {named}: {known}")
    if later:
        warnings.append(f"no probability of survival at {at:g}, after the last training time of {abbreviate(later)}")
    return SurvivalProbabilities(probabilities, sources, substitution, warnings)


def _name_rows(clients: list[str | None]) -> list[str]:
    """Return the rows of clients as nouns; None is no client."""
    names = [str(name) for name in clients if name is not None]
    rows = [f"rows of {abbreviate(names)}"] if names else []
    return [*rows, "rows without a client"] if None in clients else rows


def _read_baselines(record: Record) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the times and cumulative baseline hazards of each client of a record. Raises UserError."""
    file = record.folder / BASELINE_HAZARD_FILE
    if not file.is_file() and record.summary.get("data", {}).get("sites"):
        raise UserError(f"{record.folder} has no {BASELINE_HAZARD_FILE}, which stays at the sites: predict "
                        "probabilities of survival at a site, by the record in results/ of its folder")  # fmt: skip
    if not file.is_file():
        raise UserError(f"{record.folder} has no {BASELINE_HAZARD_FILE}, which a probability of survival needs: give a "
                        "record of `objective=cox` with a shared model")  # fmt: skip
    baselines: dict[str, list[tuple[float, float]]] = {}
    for row in BASELINE_HAZARD.read_rows(record.folder):
        baselines.setdefault(row["client"], []).append((row["time"], row["cumulative_hazard"]))
    return {name: (np.array(rows)[:, 0], np.array(rows)[:, 1]) for name, rows in baselines.items()}


ALL_ROWS, GROUP = "all", "bin"  # kinds of rows of calibration.csv
_MAX_GROUPS, _ROWS_OF_GROUP = 5, 20  # the largest number of groups, and the least rows in one
_FEW_AT_RISK = 10
_LEVEL = 0.95  # of intervals


class ObservedRisk(NamedTuple):
    """The risk of an event up to a time, of rows of which some are censored.

    Attributes:
        risk, low, high: one minus the estimate of Kaplan and Meier, and the ends of its interval; nan where no row
            is at risk at the time, unless the last one had an event: then 1. The interval is nan for risks of 0 and 1.
        events: the number of events up to the time.
        censored: the number of rows that are censored before the time.
        at_risk: the number of rows whose own time is at least the time.
    """

    risk: float
    low: float
    high: float
    events: int
    censored: int
    at_risk: int


@dataclass(frozen=True)
class RiskGroup:
    """Rows of similar predicted risk, or all rows, of a client or of all clients.

    Attributes:
        client: the client, "" for the rows of all clients.
        kind: ALL_ROWS, or GROUP for rows of similar predicted risk.
        n: the number of rows.
        predicted: the mean predicted risk.
        observed: the observed risk.
    """

    client: str
    kind: str
    n: int
    predicted: float
    observed: ObservedRisk


@dataclass(frozen=True)
class SurvivalCalibration:
    """Calibration of held-out rows at a time.

    Attributes:
        at: the time.
        split: the set of the rows.
        groups: all rows and their groups, then those of each client.
        warnings: what a reader must know, a sentence each.
        level: the confidence level of the intervals of observed risks.
        substitution: a sentence on clients without a baseline hazard of their own; "" where all have one.
    """

    at: float
    split: str
    groups: tuple[RiskGroup, ...]
    warnings: tuple[str, ...]
    level: float = _LEVEL
    substitution: str = ""

    def select(self, client: str, kind: str) -> list[RiskGroup]:
        """Return the groups of a kind of a client, or of all clients for ""."""
        return [group for group in self.groups if (group.client, group.kind) == (client, kind)]

    @property
    def clients(self) -> list[str]:
        """The names of the clients, in order."""
        return [group.client for group in self.groups if group.client and group.kind == ALL_ROWS]

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the row of each group, nan for what is not known."""
        rows = []
        for group in self.groups:
            cells = {"set": self.split, "model": "shared", "client": group.client, "kind": group.kind, "at": self.at}
            risk, low, high, *counts = group.observed
            cells |= {"probability": group.predicted, "observed": risk, "low": low, "high": high, "n": group.n}
            cells |= {**dict(zip(("events", "censored", "at_risk"), counts, strict=True)), "level": self.level}
            rows.append(cells)
        return rows

    def to_csv(self) -> str:
        """Return the content of calibration.csv: a row for each group, empty for what is not known."""
        rows = []
        for row in self.to_rows():
            rows.append({name: "" if value != value else value for name, value in row.items()})
        return csv_text(rows)


def calibrate_record(
    folder: Path, at: float, level: float = _LEVEL, baseline: str | None = None
) -> SurvivalCalibration:
    """Return the calibration of a record's held-out rows at a time, by the baseline hazards of its training rows.

    Observed risks have intervals of the confidence ``level``. ``baseline`` is as for ``survival_probabilities``.
    Raises UserError for a record without hazards or held-out rows, for one whose hazards have sampling weights, and for
    a time at which no row is at risk.
    """
    check_time(at)
    record = read_scored_record(folder)
    task = record.task
    if task and not find_task(task).has_events:
        raise UserError(f"`at={at:g}` is for times to events, and the record in {folder} has none: leave it out")
    if record.weight:
        raise UserError(f"`at={at:g}`: predicted risks are those of weighted rows (`data.weight={record.weight}`), and "
                        f"{PREDICTIONS_FILE} has no weights for the observed ones, so that a right model would look "
                        f"wrong: leave it out{offer_frequency('; ', record.weight, record.weight_kind)}")  # fmt: skip
    (rows, *_) = read_held_out_rows(folder, task)
    client = np.array([name or None for name in rows.client.tolist()], object)
    survival = survival_probabilities(Record(folder), rows.prediction, client, at, baseline)
    sentences = survival.warnings
    is_known = np.isfinite(survival.values)
    if not is_known.any():
        raise UserError(f"`at={at:g}`: {sentences[0]}")
    if not is_known.all():
        sentences = [*sentences, f"calibration leaves out {int((~is_known).sum())} of {len(rows)} rows without a "
                     "prediction"]  # fmt: skip
    calibration = calibrate(rows.take(is_known), 1 - survival.values[is_known], at, sentences, level)
    return replace(calibration, substitution=survival.substitution)


def calibrate(
    rows: HeldOutRows,
    risk: Float[np.ndarray, " n"],
    at: float,
    sentences: list[str] | None = None,
    level: float = _LEVEL,
) -> SurvivalCalibration:
    """Return the calibration of predicted risks of an event up to ``at``, after the warnings ``sentences``."""
    times = np.abs(rows.target)
    if not (times >= at).any():
        raise UserError(f"`at={at:g}`: no held-out row is at risk then, since the last one ends at {times.max():g}: "
                        "give an earlier time")  # fmt: skip
    is_dependent = has_dependent_rows(rows.group)
    groups = []
    names = [name for name in np.unique(rows.client).tolist() if name]
    for client in ["", *(names if len(names) > 1 else [])]:
        index = np.flatnonzero((rows.client == client) | (client == ""))
        kinds = [(ALL_ROWS, index)]
        n_groups = min(_MAX_GROUPS, len(index) // _ROWS_OF_GROUP)
        if n_groups > 1:  # of about as many rows each
            by_risk = index[np.argsort(risk[index], kind="stable")]
            kinds += [(GROUP, by_risk[part]) for part in split_between_ties(risk[by_risk], n_groups, _ROWS_OF_GROUP)]
        for kind, of_kind in kinds:
            observed = observe_risk(rows.target[of_kind], at, level)
            if is_dependent:
                observed = observed._replace(low=math.nan, high=math.nan)
            groups.append(RiskGroup(client, kind, len(of_kind), float(risk[of_kind].mean()), observed))
    warnings = list(sentences or [])
    if is_dependent:
        warnings.append(word("observed risks have no intervals, since Greenwood's variance takes the rows of a group "
                             "(`data.group`) as independent"))  # fmt: skip
    within = " (groups within each client included)" if any(group.client for group in groups) else ""
    all_groups = f"{len(groups)} groups{within}"
    unknown = sum(math.isnan(group.observed.risk) for group in groups)
    if unknown:
        warnings.append(f"no observed risk for {unknown} of {all_groups}, none of whose rows is at risk at {at:g}")
    few = sum(group.observed.at_risk < _FEW_AT_RISK for group in groups) - unknown
    if few:
        warnings.append(f"fewer than {_FEW_AT_RISK} rows are at risk at {at:g} in {few} of {all_groups}, whose "
                        "observed risk says little")  # fmt: skip
    return SurvivalCalibration(at, rows.split, tuple(groups), tuple(warnings), level)


def observe_risk(times: Float[np.ndarray, " n"], at: float, level: float = _LEVEL) -> ObservedRisk:
    """Return the observed risk of an event up to a time of rows with these signed times, with its interval."""
    time = np.abs(times)
    is_event = times > 0
    before = np.unique(time[is_event & (time <= at)])
    events = np.array([np.sum(is_event & (time == moment)) for moment in before])
    at_risk = np.array([np.sum(time >= moment) for moment in before])
    survival = float(np.prod(1 - events / at_risk))
    low = high = math.nan
    if 0 < survival < 1:
        greenwood = float(np.sum(events / (at_risk * (at_risk - events))))
        z = NormalDist().inv_cdf((1 + level) / 2)
        factor = math.exp(z * math.sqrt(greenwood) / -math.log(survival))
        low = 1 - survival ** (1 / factor)
        high = 1 - survival**factor
    n_at_risk = int(np.sum(time >= at))
    if not n_at_risk and survival > 0:  # the last row is censored before the time
        survival = low = high = math.nan
    n_censored = int(np.sum(~is_event & (time < at)))
    return ObservedRisk(1 - survival, low, high, events=int(events.sum()), censored=n_censored, at_risk=n_at_risk)
