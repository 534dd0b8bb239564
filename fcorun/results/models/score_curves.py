"""Curves of two classes on held-out rows: ROC and precision-recall, calibration, and scores against the threshold."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from fcorun.base.records.formats import csv_text
from fcorun.base.records.record import OUT_OF_FOLD
from fcorun.data.rows.row_groups import divide, has_dependent_rows, split_between_ties
from fcorun.experiment.threshold_rule import DEFAULT_THRESHOLD, count_flagged

if TYPE_CHECKING:  # the process that draws pictures does not import JAX
    from fcorun.results.models.predictions import Predictions

MAX_CLIENTS = 50  # with curves of their own
_MAX_POINTS = 1000  # of a ROC curve
_MAX_BINS, _ROWS_OF_BIN = 10, 20  # of a calibration curve: the largest number of bins, and the least rows in one
_ROWS_OF_LINE = 100  # the least rows of a smooth line
_SPAN = 0.75  # the share of the rows that a point of the smooth line averages over, as in loess
_MAX_SMOOTHED = 2000  # rows, or means of neighbouring rows, that are smoothed
_GRID = 50  # points of the smooth line
_Z = 1.959964  # of a 95 % interval
_THRESHOLDS = np.append(np.arange(1, 10) / 1000, np.arange(1, 100) / 100)  # small ones for rare outcomes

Row = dict[str, Any]


@dataclass(frozen=True)
class Curves:
    """The curves of one set of rows, as rows of tables; each row has its ``model`` and ``client``, "" for all rows.

    Attributes:
        split: the set of rows: test, validation or out_of_fold.
        positive: the name of the positive class.
        thresholds: the threshold of each model, shared and personal.
        roc, calibration, decision: the rows of roc.csv, calibration.csv and thresholds.csv.
        scores: the rows of scores.csv about these rows, with nan for scores that are not defined.
    """

    split: str
    positive: str
    thresholds: dict[str, float]
    roc: list[Row]
    calibration: list[Row]
    decision: list[Row]
    scores: list[Row]

    @property
    def files(self) -> dict[str, str]:
        """The contents of the tables by file name."""
        tables = {"roc.csv": self.roc, "calibration.csv": self.calibration, "thresholds.csv": self.decision}
        return {name: csv_text(_blank_nan(row) for row in rows) for name, rows in tables.items()}


def have_all_curves(y: Int[np.ndarray, " n"]) -> bool:
    """Return whether rows with these targets have each of the curves: both classes, and two bins of a calibration."""
    return len(y) >= 2 * _ROWS_OF_BIN and len(np.unique(y)) > 1


def compute_curves(predictions: "Sequence[Predictions]", table: Sequence[Row]) -> Curves | None:
    """Return the curves of the test rows if there are some, else of the validation rows, or of the rows out of fold.

    All rows have curves, and each client of at most 50. Returns None without probabilities of two classes, or if the
    rows are of one class. ``table`` are the rows of scores.csv of the predictions.
    """
    with_probability = [p for p in predictions if p.probability is not None]
    splits = {p.split for p in with_probability}
    split = next((name for name in ("test", "validation", OUT_OF_FOLD) if name in splits), "")
    chosen = [p for p in with_probability if p.split == split]
    if not chosen or len(np.unique(chosen[0].y)) < 2:
        return None
    tables: dict[str, list[Row]] = {name: [] for name in ("roc", "calibration", "decision", "scores")}
    curves = Curves(split, str(chosen[0].data.classes[1]), {p.model: p.threshold for p in chosen}, **tables)
    for of_model in chosen:
        rows_of = {"": np.arange(len(of_model))}
        names = [] if of_model.clients is None else [name for name in np.unique(of_model.clients).tolist() if name]
        if 1 < len(names) <= MAX_CLIENTS:
            rows_of |= {name: np.flatnonzero(of_model.clients == name) for name in names}
        for client, rows in rows_of.items():
            key = {"set": split, "model": of_model.model, "client": client}
            assert of_model.probability is not None
            y = of_model.y[rows]
            probability = of_model.probability[rows]
            curves.roc.extend(key | row for row in trace_roc(y, probability))
            is_dependent = of_model.group is not None and has_dependent_rows(of_model.group[rows])
            curves.calibration.extend(key | row for row in trace_calibration(y, probability, is_dependent))
            curves.decision.extend(key | row for row in trace_decision(y, probability, of_model.threshold))
    shown = {(row["model"], row["client"]) for row in curves.decision}
    for row in table:
        if row["set"] == split and (row["model"], row["client"]) in shown:
            blanks = [name for name, value in row.items() if value == "" and name != "client"]
            curves.scores.append(row | dict.fromkeys(blanks, np.nan))
    return curves


def trace_roc(y: Int[np.ndarray, " n"], probability: Float[np.ndarray, " n"]) -> list[Row]:
    """Return a point for each different probability, from the largest on: the rows at or above it are flagged.

    The first point flags no row. Of more than 1,000 points, 1,000 evenly spaced ones remain. Rows of one class have no
    curve.
    """
    n_positive = int(y.sum())
    if n_positive in (0, len(y)):
        return []
    thresholds, true_positives, false_positives = count_flagged(y, probability)
    n_flagged = true_positives + false_positives
    columns = {
        "threshold": thresholds,
        "false_positive_rate": false_positives / (len(y) - n_positive),
        "sensitivity": true_positives / n_positive,
        "precision": true_positives / n_flagged,
        "n_flagged": n_flagged.astype(int),
    }
    if len(thresholds) > _MAX_POINTS:
        points = np.unique(np.linspace(0, len(thresholds) - 1, _MAX_POINTS).astype(int))
        columns = {name: values[points] for name, values in columns.items()}
    first = {"threshold": np.inf, "false_positive_rate": 0.0, "sensitivity": 0.0, "precision": np.nan, "n_flagged": 0}
    return [first, *_list_rows(columns)]


def trace_calibration(
    y: Int[np.ndarray, " n"], probability: Float[np.ndarray, " n"], is_dependent: bool = False
) -> list[Row]:
    """Return bins of about equal numbers of rows, ordered by probability, and points of a smooth line.

    A ``bin`` has its mean probability, the share of positive rows and Wilson's 95 % interval of the share; there are at
    most ten, of 20 rows or more. Rows that depend on each other, as those of a patient, have no interval. A point
    ``smooth`` has the share that ``smooth_line`` estimates from 100 rows or more.
    """
    n = len(y)
    order = np.argsort(probability, kind="stable")
    y = y[order]
    probability = probability[order]
    n_bins = min(_MAX_BINS, n // _ROWS_OF_BIN)
    rows: list[Row] = []
    for of_bin in split_between_ties(probability, n_bins, _ROWS_OF_BIN) if n_bins > 1 else []:
        mean = float(probability[of_bin].mean())
        share = float(y[of_bin].mean())
        low = high = np.nan
        if not is_dependent:
            low, high = wilson_interval(share, len(of_bin))
        rows.append({"kind": "bin", "probability": mean, "observed": share, "low": low, "high": high, "n": len(of_bin)})
    if n < _ROWS_OF_LINE or y.min() == y.max():
        return rows
    least, largest = np.quantile(probability, [0.01, 0.99])
    grid = np.linspace(least, largest, _GRID)
    for p, share in zip(grid.tolist(), smooth_line(probability, y, grid).tolist(), strict=True):
        rows.append({"kind": "smooth", "probability": p, "observed": share, "low": np.nan, "high": np.nan, "n": n})
    return rows


def smooth_line(
    x: Float[np.ndarray, " n"], y: Int[np.ndarray, " n"], grid: Float[np.ndarray, " g"]
) -> Float[np.ndarray, " g"]:
    """Return a local linear regression of y on x at the points of a grid, clipped to [0, 1].

    Each point is the weighted least-squares line of the nearest 3/4 of the rows, with tricube weights. The line is
    loess of degree 1 without robustness (Cleveland, JASA 1979), by which Austin and Steyerberg (Statistics in Medicine
    2014) draw calibration. Of many rows, means of neighbours are smoothed.

    Args:
        x: in increasing order.
    """
    if len(x) > _MAX_SMOOTHED:
        x, y = (np.array([part.mean() for part in np.array_split(values, _MAX_SMOOTHED)]) for values in (x, y))
    n_nearest = max(int(np.ceil(_SPAN * len(x))), 2)
    estimates = np.empty(len(grid))
    for i, point in enumerate(grid):
        distance = np.abs(x - point)
        width = np.partition(distance, n_nearest - 1)[n_nearest - 1]
        weight = (1 - np.minimum(distance / max(width, 1e-12), 1) ** 3) ** 3
        if not weight.any():
            weight = (distance <= width).astype(float)
        weight /= weight.sum()
        mean_x = weight @ x
        mean_y = weight @ y
        variance = weight @ (x - mean_x) ** 2
        slope = weight @ ((x - mean_x) * (y - mean_y)) / variance if variance > 1e-12 else 0.0
        estimates[i] = mean_y + slope * (point - mean_x)
    return estimates.clip(0, 1)


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of n rows (Wilson, JASA 1927)."""
    center = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half_width = _Z / (1 + _Z**2 / n) * np.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    low = max(center - half_width, 0)
    high = min(center + half_width, 1)
    return float(min(low, share)), float(max(high, share))  # rounding must not leave a share of 0 or 1 outside


