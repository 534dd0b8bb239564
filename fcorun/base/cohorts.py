"""The values of ``clients_per_round``: a number of clients, or the probability of each, as ``poisson:0.1``."""

import re

COHORT_FORM = "positive, or poisson:0.1 with a probability above 0 and at most 1"
Cohort = int | str


def is_cohort(value: Cohort) -> bool:
    """Return whether a value has the form of a cohort, ``COHORT_FORM``."""
    if isinstance(value, int):
        return value > 0
    probability = _read_probability(value)
    return probability is not None and 0 < probability <= 1


def read_participation(value: Cohort | None) -> float | None:
    """Return the probability, below 1, by which each client takes part in a round; None: all, or a fixed number."""
    probability = _read_probability(value)
    return None if probability == 1 else probability


def fixed_cohort_size(value: Cohort | None) -> int | None:
    """Return the number of clients of each round; None: all clients, or each by a probability."""
    return value if isinstance(value, int) else None


def _read_probability(value: Cohort | None) -> float | None:
    """Return the number of a text poisson:0.1; None for other values."""
    match = re.fullmatch(r"poisson:(\d*\.?\d+(?:e-?\d+)?)", str(value))
    return None if match is None else float(match[1])
