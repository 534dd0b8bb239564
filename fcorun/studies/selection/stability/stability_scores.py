"""Stability selection: features that are chosen on many random halves of the rows.

Meinshausen and Buehlmann, Stability selection (J. R. Stat. Soc. B 2010); with complementary pairs of halves, Shah and
Samworth, Variable selection with error control (J. R. Stat. Soc. B 2013).
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from fcorun.studies.selection.stability.bounds import Assumption, bound_false_selections


@dataclass(frozen=True, repr=False)
class StabilityScores:
    """Selection frequencies of d features on the halves, the bound on false selections, and the stable features.

    Attributes:
        frequency: the share of the halves on which each feature is chosen at each value of the path, (P, d); NaN for
            features that are not penalized.
        region_length: the number of values, from the beginning of the path, for which the bound holds (at least 1).
        q: for each value, the number of features that a half has chosen at this or an earlier value, averaged over the
            halves, (P,).
        bound: the bound on the expected number of false selections, if the region ended at each value, (P,).
        max_frequency: the largest frequency of each feature in the region, (d,); NaN for features that are not
            penalized.
        stable: the features whose largest frequency is at least the threshold, (d,).
    """

    frequency: Float[np.ndarray, "P d"]
    region_length: int
    q: Float[np.ndarray, " P"]
    bound: Float[np.ndarray, " P"]
    max_frequency: Float[np.ndarray, " d"]
    stable: Bool[np.ndarray, " d"]

    def __repr__(self) -> str:
        return f"StabilityScores({len(self.stable)} features, {np.sum(self.stable)} stable)"

    @property
    def unpenalized(self) -> Bool[np.ndarray, " d"]:
        """The features that are not penalized, (d,)."""
        return np.isnan(self.max_frequency)


def score_features(
    chosen: Bool[np.ndarray, "S P d"],
    threshold: float,
    max_errors: float,
    unpenalized: Bool[np.ndarray, " d"] | None = None,
    assumption: Assumption = "none",
) -> StabilityScores:
    """Score features by their selection on S halves at P values, ordered from the simplest solution.

    A feature is stable if, at some value of the region, the share of halves that choose it is at least ``threshold``,
    which must exceed 1/2. The region is the longest beginning of the path for which the bound on false selections under
    the ``assumption`` is at most ``max_errors``; the region has at least one value. In q, a half counts each feature
    that it chooses anywhere in the region. ``unpenalized`` features always have a coefficient: they are neither chosen
    nor counted, in q and in the bound.
    """
    unpenalized = np.zeros(chosen.shape[2], bool) if unpenalized is None else unpenalized
    n_penalized = int((~unpenalized).sum())
    frequency = np.where(unpenalized, np.nan, chosen.mean(axis=0))
    chosen_so_far = np.logical_or.accumulate(chosen[:, :, ~unpenalized], axis=1)
    q = chosen_so_far.sum(axis=2).mean(axis=0)
    bound = bound_false_selections(q, n_penalized, threshold, len(chosen) // 2, assumption)
    holds_so_far = np.logical_and.accumulate(bound <= max_errors)
    region_length = max(int(holds_so_far.sum()), 1)
    max_frequency = frequency[:region_length].max(axis=0)
    return StabilityScores(
        frequency=frequency,
        region_length=region_length,
        q=q,
        bound=bound,
        max_frequency=max_frequency,
        stable=max_frequency >= threshold - 1e-12,
    )


def compute_jaccard(supports: Bool[np.ndarray, "M d"]) -> Float[np.ndarray, "M M"]:
    """Compute the Jaccard index |A and B| / |A or B| of every two supports; NaN if both are empty."""
    members = supports.astype(np.float64)
    sizes = members.sum(axis=1)
    intersection = members @ members.T
    union = sizes[:, None] + sizes[None] - intersection
    return np.divide(intersection, union, out=np.full(union.shape, np.nan), where=union > 0)
