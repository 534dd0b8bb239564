"""The area under the ROC curve and the average precision of weighted rows, whose scores are sorted once."""

import numpy as np
from jaxtyping import Bool, Float

from fcorun.results.models.score_intervals.segments import RowSegments, divide


class Ranking:
    """Rows of two classes in the order of a score, by segment; rows of equal score are one tie.

    ``auc`` and ``average_precision`` are those of ``fcorun.results.models.score_functions`` on rows that are
    repeated as often as their weight says.
    """

    def __init__(self, positive: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"], segments: RowSegments):
        self._order = np.lexsort((score, segments.row_segment))
        segment, value = segments.row_segment[self._order], score[self._order]
        begins = np.ones(len(value), bool)
        begins[1:] = (np.diff(segment) != 0) | (np.diff(value) != 0)
        self._positive = positive[self._order]
        self._starts = np.flatnonzero(begins)
        self._ties = RowSegments(segment[self._starts])

    def score(self, weights: Float[np.ndarray, "B n"]) -> tuple[Float[np.ndarray, "B C"], Float[np.ndarray, "B C"]]:
        """Return the AUC and the average precision of each segment.

        The AUC is nan for a segment of one class, the average precision for one without positive rows.
        """
        ties = self._ties
        in_order = weights[:, self._order]
        of_tie = self._sum_ties(in_order)
        positive = self._sum_ties(in_order * self._positive)
        n_positive = ties.total(positive)
        n_negative = ties.total(of_tie) - n_positive
        negative = of_tie - positive
        below = self._before(negative) + negative / 2
        auc = divide(ties.total(positive, below), n_positive * n_negative)
        flagged = ties.spread(n_positive + n_negative) - self._before(of_tie)
        true_positives = ties.spread(n_positive) - self._before(positive)
        precision = np.divide(true_positives, flagged, out=np.zeros_like(flagged), where=flagged > 0)
        return auc, divide(ties.total(positive, precision), n_positive)

    def _sum_ties(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over the rows of each tie."""
        if len(self._starts) == values.shape[1]:  # no ties
            return values
        return np.add.reduceat(values, self._starts, axis=1)

    def _before(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over the earlier ties of the same segment."""
        before = np.cumsum(values, axis=1) - values
        return before - self._ties.spread(before[:, self._ties.starts])
