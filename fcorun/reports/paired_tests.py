"""Whether methods differ: their best points compared seed by seed."""

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from fcorun.reports.run_table import SEED_KEYS, RunTable, column_values
from fcorun.reports.seed_bands import seeds_agree

MIN_SEEDS = 6  # seeds with which a test that flips signs can come below 0.05: 2 / 2^6
_EXACT = 18  # up to so many seeds all signs are tried, from there on 2^18 at random


@dataclass(frozen=True)
class PairedDifferences:
    """Two algorithms on the same data with the same seeds, each at its best point.

    Attributes:
        data: what they were compared on: the data, and psi where the metric depends on it.
        differences: the metric of ``first`` less that of ``second``, a value a seed.
        p: of the test of ``sign_flips``, None with fewer than ENOUGH seeds, or where ``copies``.
        adjusted: p by Holm (1979), for as many pairs as were tested.
    """

    problem: str
    first: str
    second: str
    differences: np.ndarray
    p_value: float | None = None
    adjusted_p_value: float | None = None

    @property
    def are_constant(self) -> bool:
        """Whether all differences are the same to rounding: seeds that change nothing are one."""
        return seeds_agree(self.differences)


def compare_pairs(runs: RunTable, metric: str) -> list[PairedDifferences]:
    """Each pair of algorithms on each data set, the better one first; those that share no seed have no differences.

    An algorithm that diverged at its best point with some seed, or has no point that is done, is in no pair.
    """
    best = runs.best_points(metric)
    best = best[best["seeds"] > 0].assign(cost=lambda row: runs.metrics.sign(metric) * row["metric"])
    names = [name for name in SEED_KEYS if name in runs.frame]
    seeds = list(zip(*(column_values(runs.frame[name]) for name in names), strict=True)) or [()] * len(runs)
    values, found = runs.tail_values(metric), []
    apart = runs.problem_keys(metric)  # only what is compared by the metric at all
    for _, own in best.groupby(apart, sort=False, dropna=False):
        on = own[[key for key in apart if key == "data" or best[key].nunique(dropna=False) > 1]].iloc[0]
        data = ", ".join(str(value) if key == "data" else f"{key}={value}" for key, value in on.items())
        ordered = own.sort_values("cost", kind="stable").to_dict("records")
        for first, second in combinations(ordered, 2):
            a, b = ({seeds[place]: values[place] for place in row["rows"]} for row in (first, second))
            differences = np.array([a[seed] - b[seed] for seed in a if seed in b])
            differences = differences[np.isfinite(differences)]
            pair = PairedDifferences(data, first["algo"], second["algo"], differences)
            tested = len(differences) >= MIN_SEEDS and not pair.are_constant
            found.append(replace(pair, p=sign_flip_test(differences)) if tested else pair)
    return _adjusted(found)


def sign_flip_test(differences: np.ndarray) -> float:
    """The two-sided p of no difference: how often signs drawn at random make a mean as far from 0 as this one.

    Exact, all 2^n signs are tried, up to 18 differences (n,); Fisher (1935), section 21. Nothing is assumed but that a
    difference is as likely to be positive as negative.
    """
    if len(differences) <= _EXACT:
        sums = np.zeros(1)
        for value in differences:
            sums = np.concatenate([sums + value, sums - value])
        more = 0
    else:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (2**_EXACT, len(differences)))
        sums, more = signs @ differences, 1  # the signs that were found count as one draw
    far = np.abs(sums) >= abs(differences.sum()) - 1e-9 * np.abs(differences).sum()  # equal sums, differently rounded
    return float((far.sum() + more) / (len(sums) + more))


def _adjusted(found: list[PairedDifferences]) -> list[PairedDifferences]:
    """The pairs with the p that holds for all of them together."""
    tested = sorted((pair for pair in found if pair.p_value is not None), key=lambda pair: pair.p_value or 0.0)
    least, by = 0.0, {}
    for place, pair in enumerate(tested):
        least = max(least, min(1.0, (pair.p_value or 0.0) * (len(tested) - place)))
        by[id(pair)] = least
    return [replace(pair, adjusted_p_value=by.get(id(pair))) for pair in found]
