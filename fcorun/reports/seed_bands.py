"""What is told of a metric over seeds: the median and a band."""

from collections.abc import Iterable
from typing import Any

import numpy as np

MIN_SEEDS_FOR_QUANTILES = (
    10  # from so many seeds on the band leaves out a tenth at each end; of fewer there is none to be left out
)
SEED_KINDS = {"seed": "seeds of cohorts", "data.seed": "seeds of data"}  # what varies, by the key of the seed
ROUNDING_TOLERANCE = 1e-6  # relative; what differs by less is the same to rounding


def seed_band(values: Any, axis: int = 0) -> tuple[Any, Any, Any]:
    """The low end, the median and the high end over seeds, along ``axis``: of fewer than ten the least and the largest,
    else the 10 % and 90 % quantiles."""
    ends = (0.1, 0.5, 0.9) if np.shape(values)[axis] >= MIN_SEEDS_FOR_QUANTILES else (0.0, 0.5, 1.0)
    low, middle, high = np.quantile(values, ends, axis=axis)
    return low, middle, high


def describe_band(seeds: Iterable[int], kind: str = "seeds") -> str:
    """What the band over so many seeds is, of several points with their numbers of seeds; ``kind`` is what these are
    called, "seeds of data"."""
    counts = sorted(set(seeds))
    ends = (
        "10-90 %"
        if counts[0] >= MIN_SEEDS_FOR_QUANTILES
        else "range"
        if counts[-1] < MIN_SEEDS_FOR_QUANTILES
        else f"range (10-90 % from {MIN_SEEDS_FOR_QUANTILES} on)"
    )
    return f"{ends} over {' or '.join(map(str, counts))} {kind}"


def seeds_agree(values: Any) -> bool:
    """Whether several seeds gave the same to rounding."""
    return len(values) > 1 and bool(np.isclose(values, values[0], rtol=ROUNDING_TOLERANCE, atol=0).all())
