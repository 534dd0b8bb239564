"""Times to events: concordance of predictions, baseline hazards, and probabilities of survival.

Times are signed: t for an event at t, -t for a row that is censored at t. ``p`` is a linear predictor.
"""

import csv
import io
import math

import numpy as np
from jaxtyping import Float, Int

from fcorun.base.errors import UserError, abbreviate
from fcorun.base.records.formats import columns_csv, csv_text, read_text
from fcorun.base.records.record import BASELINE_HAZARD_FILE, Record
from fcorun.data.datasets.dataset import FederatedData
from fcorun.methods.objectives.objective import Objective
from fcorun.results.models.score_functions import Arrays, Groups, compute_predictions, safe_divide

_BASELINE_COLUMNS = ("client", "time", "events", "at_risk", "cumulative_hazard")


def score_survival(
    times: Float[np.ndarray, " n"], p: Float[np.ndarray, " n"], client: Int[np.ndarray, " n"], groups: Groups
) -> dict[str, np.ndarray]:
    """Return Harrell's C index of each group.

    ``c_index`` is over pairs of rows of the same client. ``c_index_all_pairs``, if there is one group only, is over all
    pairs.
    The hazards of two clients have different baselines, so that the model ranks the rows of one client only.
    """
    scores = {}
    stratum_by_score = {"c_index": client}
    if groups.count == 1:
        stratum_by_score["c_index_all_pairs"] = np.zeros(len(times), int)
    for name, stratum in stratum_by_score.items():
        concordant, pairs = count_concordant_pairs(times, p, stratum)
        scores[name] = safe_divide(groups.total(concordant), groups.total(pairs))
    return scores


