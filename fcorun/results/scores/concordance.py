"""Scores of how linear predictors rank times to events: Harrell's C index."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from fcorun.data.rows.row_groups import divide
from fcorun.results.scores.score import Places, TimeScore
from fcorun.results.scores.weighted_rows import ScoredRows, Sums, WeightedRows

_MAX_KEPT = 2**17  # rows whose merges are kept for many weightings; of more rows they are sorted anew


class CIndex(TimeScore):
    """The share of concordant pairs among the pairs of rows of one client.

    The hazards of two clients have different baselines, so that the model ranks the rows of one client only.
    """

    name = "c_index"
    label = "C index"
    long_label = "C index (0.5: chance, 1: perfect)"
    higher = True
    places = Places(table=19, page=3, terminal=3, verdict=8, headline=2, by_client=True, brief=True)

    def of_rows(self, rows: WeightedRows) -> np.ndarray:
        concordance = rows.rows.once(pair_rows_of_clients)
        if not rows.whole_clients:
            return concordance.compute_index(rows)
        concordant, pairs = concordance.count_pairs()  # a client that is drawn w times counts its own w times, not w^2
        return divide(rows.total(concordant), rows.total(pairs))

    def of_sums(self, sums: Sums) -> np.ndarray:
        return divide(sums["concordant_twice"] / 2, sums["pairs"])


class CIndexOfAllPairs(TimeScore):
    """The share of concordant pairs among all pairs of rows."""

    name = "c_index_all_pairs"
    label = "C index of all pairs"
    higher = True
    places = Places(table=20, terminal=None, verdict=None)

    def of_rows(self, rows: WeightedRows) -> np.ndarray:
        return rows.rows.once(_pair_all_rows).compute_index(rows)

    def applies_to(self, rows: WeightedRows) -> bool:
        return len(rows.rows.groups) == 1


class Concordance:
    """Pairs of an event and a row of its stratum that outlives the event.

    A pair is concordant if the row that lives longer has the smaller predictor; equal predictors count one half. A row
    that is censored at the time of an event outlives the event. Blocks of rows that are sorted by time are merged: each
    merge finds, for each row of a left block, the rows of the right block with smaller predictors. Takes O(n log^2 n).

    Args:
        times: signed times, negative for censored rows.
        p: the predictor, larger for earlier events.
        stratum: only rows of one stratum make pairs.
    """

    def __init__(self, times: Float[np.ndarray, " n"], p: Float[np.ndarray, " n"], stratum: Int[np.ndarray, " n"]):
        n = len(times)
        is_censored = times < 0  # at equal times, censored rows come after events
        self._order = np.lexsort((p, is_censored, np.abs(times), stratum))
        self._back = np.argsort(self._order)
        p, is_censored, time, stratum = (values[self._order] for values in (p, is_censored, np.abs(times), stratum))
        self._is_event = times > 0
        begins_stratum = np.append(True, stratum[1:] != stratum[:-1])[:n]
        changes = (time[1:] != time[:-1]) | (is_censored[1:] != is_censored[:-1])
        self._end_of_time = _find_next_start(begins_stratum | np.append(True, changes)[:n])
        self._end_of_stratum = _find_next_start(begins_stratum)
        by_p = np.lexsort((p, stratum))
        new_p = np.append(True, (p[by_p][1:] != p[by_p][:-1]) | (stratum[by_p][1:] != stratum[by_p][:-1]))[:n]
        self._rank = np.empty(n, np.int64)  # of p, increasing from stratum to stratum; equal for equal p
        self._rank[by_p] = np.cumsum(new_p) - 1
        key = self._rank * (n + 1)
        self._by_rank = np.argsort(key + np.arange(n))
        keys = (key + np.arange(n))[self._by_rank]
        self._equal = np.searchsorted(keys, key + self._end_of_time), np.searchsorted(keys, key + n)
        self._kept_merges = list(self._merges()) if n <= _MAX_KEPT else None

    def compute_index(self, rows: WeightedRows) -> Float[np.ndarray, "B G"]:
        """Return the weighted share of concordant pairs in each group, nan without pairs."""
        concordant, outliving = self._sum_partners(rows.weights)
        concordant *= rows.weights * self._is_event
        outliving *= rows.weights * self._is_event
        starts = rows.rows.groups.starts
        return divide(np.add.reduceat(concordant, starts, axis=1), np.add.reduceat(outliving, starts, axis=1))

    def count_pairs(self) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Return how many concordant pairs, and how many pairs each event is in; 0 for censored rows."""
        concordant, outliving = self._sum_partners(np.ones((1, len(self._order))))
        return concordant[0] * self._is_event, outliving[0] * self._is_event

    def _sum_partners(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weight of the rows that outlive each row with a smaller predictor, and of all that outlive it."""
        w = weights[:, self._order]
        sums = _sum_up_to(w)
        outliving = sums[:, self._end_of_stratum] - sums[:, self._end_of_time]
        sums = _sum_up_to(w[:, self._by_rank])
        first_equal, after_equal = self._equal
        concordant = (sums[:, after_equal] - sums[:, first_equal]) / 2
        # rows of one time are sorted by p, so that none of them counts
        for left, right, first, below in self._merges() if self._kept_merges is None else self._kept_merges:
            sums = _sum_up_to(w[:, right])
            concordant[:, left] += sums[:, below] - sums[:, first]
        return concordant[:, self._back], outliving[:, self._back]

    def _merges(self) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield the rows of left blocks of one width, and the rows of right blocks sorted by block and rank.

        For each left row follow the positions among the right rows: the first of its block, and the first of its block
        whose rank is not smaller.
        """
        rank = self._rank
        n = len(self._rank)
        position = np.arange(n)
        width = 1
        while width < n:
            key = position // (2 * width) * (n + 1) + rank
            is_right = position // width % 2 == 1
            left = np.flatnonzero(~is_right)
            right = np.flatnonzero(is_right)
            right = right[np.argsort(key[right], kind="stable")]
            yield left, right, np.searchsorted(key[right], (key - rank)[left]), np.searchsorted(key[right], key[left])
            width *= 2


def _find_next_start(begins: np.ndarray) -> np.ndarray:
    """Return for each position the first position of the next run, (n,), where ``begins`` marks the runs' starts."""
    starts = np.append(np.flatnonzero(begins), len(begins))
    return starts[np.cumsum(begins)]


def _sum_up_to(values: Float[np.ndarray, "B n"]) -> Float[np.ndarray, "B n+1"]:
    """Return the sums of the first 0, 1, ..., n values."""
    sums = np.zeros((len(values), values.shape[1] + 1))
    np.cumsum(values, axis=1, out=sums[:, 1:])
    return sums


def pair_rows_of_clients(rows: ScoredRows) -> Concordance:
    """Return the pairs of rows of one client."""
    return Concordance(rows.target, rows.prediction, rows.client)


def _pair_all_rows(rows: ScoredRows) -> Concordance:
    return Concordance(rows.target, rows.prediction, np.zeros(len(rows), int))
