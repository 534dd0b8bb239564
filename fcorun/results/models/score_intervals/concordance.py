"""Harrell's C index of weighted rows: pairs of rows are sorted once, and summed for many weightings."""

import numpy as np
from jaxtyping import Float, Int

from fcorun.results.models.score_intervals.segments import RowSegments, divide


class Concordance:
    """Pairs of an event and a row of its stratum that outlives the event, as ``count_concordant_pairs`` has them.

    A pair is concordant if the row that lives longer has the smaller predictor; equal predictors count one half. Blocks
    of rows that are sorted by time are merged: each merge finds, for each row of a left block, the rows of the right
    block with smaller predictors.

    Args:
        times: signed times, negative for censored rows.
        p: the predictor, larger for earlier events.
        stratum: only rows of one stratum make pairs.
        segments: the groups of rows that get an index each.
    """

    def __init__(
        self,
        times: Float[np.ndarray, " n"],
        p: Float[np.ndarray, " n"],
        stratum: Int[np.ndarray, " n"],
        segments: RowSegments,
    ):
        n = len(times)
        is_censored = times < 0  # at equal times, censored rows come after events
        self._order = np.lexsort((p, is_censored, np.abs(times), stratum))
        self._back = np.argsort(self._order)
        self._segments = segments
        p, is_censored, time, stratum = (values[self._order] for values in (p, is_censored, np.abs(times), stratum))
        self._is_event = times > 0
        begins_stratum = np.append(True, stratum[1:] != stratum[:-1])[:n]
        changes = (time[1:] != time[:-1]) | (is_censored[1:] != is_censored[:-1])
        self._end_of_time = _next_start(begins_stratum | np.append(True, changes)[:n])
        self._end_of_stratum = _next_start(begins_stratum)
        by_p = np.lexsort((p, stratum))
        new_p = np.append(True, (p[by_p][1:] != p[by_p][:-1]) | (stratum[by_p][1:] != stratum[by_p][:-1]))[:n]
        rank = np.empty(n, np.int64)  # of p, increasing from stratum to stratum; equal for equal p
        rank[by_p] = np.cumsum(new_p) - 1
        key = rank * (n + 1)
        self._by_rank = np.argsort(key + np.arange(n))
        keys = (key + np.arange(n))[self._by_rank]
        self._equal = np.searchsorted(keys, key + self._end_of_time), np.searchsorted(keys, key + n)
        self._merges = [_merge(rank, 2**k) for k in range(n.bit_length()) if 2**k < n]

    def index(self, weights: Float[np.ndarray, "B n"]) -> Float[np.ndarray, "B C"]:
        """Return the C index of each segment, nan without pairs."""
        concordant, outliving = self._sum_partners(weights)
        events = weights * self._is_event
        return divide(self._segments.total(events, concordant), self._segments.total(events, outliving))

    def count_pairs(self) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Return how many concordant pairs, and how many pairs each event is in; 0 for censored rows."""
        concordant, outliving = self._sum_partners(np.ones((1, len(self._order))))
        return concordant[0] * self._is_event, outliving[0] * self._is_event

    def _sum_partners(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weight of the rows that outlive each row with a smaller predictor, and of all that outlive it."""
        w = weights[:, self._order]
        sums = _sums_before(w)
        outliving = sums[:, self._end_of_stratum] - sums[:, self._end_of_time]
        sums = _sums_before(w[:, self._by_rank])
        first_equal, after_equal = self._equal
        concordant = (sums[:, after_equal] - sums[:, first_equal]) / 2
        # rows of one time are sorted by p, so that none of them counts
        for left, right, first, below in self._merges:
            sums = _sums_before(w[:, right])
            concordant[:, left] += sums[:, below] - sums[:, first]
        return concordant[:, self._back], outliving[:, self._back]


def _merge(rank: Int[np.ndarray, " n"], width: int) -> tuple[np.ndarray, ...]:
    """Return the rows of left blocks of ``width`` rows, and the rows of right blocks sorted by block and rank.

    For each left row follow the positions among the right rows: the first of its block, and the first of its block
    whose rank is not smaller.
    """
    n = len(rank)
    position = np.arange(n)
    key = position // (2 * width) * (n + 1) + rank
    is_right = position // width % 2 == 1
    left, right = np.flatnonzero(~is_right), np.flatnonzero(is_right)
    right = right[np.argsort(key[right], kind="stable")]
    return left, right, np.searchsorted(key[right], (key - rank)[left]), np.searchsorted(key[right], key[left])


def _next_start(begins: np.ndarray) -> np.ndarray:
    """Return for each position the first position of the next run, (n,), where ``begins`` marks the runs' starts."""
    starts = np.append(np.flatnonzero(begins), len(begins))
    return starts[np.cumsum(begins)]


def _sums_before(values: Float[np.ndarray, "B n"]) -> Float[np.ndarray, "B n+1"]:
    """Return the sums of the first 0, 1, ..., n values."""
    sums = np.zeros((len(values), values.shape[1] + 1))
    np.cumsum(values, axis=1, out=sums[:, 1:])
    return sums