def count_concordant_pairs(
    times: Float[np.ndarray, " n"], p: Float[np.ndarray, " n"], stratum: Int[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Return for each row the number of concordant pairs and of all pairs in which it is the event, 0 if censored.

    A pair is an event and a row of its stratum that outlives the event. It is concordant if that row has the smaller p;
    the same p counts one half. A row that is censored at the time of an event outlives the event. Takes O(n log^2 n).
    """
    n = len(times)
    is_censored = times < 0  # at equal times, censored rows come after events
    order = np.lexsort((p, is_censored, np.abs(times), stratum))
    p, is_censored, time, stratum = p[order], is_censored[order], np.abs(times)[order], stratum[order]
    begins_stratum = np.append(True, stratum[1:] != stratum[:-1])[:n]
    changes = (time[1:] != time[:-1]) | (is_censored[1:] != is_censored[:-1])
    begins_time = begins_stratum | np.append(True, changes)[:n]
    end_of_time = _next_start(begins_time)
    pairs = _next_start(begins_stratum) - end_of_time
    rank = np.empty(n, np.int64)  # of p, increasing from stratum to stratum; equal for equal p
    by_p = np.lexsort((p, stratum))
    new_p = np.append(True, (p[by_p][1:] != p[by_p][:-1]) | (stratum[by_p][1:] != stratum[by_p][:-1]))[:n]
    rank[by_p] = np.cumsum(new_p) - 1
    smaller = _count_later_below(rank)  # rows of one time are sorted by p, so that none of them counts
    key = rank * (n + 1)
    by_rank = np.sort(key + np.arange(n))
    equal = np.searchsorted(by_rank, key + n) - np.searchsorted(by_rank, key + end_of_time)
    is_event = ~is_censored
    concordant, counted = np.zeros(n), np.zeros(n, np.int64)
    concordant[order] = np.where(is_event, smaller + equal / 2, 0)
    counted[order] = np.where(is_event, pairs, 0)
    return concordant, counted


def _next_start(begins: np.ndarray) -> np.ndarray:
    """Return for each position the first position of the next run, (n,), where ``begins`` marks the runs' starts."""
    starts = np.append(np.flatnonzero(begins), len(begins))
    return starts[np.cumsum(begins)]


def _count_later_below(rank: np.ndarray) -> np.ndarray:
    """Return for each position how many later positions have a smaller rank, (n,), by merging blocks."""
    n, width = len(rank), 1
    count, position = np.zeros(n, np.int64), np.arange(len(rank))
    while width < n:
        block = position // (2 * width) * (n + 1)
        is_right = position // width % 2 == 1
        right = np.sort((block + rank)[is_right])
        left = ~is_right
        count[left] += np.searchsorted(right, (block + rank)[left]) - np.searchsorted(right, block[left])
        width *= 2
    return count


def baseline_hazard(
    times: Float[np.ndarray, " n"], p: Float[np.ndarray, " n"], weight: Float[np.ndarray, " n"]
) -> list[dict[str, float]]:
    """Return Breslow's cumulative baseline hazard of one client: a row for each time of an event, and the last time.

    The cumulative hazard of a row is the baseline's times exp(p). Sums have the rows' ``weight``, and rows of weight 0
    have no part.
    """
    times, p, weight = times[weight > 0], p[weight > 0], weight[weight > 0]
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
    """Return the content of baseline_hazard.csv: the baseline hazard of each client, by its training rows.

    A client without a training row of positive weight has no row.
    """
    train = data.train
    p = compute_predictions(objective, solution, train.x, data.features.scale)
    if train.offset is not None:
        p = p + train.offset
    weight = np.ones(len(train)) if train.weight is None else train.weight
    rows = []
    for name, start, stop in zip(data.client_names, train.offsets[:-1], train.offsets[1:], strict=True):
        client = slice(start, stop)
        rows += [{"client": name} | row for row in baseline_hazard(train.y[client], p[client], weight[client])]
    return csv_text(rows) if rows else columns_csv(dict.fromkeys(_BASELINE_COLUMNS, ()))


def check_time(at: float) -> None:
    """Raise UserError for a time that is not positive and finite."""
    if not (math.isfinite(at) and at > 0):
        raise UserError(f"at={at:g} must be a positive time")


def survival_probabilities(
    record: Record, p: Float[np.ndarray, " n"], clients: np.ndarray, at: float
) -> tuple[Float[np.ndarray, " n"], list[str]]:
    """Return the probabilities of no event up to the time ``at``, given linear predictors, and warnings.

    A probability is nan for a client without a baseline hazard, and after the last time of the client's training rows.
    Raises UserError for a time that is not positive, and for a record without baseline hazards, or with personal
    models, whose hazards are not known.
    """
    check_time(at)
    if record.personal:
        raise UserError(f"{record.folder} has personal models, and baseline hazards of the shared model alone: "
                        "leave --at out")  # fmt: skip
    baselines = _read_baselines(record)
    probabilities = np.full(len(p), np.nan)
    unknown, later = [], []
    for name in dict.fromkeys(clients.tolist()):
        if name not in baselines:
            unknown.append(name)
            continue
        time, hazard = baselines[name]
        if at > time[-1]:
            later.append(f"{name} ({time[-1]:g})")
            continue
        number = int(np.searchsorted(time, at, side="right"))
        rows = clients == name
        probabilities[rows] = np.exp(-(hazard[number - 1] if number else 0.0) * np.exp(p[rows]))
    warnings = []
    known = f"the record has the baseline hazards of {abbreviate(list(baselines)) if baselines else 'no client'}"
    if None in unknown:
        warnings.append(f"no probability of survival for rows without a client: {known}")
    if names := [str(name) for name in unknown if name is not None]:
        warnings.append(f"no probability of survival for rows of {abbreviate(names)}: {known}")
    if later:
        warnings.append(f"no probability of survival at {at:g}, after the last training time of {abbreviate(later)}")
    return probabilities, warnings


def _read_baselines(record: Record) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the times and cumulative baseline hazards of each client of a record. Raises UserError."""
    file = record.folder / BASELINE_HAZARD_FILE
    if not file.is_file() and record.summary.get("data", {}).get("sites"):
        raise UserError(f"{record.folder} has no {BASELINE_HAZARD_FILE}, which stays at the sites: predict "
                        "probabilities of survival at a site, by the record in results/ of its folder")  # fmt: skip
    if not file.is_file():
        raise UserError(f"{record.folder} has no {BASELINE_HAZARD_FILE}, which a probability of survival needs: give a "
                        "record of objective=cox with a shared model")  # fmt: skip
    try:
        baselines: dict[str, list[tuple[float, float]]] = {}
        for row in csv.DictReader(io.StringIO(read_text(file), newline="")):
            baselines.setdefault(row["client"], []).append((float(row["time"]), float(row["cumulative_hazard"])))
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise UserError(f"{file} is damaged: repeat the run with force=true") from error
    return {name: (np.array(rows)[:, 0], np.array(rows)[:, 1]) for name, rows in baselines.items()}
