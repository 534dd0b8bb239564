"""Rows in groups, under many weightings at once: their sums, and how a score ranks those of two classes."""

from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int


class RowGroups:
    """Rows in groups: the rows of a group are adjacent, and no group is empty.

    Attributes:
        row_group: the group of each row, (n,), from 0 to G - 1, never decreasing.
        starts: the first row of each group, (G,).
    """

    def __init__(self, row_group: Int[np.ndarray, " n"]):
        self.row_group = row_group
        self.starts = np.flatnonzero(np.diff(row_group, prepend=-1))

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def sizes(self) -> Int[np.ndarray, " G"]:
        """The number of rows of each group."""
        return np.diff(self.starts, append=len(self.row_group))

    def total(self, weights: Float[np.ndarray, "B n"], values: np.ndarray | float = 1.0) -> Float[np.ndarray, "B G"]:
        """Return the weighted sum of values over each group; ``values`` have shape (n,) or (B, n)."""
        if len(self) == 1:  # by the fastest functions that sum one group of rows
            if np.ndim(values) == 0:
                return weights.sum(axis=1, keepdims=True) * values
            if np.ndim(values) == 1:
                return (weights @ values)[:, None]
            return np.einsum("bn,bn->b", weights, values)[:, None]
        return np.add.reduceat(weights * values, self.starts, axis=1)

    def spread(self, values: Float[np.ndarray, "... G"]) -> Float[np.ndarray, "... n"]:
        """Return the value of each row's group; (..., 1), to be broadcast, for a single group."""
        if len(self) == 1:
            return values
        return np.repeat(values, self.sizes, axis=-1)

    def sum_before(self, values: Float[np.ndarray, "B n"]) -> Float[np.ndarray, "B n"]:
        """Return the sum of values over the earlier rows of the same group."""
        before = np.cumsum(values, axis=1)
        before -= values
        if len(self) > 1:
            before -= self.spread(before[:, self.starts])
        return before

    def center(self, values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return values minus the mean of their group, exactly 0 in groups of equal values."""
        least = np.minimum.reduceat(values, self.starts)
        mean = np.add.reduceat(values, self.starts) / self.sizes
        is_constant = least == np.maximum.reduceat(values, self.starts)
        return values - np.repeat(np.where(is_constant, least, mean), self.sizes)


def has_dependent_rows(group: np.ndarray | None) -> bool:
    """Return whether a group of a user's table, such as a patient, has several of these rows; (n,) names, or None."""
    return group is not None and len(np.unique(group)) < len(group)


def divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return numerator / denominator, nan where the denominator is not positive."""
    out = np.full(np.broadcast_shapes(np.shape(numerator), np.shape(denominator)), np.nan)
    return np.divide(numerator, denominator, out=out, where=np.asarray(denominator) > np.finfo(float).tiny)


def split_between_ties(values: Float[np.ndarray, " n"], n_parts: int, least: int) -> list[Int[np.ndarray, " k"]]:
    """Return the positions of sorted values in parts of about equal numbers, at least ``least``, if there are so many.

    Equal values stay in one part, so that the parts do not depend on the order of the rows: each end of a part is the
    end of a tie that is nearest to the end of an equal share.
    """
    n = len(values)
    tie_ends = np.append(np.flatnonzero(np.diff(values)) + 1, n)
    ends = [0]
    for share in np.array_split(np.arange(n), n_parts)[1:]:
        end = int(tie_ends[np.abs(tie_ends - share[0]).argmin()])
        if min(end - ends[-1], n - end) >= least:
            ends.append(end)
    return np.split(np.arange(n), ends[1:])


class Ranking:
    """Rows of two classes in the order of a score, by group; rows of equal score are one tie."""

    def __init__(self, positive: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"], groups: RowGroups):
        by_score = np.argsort(score)
        self._order = by_score[np.argsort(groups.row_group[by_score], kind="stable")]
        group = groups.row_group[self._order]
        value = score[self._order]
        begins = np.ones(len(value), bool)
        begins[1:] = (np.diff(group) != 0) | (value[1:] != value[:-1])
        self._positive = positive[self._order]
        self._starts = np.flatnonzero(begins)
        self._ties = RowGroups(group[self._starts])
        is_counted = np.logical_or.reduceat(self._positive, self._starts)  # scores are sums over positive rows
        is_counted[self._ties.starts] = True  # no group is empty
        self._counted = np.flatnonzero(is_counted)
        self._counted_ties = RowGroups(self._ties.row_group[self._counted])

    def score(self, weights: Float[np.ndarray, "B n"]) -> tuple[Float[np.ndarray, "B G"], Float[np.ndarray, "B G"]]:
        """Return the AUC and the average precision of each group.

        The AUC is nan for a group of one class, the average precision for one without positive rows.
        """
        positive, negative = self._sum_ties(weights)
        n_negative = self._ties.total(negative)
        negative_below = self._ties.sum_before(negative)
        ties = self._counted_ties
        positive, negative, negative_below = (
            values.take(self._counted, axis=1) for values in (positive, negative, negative_below)
        )
        n_positive = ties.total(positive)
        true_positives = ties.spread(n_positive) - ties.sum_before(positive)
        flagged = true_positives + (ties.spread(n_negative) - negative_below)
        precision = np.divide(true_positives, flagged, out=np.zeros_like(flagged), where=flagged > 0)
        auc = divide(ties.total(positive, negative_below + negative / 2), n_positive * n_negative)
        return auc, divide(ties.total(positive, precision), n_positive)

    def find_placements(self) -> Float[np.ndarray, " n"]:
        """Return the share of the other class that each row is on the right side of; equal scores count one half.

        The rows are one group with both classes.
        """
        positive, negative = self._sum_ties(np.ones((1, len(self._order))))
        n_negative_below = self._ties.sum_before(negative) + negative / 2
        n_positive_below = self._ties.sum_before(positive) + positive / 2
        of_positive = n_negative_below[0] / negative.sum()
        of_negative = 1 - n_positive_below[0] / positive.sum()
        tie_of_row = np.repeat(np.arange(len(self._starts)), np.diff(self._starts, append=len(self._order)))
        placements = np.empty(len(self._order))
        placements[self._order] = np.where(self._positive, of_positive[tie_of_row], of_negative[tie_of_row])
        return placements

    def _sum_ties(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weight of the positive and of the negative rows of each tie."""
        weight = weights.take(self._order, axis=1)  # faster than an index
        positive = weight * self._positive
        if len(self._starts) < weight.shape[1]:
            weight = np.add.reduceat(weight, self._starts, axis=1)
            positive = np.add.reduceat(positive, self._starts, axis=1)
        return positive, weight - positive
