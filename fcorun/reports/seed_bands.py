"""The median and the band of a metric over seeds."""

from collections.abc import Iterable
from typing import Any

import numpy as np

MIN_SEEDS_FOR_QUANTILES = 10  # from so many seeds on, the band leaves out a tenth at each end
# the random part that each key of a seed draws
SEED_KINDS = {"seed": "seeds of cohorts", "data.split_seed": "seeds of splits", "data.seed": "seeds of data"}
ROUNDING_TOLERANCE = 1e-6  # relative; values that differ by less are equal


def seed_band(values: Any, axis: int = 0) -> tuple[Any, Any, Any]:
    """Return the low end, the median and the high end over seeds along ``axis``.

    The ends are the least and the largest value of fewer than ten seeds, else the 10 % and 90 % quantiles.
    """
    many = np.shape(values)[axis] >= MIN_SEEDS_FOR_QUANTILES
    levels = (0.1, 0.5, 0.9) if many else (0.0, 0.5, 1.0)
    low, median, high = np.quantile(values, levels, axis=axis)
    return low, median, high


def describe_band(seeds: Iterable[int], kind: str = "seeds") -> str:
    """Return the label of the bands of points with these numbers of seeds; ``kind`` as in "seeds of data"."""
    counts = sorted(set(seeds))
    if counts[0] >= MIN_SEEDS_FOR_QUANTILES:
        ends = "10-90 %"
    elif counts[-1] < MIN_SEEDS_FOR_QUANTILES:
        ends = "range"
    else:
        ends = f"range (10-90 % from {MIN_SEEDS_FOR_QUANTILES} on)"
    return f"{ends} over {' or '.join(map(str, counts))} {kind}"


def seeds_agree(values: Any) -> bool:
    """Return True if several seeds gave equal values up to rounding."""
    return len(values) > 1 and bool(np.isclose(values, values[0], rtol=ROUNDING_TOLERANCE, atol=0).all())
