"""Stability selection: which features are chosen again and again on halves of the rows.

Meinshausen and Buehlmann, Stability selection (J. R. Stat. Soc. B 2010); with complementary pairs of halves, Shah and
Samworth, Variable selection with error control (J. R. Stat. Soc. B 2013).
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float


@dataclass(frozen=True)
class StabilityScores:
    """What the halves say of d features.

    Attributes:
        frequency: the share of the halves on which each feature is chosen at each value of the path, (P, d); NaN of
            features that are not penalised.
        region: how many values of the path are looked at, from its beginning.
        q: features chosen on a half, on average, at any value of the path up to each, (P,).
        bound: on the expected number of false selections, were the region to end at each value, (P,).
        most: the largest frequency of each feature in the region, (d,); NaN of those that are not penalised.
        stable: the features for which that is at least the threshold, (d,).
    """

    frequency: Float[np.ndarray, "P d"]
    region_length: int
    q: Float[np.ndarray, " P"]
    bound: Float[np.ndarray, " P"]
    max_frequency: Float[np.ndarray, " d"]
    stable: Bool[np.ndarray, " d"]

    @property
    def unpenalised(self) -> Bool[np.ndarray, " d"]:
        """The features that are not penalised, (d,)."""
        return np.isnan(self.max_frequency)


def score_features(
    chosen: Bool[np.ndarray, "S P d"],
    threshold: float,
    errors: float,
    unpenalised: Bool[np.ndarray, " d"] | None = None,
) -> StabilityScores:
    """Stability selection by what was chosen on S halves at P values, the simplest solution first.

    A feature is stable if at some value of the region it is chosen on a share of the halves of at least ``threshold``,
    which is over 1/2. The region is the longest beginning of the path for which q^2 / ((2 threshold - 1) d), theorem 1
    of Meinshausen and Buehlmann, is at most ``errors``; it has one value at least. By theorem 1 of Shah and Samworth
    the same number bounds, without further assumptions, how many stable features are expected whose chance of being
    chosen on a half is at most q / d. Features that are ``free`` of any penalty are always there, and neither chosen
    nor counted in d and q.
    """
    unpenalised = np.zeros(chosen.shape[2], bool) if unpenalised is None else unpenalised
    features = int((~unpenalised).sum())
    frequency = np.where(unpenalised, np.nan, chosen.mean(axis=0))
    q = np.logical_or.accumulate(chosen[:, :, ~unpenalised], axis=1).sum(axis=2).mean(axis=0)
    bound = q**2 / ((2 * threshold - 1) * features)
    region = max(int((bound <= errors).sum()), 1)  # q grows along the path
    most = frequency[:region].max(axis=0)
    stable = most >= threshold - 1e-12
    return StabilityScores(
        frequency=frequency, region_length=region, q=q, bound=bound, max_frequency=most, stable=stable
    )


def compute_jaccard(supports: Bool[np.ndarray, "M d"]) -> Float[np.ndarray, "M M"]:
    """|A and B| / |A or B| of each two supports; NaN where both are empty."""
    sizes = supports.astype(np.float64)
    both = sizes @ sizes.T
    either = sizes.sum(axis=1)[:, None] + sizes.sum(axis=1)[None] - both
    return np.divide(both, either, out=np.full(both.shape, np.nan), where=either > 0)
