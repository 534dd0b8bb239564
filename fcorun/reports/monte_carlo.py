"""Means over the replicates of a simulation study with their Monte Carlo standard errors, and paired differences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Any

import numpy as np

from fcorun.reports.byte_cap import find_whole_replicates
from fcorun.reports.problem_values import format_problems, group_problems
from fcorun.reports.repetitions import Replicate, average_repetitions, draws_nothing, pair_replicates
from fcorun.reports.run_table import ROUNDING_TOLERANCE, DataFrame, RunTable

_MAX_NAMED = 5  # replicates
_EQUAL = 1e-12  # a share of the mean; an error below it is rounding of equal values


@dataclass(frozen=True)
class Estimate:
    """A mean over replicates.

    Attributes:
        mean: the mean.
        error: its Monte Carlo standard error, the standard deviation over the replicates by the root of their number;
            nan of a single one.
        count: the number of independent replicates: those of the data where these vary, each the mean of its seeds.
    """

    mean: float
    error: float
    count: int

    def __str__(self) -> str:
        """Return the mean to the second digit of its error, with the error: 0.8125 (0.0021)."""
        if self.count < 2:
            return f"{self.mean:.4g}" if self.count else ""
        decimals = 1 - int(np.floor(np.log10(self.error))) if self.error > 0 else -1
        if not 0 <= decimals <= 8:
            return f"{self.mean:.4g} ({self.error:.2g})"
        return f"{self.mean:.{decimals}f} ({self.error:.{decimals}f})"


@dataclass(frozen=True)
class MethodMeans:
    """The best point of a method on a problem, with its means over replicates.

    Attributes:
        point: the point, as a row of ``RunTable.fold_seeds``.
        values: the metric by which points are compared, of each replicate that is done.
        estimates: the mean of each shown metric.
        bytes_up: the mean of the bytes that a replicate sends up, of all points of the method on the problem, over the
            replicates that lack none of these points.
        lacking: the number of replicates that do.
        lost: the replicates that are not done, by their status.
    """

    point: Mapping[str, Any]
    values: Mapping[Replicate, float]
    estimates: Mapping[str, Estimate]
    bytes_up: Estimate
    lacking: int
    lost: Mapping[str, Sequence[Replicate]]


@dataclass(frozen=True)
class PairMeans:
    """The difference between two methods on a problem, paired by replicate.

    Attributes:
        problem: the values of the keys that tell problems apart, as text (``format_problems``).
        first, second: the methods, the better one first.
        difference: the mean of the differences of common replicates.
        unpaired: the number of replicates that only the first and only the second method has.
    """

    problem: Mapping[str, str]
    first: MethodMeans
    second: MethodMeans
    difference: Estimate
    unpaired: tuple[int, int]


def estimate_mean(values: Mapping[Replicate, float]) -> Estimate:
    """Return the mean over independent repetitions; nan without any."""
    if not values:
        return Estimate(np.nan, np.nan, 0)
    means = average_repetitions(values)
    mean = float(means.mean())
    error = float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else np.nan
    if error < _EQUAL * abs(mean):
        error = 0.0
    return Estimate(mean, error, len(means))


def estimate_methods(runs: RunTable, metric: str, shown: Sequence[str] = ()) -> list[MethodMeans]:
    """Return the means of each method on each problem, in the order of the table, at its best point by ``metric``.

    The best point is that of the best mean, which is shown; the median of a table may prefer another one. Points that
    have lost more replicates than another one, for any reason, are not compared, and ``lost`` names the replicates. A
    method that has lost all replicates has no mean.
    """
    points = runs.fold_seeds(metric)
    keys = ["algo", *runs.problem_keys(metric)]
    best_rows = {tuple(row["rows"]) for row in runs.best_points(metric).to_dict("records")}
    replicates = runs.replicates
    statuses = runs.frame["status"].tolist()
    tails = {name: runs.tail_values(name) for name in dict.fromkeys((metric, *shown))}
    sent = np.nan_to_num(runs.column("bytes_up"))
    methods = []
    for _, group in points.groupby(keys, sort=False, dropna=False):
        point = _choose_point(runs, metric, group, best_rows)
        lost: dict[str, list[Replicate]] = {}
        done = []
        for run in point["runs"]:
            if statuses[run] == "done" and np.isfinite(tails[metric][run]):
                done.append(run)
            else:
                status = "without a finite value" if statuses[run] == "done" else statuses[run]
                lost.setdefault(status, []).append(replicates[run])
        values = {name: {replicates[run]: float(tail[run]) for run in done} for name, tail in tails.items()}
        sums: dict[Replicate, float] = {}
        for run in chain(*group["runs"]):
            sums[replicates[run]] = sums.get(replicates[run], 0.0) + sent[run]
        whole = find_whole_replicates(runs, group)
        bytes_up = estimate_mean({replicate: total for replicate, total in sums.items() if replicate in whole})
        estimates = {name: estimate_mean(values[name]) for name in values}
        lacking = len(sums) - len(whole)
        means = MethodMeans(point, values[metric], estimates, bytes_up=bytes_up, lacking=lacking, lost=lost)
        methods.append(means)
    return methods


def _choose_point(runs: RunTable, metric: str, points: DataFrame, best_rows: set[tuple]) -> dict[str, Any]:
    """Return the point of a method on a problem with the best mean; the first one if no replicate of any is done.

    The means compared are those of points with the most replicates, since the mean of a few may be best by luck: of
    these, points that did not diverge, if there are any. Among means that are equal to rounding the point of
    ``best_rows`` is taken, those of ``RunTable.best_points``.
    """
    rows = points.to_dict("records")
    most = max(row["done"] for row in rows)
    if not most:
        return rows[0]
    complete = [row for row in rows if row["done"] == most]
    done = [row for row in complete if row["status"] == "done"] or complete
    tails = runs.tail_values(metric)
    statuses = runs.frame["status"].tolist()
    replicates = runs.replicates
    means = []
    for row in done:
        finished = [run for run in row["runs"] if statuses[run] == "done" and np.isfinite(tails[run])]
        means.append(estimate_mean({replicates[run]: float(tails[run]) for run in finished}).mean)
    best = int(np.argmin(runs.metrics.sign(metric) * np.array(means)))
    resolution = runs.resolution(metric)[done[best]["runs"]].max(initial=0)
    are_tied = np.isclose(means, means[best], rtol=ROUNDING_TOLERANCE, atol=resolution)
    tied = [row for row, is_tied in zip(done, are_tied, strict=True) if is_tied]
    return next((row for row in tied if tuple(row["rows"]) in best_rows), done[best])


def estimate_pairs(runs: RunTable, metric: str, methods: Sequence[MethodMeans]) -> list[PairMeans]:
    """Return the paired difference of each two methods on the same problem, the better one first.

    A baseline that does not depend on a condition is compared under each of its values.
    """
    keys = runs.problem_keys(metric)
    measured = [method for method in methods if method.values]
    groups = group_problems(runs.read_problems(keys, [method.point["runs"] for method in measured]))
    pairs = []
    for problem, positions in zip(format_problems([*groups]), groups.values(), strict=True):
        group = [measured[position] for position in positions]
        ranked = sorted(group, key=lambda method: runs.metrics.sign(metric) * method.estimates[metric].mean)
        for first, second in combinations(ranked, 2):
            values_of_pair = pair_replicates(first.values, second.values)
            if not values_of_pair:
                continue
            unpaired = [0, 0]
            for i, values in enumerate((first.values, second.values)):
                if not draws_nothing(values):
                    unpaired[i] = len(values) - len(values_of_pair)
            estimate = estimate_mean({replicate: a - b for replicate, (a, b) in values_of_pair.items()})
            values_of_key = dict(zip(keys, problem, strict=True))
            pairs.append(PairMeans(values_of_key, first, second, estimate, (unpaired[0], unpaired[1])))
    return pairs


def describe_lost(runs: RunTable, method: MethodMeans) -> list[str]:
    """Return a sentence for each status of lost replicates, which names them."""
    keys = runs.seeds_on(method.point["data"])
    conditions = [key for key in runs.condition_keys if runs.frame[key].nunique(dropna=False) > 1]
    (values,) = format_problems(runs.read_problems(conditions, [method.point["runs"]]), digits=15)
    total = len(method.point["runs"])
    sentences = []
    for status, replicates in method.lost.items():
        named = [" ".join(f"{key}={value}" for key, value in zip(keys, r, strict=True)) for r in replicates]
        if len(named) > _MAX_NAMED:
            named[_MAX_NAMED:] = [f"{len(named) - _MAX_NAMED} more"]
        names = f" ({', '.join(named)})" if keys else ""
        consequence = "the mean is over the others" if method.values else "there is no mean"
        place = "".join(f", {key}={text}" for key, text in zip(conditions, values, strict=True) if text)
        count = f"{len(replicates)} of {total} replicates"
        sentences.append(f"{method.point['algo']}{place}: {count} {status}{names}: {consequence}")
    return sentences
