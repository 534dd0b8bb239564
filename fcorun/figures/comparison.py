"""Whether what was measured with a few seeds is above or below something."""

from typing import Any

import numpy as np

from fcorun.reports.seed_bands import ROUNDING_TOLERANCE

UNCLEAR = "not distinguishable"
TIE_TOLERANCE = (
    1e-3  # our choice: of one seed, metrics that differ by less than this share of the larger are not told apart
)
SeedValues = dict[Any, float]  # by seed, or one without


def compare(ours: SeedValues, theirs: SeedValues, sign: int, kind: str = "seeds") -> tuple[str, str]:
    """Whether ours are above (``sign`` 1) or below (-1) theirs: yes, no, or not distinguishable; and by what test.

    Of two algorithms that depend on the seed, the values with the same seed are compared, and it must be so in each of
    these; where only one seed is common to several, nothing can be told. What does not depend on it, a number or a
    value with the seed None, is compared with each value of the other. Equal numbers cannot be told apart. ``kind``
    says what the seeds are of, "seeds of data".
    """
    seeds = max(len(ours), len(theirs))
    if None in ours or None in theirs or seeds < 2:
        pairs = [(a, b) for a in ours.values() for b in theirs.values()]
        test = f"in each of {seeds} {kind}" if seeds > 1 else "one number against another"
    else:
        pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
        common = f"{len(pairs)} common {kind if len(pairs) != 1 else kind.replace('seeds', 'seed')}"
        test = f"the same sign in each of {f'{seeds} {kind}' if set(ours) == set(theirs) else f'the {common}'}"
        if len(pairs) < 2 and ours and theirs:
            return UNCLEAR, f"{test}: too few"
    if not pairs or np.isnan(pairs).any():
        return "not measured", ""
    signs = {
        0 if a == b or np.isclose(a, b, rtol=ROUNDING_TOLERANCE, atol=0) else sign * (1 if a > b else -1)
        for a, b in pairs
    }
    return ("yes" if signs == {1} else "no" if signs == {-1} else UNCLEAR), test


def compare_bounds(
    ours: tuple[SeedValues, SeedValues], theirs: tuple[SeedValues, SeedValues], sign: int, kind: str = "seeds"
) -> tuple[str, str]:
    """Compare values of which bounds from below and from above are known, as ``compared`` does numbers: yes or no only
    where that is so wherever between its bounds each lies."""
    low, high = 0 if sign > 0 else 1, 1 if sign > 0 else 0
    at_worst, test = compare(ours[low], theirs[high], sign, kind)
    at_best, _ = compare(ours[high], theirs[low], sign, kind)
    if at_worst == at_best:
        return at_worst, test
    return UNCLEAR, f"{test}; evaluations too far apart"
