"""How well predictions rank the rows of two classes: area under the ROC curve, average precision."""

import numpy as np
from jaxtyping import Float

_TINY = np.finfo(float).tiny


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
    each = [_of_run(positive, negative, score) for score in scores.reshape(-1, len(y))]
    return {name: np.array([run[k] for run in each]).reshape(scores.shape[:-1]) for k, name in enumerate(("auc", "ap"))}


def _of_run(positive: np.ndarray, negative: np.ndarray, score: np.ndarray) -> tuple[float, float]:
    """Return the area and the average precision from the weights (n,) of the positive and of the negative rows."""
    total, others = positive.sum(), negative.sum()
    if not (total > 0 and others > 0 and np.isfinite(score).all()):
        return np.nan, np.nan
    order = np.argsort(score)
    value = score[order]
    first = np.flatnonzero(np.append(True, value[1:] != value[:-1]))  # of the rows of one score
    hits, misses = (np.add.reduceat(rows[order], first) for rows in (positive, negative))
    found, wrong = (each[::-1].cumsum()[::-1] for each in (hits, misses))  # from this score on
    auc = (hits * (others - wrong + misses / 2)).sum() / (total * others)
    precision = found / np.maximum(found + wrong, _TINY)
    return float(auc), float((hits * precision).sum() / total)
