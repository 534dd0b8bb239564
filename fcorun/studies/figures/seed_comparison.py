"""Comparison of metrics that were measured with a few seeds, and of rounds to a target, known by bounds."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fcorun.base.errors import UserError
from fcorun.reports.repetitions import Replicate, average_repetitions, pair_replicates
from fcorun.reports.run_table import ROUNDING_TOLERANCE

UNCLEAR = "not distinguishable"
UNDECIDED = "not decided"  # holds in every seed that both algorithms have, but some seeds diverged or failed
SeedValues = dict[Any, float]  # by replicate; the key None is for a value that does not depend on the seed


def collect_by_seed(algos: Iterable[str], seeds: Iterable[Any], values: Iterable[float]) -> dict[str, SeedValues]:
    """Return the values of each algorithm by seed. Raises UserError for other values of one algorithm and seed."""
    collected: dict[str, SeedValues] = {}
    for algo, seed, value in zip(algos, seeds, values, strict=True):
        known = collected.setdefault(algo, {}).setdefault(seed, float(value))
        if not np.isclose(known, value, rtol=ROUNDING_TOLERANCE, atol=0, equal_nan=True):
            raise UserError(f"figure: {algo} has several runs with the seeds {seed}: let its runs differ in seed or "
                            "data.seed")  # fmt: skip
    return collected


def by_replicate(values: SeedValues) -> dict[Replicate, float]:
    """Return values by the tuples of their seeds."""
    return {seed if isinstance(seed, tuple) else (seed,): value for seed, value in values.items()}


def average_seeds(values: SeedValues) -> np.ndarray:
    """Return the mean over the seeds of each independent repetition (n,), as ``average_repetitions``."""
    return average_repetitions(by_replicate(values))


def compare(
    ours: SeedValues, theirs: SeedValues, sign: int, kind: str = "seeds", *, resolution: float = 0.0
) -> tuple[str, str]:
    """Return whether ``ours`` are above (``sign`` 1) or below (-1) ``theirs``, and the test by which they are compared.

    The answer is "yes" if ours are on that side of theirs in every comparison, "no" if ours are on the other side in
    every one, else "not distinguishable"; or "not measured". Numbers that are equal up to rounding are not
    distinguishable, nor are those that differ by at most the ``resolution`` of their metric.

    If both depend on the seed, values of the same seed are compared. With fewer than two common seeds out of several
    the answer is "not distinguishable". Of several seeds of cohorts on the same data the means are compared
    (``group_repetitions``). A value that does not depend on the seed, under the key None, is compared with each value
    of the other, and so are two single values, whatever their seeds. ``kind`` names the seeds in the test, such as
    "seeds of data".
    """
    if None in ours or None in theirs or max(len(ours), len(theirs)) < 2:
        our_means = average_seeds(ours)
        their_means = average_seeds(theirs)
        pairs = [(a, b) for a in our_means for b in their_means]
        n_seeds = max(len(our_means), len(their_means))
        test = f"in each of {n_seeds} {kind}" if n_seeds > 1 else "one number against another"
    else:
        pairs_by_seed = pair_replicates(by_replicate(ours), by_replicate(theirs))
        if ours and theirs and not pairs_by_seed:
            return UNCLEAR, f"no common {kind}"
        first = average_repetitions({seed: a for seed, (a, _) in pairs_by_seed.items()})
        second = average_repetitions({seed: b for seed, (_, b) in pairs_by_seed.items()})
        pairs = [*zip(first, second, strict=True)]
        if len(pairs_by_seed) == max(len(ours), len(theirs)):
            seeds = f"{len(pairs)} {kind}"
        else:
            words = kind.split(" ")
            if len(pairs) == 1:
                words[0] = words[0].removesuffix("s")
            seeds = f"the {len(pairs)} common {' '.join(words)}"
        test = f"the same sign in each of {seeds}"
        if len(pairs) == 1:
            return UNCLEAR, f"{test}: too few"
    if not pairs or np.isnan(pairs).any():
        return "not measured", ""
    signs = set()
    for a, b in pairs:
        if a == b or np.isclose(a, b, rtol=ROUNDING_TOLERANCE, atol=resolution):
            signs.add(0)
        else:
            signs.add(sign if a > b else -sign)
    if signs == {1}:
        return "yes", test
    return ("no" if signs == {-1} else UNCLEAR), test


def compare_bounds(
    ours: tuple[SeedValues, SeedValues],
    theirs: tuple[SeedValues, SeedValues],
    sign: int,
    kind: str = "seeds",
    *,
    resolution: float = 0.0,
) -> tuple[str, str]:
    """Compare values that are known by a lower and an upper bound, as ``compare`` does numbers.

    The answer is "yes" or "no" only if it is the same wherever the values lie between their bounds.
    """
    least, most = (0, 1) if sign > 0 else (1, 0)
    worst_case, test = compare(ours[least], theirs[most], sign, kind, resolution=resolution)
    best_case, _ = compare(ours[most], theirs[least], sign, kind, resolution=resolution)
    if worst_case == best_case:
        return worst_case, test
    return UNCLEAR, f"{test}; evaluations too far apart"


class RoundsToTarget(NamedTuple):
    """Bounds on the round from which on a run stays at a target.

    Attributes:
        earliest: the round after the last evaluation that is not at the target; infinite if the run never reaches it.
        latest: the round of the first evaluation from which on every evaluation is at the target.
    """

    earliest: float
    latest: float

    def __str__(self) -> str:
        if np.isnan(self.latest):
            return "unknown"
        if np.isinf(self.latest):
            return "never"
        if self.earliest == self.latest:
            return f"{self.latest:,g}"
        return f"more than {self.earliest - 1:,g}, at most {self.latest:,g}"


def find_rounds_to_target(rounds: Sequence[float], at_target: Sequence[bool]) -> RoundsToTarget:
    """Find the round of a target from the rounds of the evaluations and whether each of them is at the target.

    A target that a run leaves again does not count as reached.
    """
    stays_at_target = np.logical_and.accumulate(np.asarray(at_target, bool)[::-1])[::-1]
    if not stays_at_target.any():
        return RoundsToTarget(np.inf, np.inf)
    first = int(np.argmax(stays_at_target))
    earliest = rounds[first - 1] + 1.0 if first else float(rounds[0])
    return RoundsToTarget(earliest, float(rounds[first]))


def verdict_row(
    algo: str, says: str, measured: str, wanted: str, holds: bool | str | None, *, test: str = "", lost: str = ""
) -> dict[str, str]:
    """Return a row of claims.csv about what a paper says; ``holds`` is None if it was not measured.

    What holds is not decided if seeds were ``lost``, as this note says.
    """
    answers = {True: "yes", False: "no", None: "not measured"}
    answer = holds if isinstance(holds, str) else answers[holds]
    if lost and answer == "yes":
        answer, test = UNDECIDED, ""
    return {
        "algo": algo,
        "says": says,
        "measured": measured,
        "wanted": wanted,
        "holds": answer,
        "test": test,
        "note": lost,
    }


def compare_measured(seed_kind: str, algo: str, says: str, larger: SeedValues, smaller: SeedValues) -> dict[str, str]:
    """Return a row of claims.csv on whether one number is above another in each seed, in none, or in some.

    A seed of which either number is NaN, as of a failed run, is lost.
    """
    seeds = {*larger, *smaller}
    lost = {seed for seed in seeds if np.isnan([larger.get(seed, 0.0), smaller.get(seed, 0.0)]).any()}
    larger = {seed: value for seed, value in larger.items() if seed not in lost}
    smaller = {seed: value for seed, value in smaller.items() if seed not in lost}
    holds, test = compare(larger, smaller, 1, seed_kind)
    measured = ""
    if larger and smaller:
        measured = f"{np.median(average_seeds(larger)):.4g} and {np.median(average_seeds(smaller)):.4g}"
    note = f"{len(lost)} of {len(seeds)} {seed_kind} lost" if lost else ""
    return verdict_row(algo, says, measured, "the first above the second", holds, test=test, lost=note)
