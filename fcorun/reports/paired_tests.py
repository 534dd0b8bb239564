"""Paired tests of methods: their best points compared seed by seed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from fcorun.reports.problem_values import format_problems, group_problems
from fcorun.reports.repetitions import average_repetitions, pair_replicates
from fcorun.reports.run_table import DataFrame, RunTable, seeds_agree

MIN_SEEDS = 6  # with which a sign-flip test can come below 0.05: 2 / 2^6
_SIGNS = 2**16  # all signs of 16 differences; for more differences, so many random signs are drawn


@dataclass(frozen=True)
class PairedDifferences:
    """Two algorithms on the same problem with the same seeds, each at its best point.

    Attributes:
        problem: the data set, and the values of the keys of data and objective that tell problems apart, as text.
        first, second: the algorithms.
        differences: the metric of ``first`` minus that of ``second`` in each common independent repetition; 0
            where this is rounding of the objectives.
        p_value: the p-value of ``sign_flip_test``. None with fewer than MIN_SEEDS seeds, or if ``are_constant``.
        adjusted_p_value: the p-value adjusted by Holm (1979) for the number of tested pairs.
    """

    problem: str
    first: str
    second: str
    differences: np.ndarray
    p_value: float | None = None
    adjusted_p_value: float | None = None

    @property
    def are_constant(self) -> bool:
        """True if all differences are equal up to rounding: seeds that change nothing count as one."""
        return seeds_agree(self.differences)


def compare_pairs(runs: RunTable, metric: str) -> list[PairedDifferences]:
    """Return each pair of algorithms on each problem, the better one first, with the tests of their differences.

    Pairs that share no seed have no differences. A point that diverged with any seed is not considered; an algorithm
    without a point that is done is in no pair. A baseline that does not depend on a condition is compared under each of
    its values.
    """
    best = runs.best_points(metric)
    best = best.assign(name=name_problems(runs, metric, best))
    best = best[best["seeds"] > 0].assign(cost=lambda row: runs.metrics.sign(metric) * row["metric"])
    replicates = runs.replicates
    values = runs.tail_values(metric)
    resolution = runs.resolution(metric)
    pairs = []
    problems = runs.read_problems(runs.problem_keys(metric), best["runs"])
    name_of_problem = dict(zip(problems, best["name"], strict=True))
    for problem, positions in group_problems(problems).items():
        by_cost = best.iloc[positions].sort_values("cost", kind="stable").to_dict("records")
        for first, second in combinations(by_cost, 2):
            first_values = {replicates[run]: values[run] for run in first["rows"]}
            second_values = {replicates[run]: values[run] for run in second["rows"]}
            by_replicate = {}
            for replicate, (ours, theirs) in pair_replicates(first_values, second_values).items():
                if np.isfinite(ours - theirs):
                    by_replicate[replicate] = ours - theirs
            differences = average_repetitions(by_replicate)
            differences[np.abs(differences) < resolution[[*first["rows"], *second["rows"]]].max()] = 0
            pair = PairedDifferences(name_of_problem[problem], first["algo"], second["algo"], differences)
            if len(differences) >= MIN_SEEDS and not pair.are_constant:
                pair = replace(pair, p_value=sign_flip_test(differences))
            pairs.append(pair)
    # Holm's step-down method: p-values that hold for all pairs together
    tested = [(pair.p_value, i) for i, pair in enumerate(pairs) if pair.p_value is not None]
    adjusted: dict[int, float] = {}
    largest = 0.0
    for rank, (p_value, i) in enumerate(sorted(tested)):
        largest = max(largest, min(1.0, p_value * (len(tested) - rank)))
        adjusted[i] = largest
    return [replace(pair, adjusted_p_value=adjusted.get(i)) for i, pair in enumerate(pairs)]


def name_problems(runs: RunTable, metric: str, best: DataFrame) -> list[str]:
    """Return the problem of each row of best points: the data, and the keys that tell problems apart."""
    keys = runs.problem_keys(metric)
    varied = [key for key in keys if key == "data" or best[key].nunique(dropna=False) > 1]
    names = []
    for texts in format_problems(runs.read_problems(varied, best["runs"])):
        named = [(key, text) for key, text in zip(varied, texts, strict=True) if text]
        names.append(", ".join(text if key == "data" else f"{key}={text}" for key, text in named))
    return names


def sign_flip_test(differences: np.ndarray) -> float:
    """Return the two-sided p-value of no difference: how often random signs give a mean as far from 0.

    All 2^n signs are tried for up to 16 differences (n,) (Fisher 1935, section 21). The only assumption is that a
    difference is as likely to be positive as negative.
    """
    from scipy.stats import permutation_test

    scaled = differences / (np.abs(differences).sum() or 1.0)

    def statistic(signed: np.ndarray, axis: int) -> np.ndarray:
        return signed.sum(axis).round(9)  # equal sums may be rounded differently

    test = permutation_test((scaled,), statistic, permutation_type="samples", n_resamples=_SIGNS, rng=0)
    return float(test.pvalue)


def smallest_p_value(seeds: Sequence[int]) -> float:
    """Return the least p-value, adjusted by Holm, that tests of pairs with these numbers of seeds can give."""
    return min(1.0, len(seeds) * 2 / min(2 ** max(seeds), _SIGNS))