def trace_decision(y: Int[np.ndarray, " n"], probability: Float[np.ndarray, " n"], threshold: float) -> list[Row]:
    """Return the scores at thresholds 0.001 to 0.99, and at the ``threshold`` of the model, which is ``chosen``.

    The net benefit of a threshold t is (true positives - false positives t / (1 - t)) / n (Vickers and Elkin, Medical
    Decision Making 2006); ``net_benefit_all`` is that of flagging every row. Flagging none has 0.
    """
    n = len(y)
    n_positive = int(y.sum())
    thresholds = np.unique(np.append(_THRESHOLDS, threshold))

    def count_flagged_rows(probabilities: np.ndarray) -> np.ndarray:
        left, right = (np.searchsorted(np.sort(probabilities), thresholds, side) for side in ("left", "right"))
        # 0.5 itself is not flagged
        return len(probabilities) - np.where(thresholds == DEFAULT_THRESHOLD, right, left)

    n_flagged = count_flagged_rows(probability)
    true_positives = count_flagged_rows(probability[y == 1])
    false_positives = n_flagged - true_positives
    odds = divide(thresholds, 1 - thresholds)  # no net benefit at 1
    columns = {
        "threshold": thresholds,
        "chosen": thresholds == threshold,
        "n_flagged": n_flagged,
        "sensitivity": divide(true_positives, np.asarray(n_positive)),
        "specificity": divide(n - n_positive - false_positives, np.asarray(n - n_positive)),
        "ppv": divide(true_positives, n_flagged),
        "npv": divide(n - n_positive - false_positives, n - n_flagged),
        "net_benefit": (true_positives - false_positives * odds) / n,
        "net_benefit_all": (n_positive - (n - n_positive) * odds) / n,
    }
    return _list_rows(columns)


def _list_rows(columns: dict[str, np.ndarray]) -> list[Row]:
    """Return the rows of a table with these columns, as plain values."""
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in values]


def _blank_nan(row: Row) -> Row:
    """Return a row of a table with "" for nan."""
    return {name: "" if value != value else value for name, value in row.items()}
