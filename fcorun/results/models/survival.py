"""Times to events: baseline hazards, and probabilities of survival.

Times are signed: t for an event at t, -t for a row that is censored at t. ``p`` is a linear predictor.
"""

import csv
import io
import math

import numpy as np
from jaxtyping import Float

from fcorun.base.errors import UserError, abbreviate
from fcorun.base.records.formats import columns_csv, csv_text, read_text
from fcorun.base.records.record import BASELINE_HAZARD_FILE, Record
from fcorun.data.datasets.dataset import FederatedData
from fcorun.methods.objectives.objective import Objective
from fcorun.results.models.score_functions import Arrays, compute_predictions

_BASELINE_COLUMNS = ("client", "time", "events", "at_risk", "cumulative_hazard")


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
        raise UserError(f"`at={at:g}` must be a positive time")


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
                        "record of `objective=cox` with a shared model")  # fmt: skip
    try:
        baselines: dict[str, list[tuple[float, float]]] = {}
        for row in csv.DictReader(io.StringIO(read_text(file), newline="")):
            baselines.setdefault(row["client"], []).append((float(row["time"]), float(row["cumulative_hazard"])))
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise UserError(f"{file} is damaged: repeat the run with `force=true`") from error
    return {name: (np.array(rows)[:, 0], np.array(rows)[:, 1]) for name, rows in baselines.items()}
