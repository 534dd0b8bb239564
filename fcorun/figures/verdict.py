"""Whether what was measured with a few seeds is above or below something."""

from typing import Any

import numpy as np

from fcorun.reports.spread import SAME

UNCLEAR = "not distinguishable"
Values = dict[Any, float]  # by seed, or one without


def compared(ours: Values, theirs: Values, sign: int) -> tuple[str, str]:
    """Whether ours are above (``sign`` 1) or below (-1) theirs: yes, no, or not distinguishable; and by what test.

    Of two algorithms that depend on the seed, the values with the same seed are compared, and it must be so in each of
    these; where only one seed is common to several, nothing can be told. What does not depend on it, a number or a
    value with the seed None, is compared with each value of the other. Equal numbers cannot be told apart.
    """
    seeds = max(len(ours), len(theirs))
    if None in ours or None in theirs or seeds < 2:
        pairs = [(a, b) for a in ours.values() for b in theirs.values()]
        test = f"in each of {seeds} seeds" if seeds > 1 else "one number against another"
    else:
        pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
        common = f"{len(pairs)} common seed{'s' * (len(pairs) != 1)}"
        test = f"the same sign in each of {f'{seeds} seeds' if set(ours) == set(theirs) else f'the {common}'}"
        if len(pairs) < 2 and ours and theirs:
            return UNCLEAR, f"{test}: too few"
    if not pairs or np.isnan(pairs).any():
        return "not measured", ""
    signs = {0 if a == b or np.isclose(a, b, rtol=SAME, atol=0) else sign * (1 if a > b else -1) for a, b in pairs}
    return ("yes" if signs == {1} else "no" if signs == {-1} else UNCLEAR), test
