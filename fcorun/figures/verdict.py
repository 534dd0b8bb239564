"""Whether what was measured with a few seeds is above or below something."""

from typing import Any

import numpy as np

from fcorun.reports.spread import SAME

UNCLEAR = "not distinguishable"
Values = dict[Any, float]  # by seed, or one without


def compared(ours: Values, theirs: Values, sign: int) -> tuple[str, str]:
    """Whether ours are above (``sign`` 1) or below (-1) theirs: yes, no, or not distinguishable; and by what test.

    With several seeds it must be so in each of them: of two algorithms with the same seeds, seed by seed, else each
    value of the one against each of the other. With one value of each, numbers are compared; equal ones cannot be told
    apart.
    """
    seeds = max(len(ours), len(theirs))
    if len(ours) > 1 and set(ours) == set(theirs):
        pairs, test = [(ours[s], theirs[s]) for s in ours], f"the same sign in each of {seeds} seeds"
    else:
        pairs = [(a, b) for a in ours.values() for b in theirs.values()]
        test = f"in each of {seeds} seeds" if min(len(ours), len(theirs)) == 1 else "ranges over seeds apart"
        test = test if seeds > 1 else "one number against another"
    if not pairs or np.isnan(pairs).any():
        return "not measured", ""
    signs = {0 if a == b or np.isclose(a, b, rtol=SAME, atol=0) else sign * (1 if a > b else -1) for a, b in pairs}
    return ("yes" if signs == {1} else "no" if signs == {-1} else UNCLEAR), test
