"""Metrics of how predictions rank the rows of two classes: area under the ROC curve, average precision."""

import numpy as np
from jaxtyping import Float

from fcorun.data.datasets.dataset import FederatedData

_TINY = np.finfo(float).tiny
MAX_RANKED_ROWS = 100_000  # sorting more rows would take longer than the rest of an evaluation


def ranking_metrics(
    y: Float[np.ndarray, " n"], scores: Float[np.ndarray, "*runs n"], weight: Float[np.ndarray, " n"] | None = None
) -> dict[str, Float[np.ndarray, "*runs"]]:
    """Return "auc" and "ap" of each run's scores of rows whose classes y are 0 and 1: scikit-learn's roc_auc_score and
    average_precision_score with these weights (None: 1).

    Both are NaN where a score is not finite, and without rows of both classes. NumPy computes them, since the sort of
    compiled programs takes twenty times as long on a CPU.
    """
    weight = np.ones(len(y)) if weight is None else np.asarray(weight, float)
    positive, negative = weight * (y == 1), weight * (y != 1)
    by_run = np.array([_rank_run(positive, negative, score) for score in scores.reshape(-1, len(y))]).reshape(-1, 2)
    return {"auc": by_run[:, 0].reshape(scores.shape[:-1]), "ap": by_run[:, 1].reshape(scores.shape[:-1])}


def _rank_run(positive: np.ndarray, negative: np.ndarray, score: np.ndarray) -> tuple[float, float]:
    """Return the area and the average precision from the weights (n,) of the positive and of the negative rows."""
    total, others = positive.sum(), negative.sum()
    if not (total > 0 and others > 0 and np.isfinite(score).all()):
        return np.nan, np.nan
    order = np.argsort(score)
    value = score[order]
    first = np.flatnonzero(np.append(True, value[1:] != value[:-1]))  # the first row of each distinct score
    hits, misses = (np.add.reduceat(rows[order], first) for rows in (positive, negative))
    # the weights of the rows with at least this score
    true_positive, false_positive = hits[::-1].cumsum()[::-1], misses[::-1].cumsum()[::-1]
    auc = (hits * (others - false_positive + misses / 2)).sum() / (total * others)
    precision = true_positive / np.maximum(true_positive + false_positive, _TINY)
    return float(auc), float((hits * precision).sum() / total)


def why_unranked(data: FederatedData, n_view_rows: int = 0) -> str:
    """Return why AUC and average precision of the validation rows cannot be measured; empty where they can.

    ``n_view_rows`` is the number of rows on the device of which the validation rows are a subset, or 0.
    """
    if not data.target_task.has_two_classes:
        return "it is of two classes"
    if data.validation is None:
        return "there are no validation rows"
    if not data.train.all_on_device:
        return "it takes all validation rows in one memory"
    if not n_view_rows and len(np.unique(data.validation.y)) < 2:
        return "the validation rows are of one class"
    rows = max(len(data.validation), n_view_rows)
    if rows > MAX_RANKED_ROWS:
        return f"{rows:,} rows are more than {MAX_RANKED_ROWS:,}, which are sorted at each evaluation"
    return ""
