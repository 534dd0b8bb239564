"""Scores of stability selection: features, or groups of features, that are chosen on many random halves of the rows.

Meinshausen and Buehlmann, Stability selection (J. R. Stat. Soc. B 2010); with complementary pairs of halves, Shah and
Samworth, Variable selection with error control (J. R. Stat. Soc. B 75(1), 2013), whose bounds on the expected number of
false selections are computed. d features are chosen or not on each half of B complementary pairs. q is the expected
number that a half chooses, and theta = q / d. A feature is stable if the share of the 2B halves that choose it is at
least a threshold tau. The bounds are on the expected number of stable features whose probability of being chosen on a
half is at most theta.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from fcorun.methods.regularizers.regularizer import Regularizer


@dataclass(frozen=True, eq=False)
class SelectionUnits:
    """The units that a half chooses or not: d features, or U groups of features.

    Attributes:
        names: the names of the U units.
        unit_of: the unit of each feature, (d,).
        unpenalized: the units without a penalty, (U,).
        are_groups: whether the regularizer keeps or drops the features of a unit together.
    """

    names: Sequence[str]
    unit_of: Int[np.ndarray, " d"]
    unpenalized: Bool[np.ndarray, " U"]
    are_groups: bool

    @classmethod
    def of_regularizer(cls, reg: Regularizer, feature_names: Sequence[str]) -> "SelectionUnits":
        """Return the groups of a regularizer that was attached to named groups; the features for any other."""
        factors = reg.factors or {}
        is_free = np.array([factors.get(str(j)) == 0 for j in range(len(feature_names))])
        group_of = getattr(reg, "group_of", None)
        if group_of is None:
            return cls(feature_names, np.arange(len(feature_names)), is_free, are_groups=False)
        names: Sequence[str] = reg.names  # type: ignore[attr-defined]
        unpenalized = np.bincount(group_of, is_free, len(names)) > 0  # all features of a group have one factor
        return cls(names, group_of, unpenalized, are_groups=True)

    @property
    def noun(self) -> str:
        """The units in words."""
        return "groups of features" if self.are_groups else "features"

    def merge(self, chosen: Bool[np.ndarray, "*n d"]) -> Bool[np.ndarray, "*n U"]:
        """Return which units are chosen: those with a chosen feature."""
        if not self.are_groups:
            return chosen
        return np.stack([chosen[..., self.unit_of == unit].any(axis=-1) for unit in range(len(self.names))], axis=-1)


Assumption = Literal["none", "unimodal", "r_concave"]
_R_OF_PAIRS, _R_OF_HALVES = -1 / 2, -1 / 4  # the paper's choice
_GRID_POINTS = 400
_REFINEMENTS = 4
_SMALLEST_SHIFT, _LARGEST_SHIFT = 1e-9, 1e6


def bound_false_selections(
    q: Float[np.ndarray, " P"], n_features: int, threshold: float, n_pairs: int, assumption: Assumption
) -> Float[np.ndarray, " P"]:
    """Return the bound for each expected number ``q`` of features that a half chooses, (P,).

    No bound exceeds that of "none". A bound under an assumption whose conditions a value of q does not meet is that of
    the weaker assumption.
    """
    steps = math.ceil(2 * n_pairs * threshold - 1e-9)  # the halves that must choose a stable feature
    bound = q**2 / ((2 * threshold - 1) * n_features)
    if assumption == "none":
        return bound
    theta = q / n_features
    constants = np.array([_compute_unimodal_constant(share, steps, n_pairs) for share in theta])
    bound = np.fmin(bound, constants * q**2 / n_features)
    if assumption == "r_concave":
        # A stable feature is chosen by both halves of a share 2 tau - 1 of the pairs at least, and by a share tau of
        # the halves. The shares have means theta^2 and theta.
        for i, share in enumerate(theta):
            both = compute_tail(share**2, steps - n_pairs, n_pairs, _R_OF_PAIRS)
            single = compute_tail(share, steps, 2 * n_pairs, _R_OF_HALVES)
            bound[i] = np.minimum(bound[i], min(both, single) * n_features)
    return bound


def _compute_unimodal_constant(theta: float, steps: int, n_pairs: int) -> float:
    """Return the factor of q^2 / d in theorem 2; NaN if the theorem has no bound for this share and threshold."""
    tau = steps / (2 * n_pairs)
    smallest = 0.5 + min(theta**2, 1 / (2 * n_pairs) + 0.75 * theta**2)
    if theta > 1 / math.sqrt(3) or steps < n_pairs + 2 or tau <= smallest:
        return math.nan
    if tau <= 0.75:
        return 1 / (2 * (2 * tau - 1 - 1 / (2 * n_pairs)))
    return 4 * (1 - tau + 1 / (2 * n_pairs)) / (1 + 1 / n_pairs)


def compute_tail(mean: float, steps: int, n_points: int, r: float) -> float:
    """Compute D(mean, steps / n_points, n_points, r), the largest upper tail of an r-concave distribution.

    The distributions are on 0, 1 / n_points, ..., 1, and have this mean. In the one with the largest tail the masses
    of 0, ..., k are proportional to (shift + i)^(1 / r), and k + 1 has the mass that gives the mean. The support grows
    as the shift falls, so that the shift alone remains to be chosen: on a grid, refined around the best point.
    Returns 1 if ``steps`` is at most twice the mean, where the tail has another form.
    """
    target = mean * n_points
    if mean <= 0:
        return 0.0
    if steps < math.ceil(2 * target) + 1:
        return 1.0
    low, high = _find_smallest_shift(target, n_points, r), _LARGEST_SHIFT
    for _ in range(_REFINEMENTS):
        shifts = np.geomspace(low, high, _GRID_POINTS)
        mass, moment = _sum_masses(shifts, n_points, r)
        k = (moment <= target * mass).sum(axis=1) - 1
        k = np.minimum(k, n_points - 1)
        each = np.arange(len(shifts))
        below = mass[each, np.minimum(steps - 1, k)]
        total = ((k + 1) * mass[each, k] - moment[each, k]) / (k + 1 - target)
        tails = np.where(k + 1 >= steps, 1 - below / total, 0.0)  # the probability of ``steps`` or more, (A,)
        best = int(tails.argmax())
        low, high = shifts[max(best - 1, 0)], shifts[min(best + 1, _GRID_POINTS - 1)]
    return float(tails[best])


def _find_smallest_shift(target: float, n_points: int, r: float) -> float:
    """Find the shift at which the masses of 0, ..., n_points have the mean ``target`` by themselves, by bisection."""
    low, high = _SMALLEST_SHIFT, _LARGEST_SHIFT
    while high / low > 1 + 1e-12:
        middle = math.sqrt(low * high)
        mass, moment = _sum_masses(np.array([middle]), n_points, r)
        if moment[0, -1] < target * mass[0, -1]:
            low = middle
        else:
            high = middle
    return high


def _sum_masses(
    shifts: Float[np.ndarray, " A"], n_points: int, r: float
) -> tuple[Float[np.ndarray, "A K"], Float[np.ndarray, "A K"]]:
    """Return the summed masses of 0, ..., k and their first moments, for each shift and each k up to n_points."""
    points = np.arange(n_points + 1)
    masses = (1 + points / shifts[:, None]) ** (1 / r)
    return masses.cumsum(axis=1), (points * masses).cumsum(axis=1)


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
