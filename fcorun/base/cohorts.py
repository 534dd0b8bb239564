"""The values of ``clients_per_round``: a number of clients; the probability of each, as ``poisson:0.1``; or a share of
the clients, who take turns, as ``cyclic:0.1``.
"""

import re
from fractions import Fraction

COHORT_FORM = "positive, or poisson:0.1 or cyclic:0.1 with a share above 0 and at most 1"
Cohort = int | str


def is_cohort(value: Cohort) -> bool:
    """Return whether a value has the form of a cohort, ``COHORT_FORM``."""
    if isinstance(value, int):
        return value > 0
    number = _read_number("poisson", value) or read_turn_share(value)
    return number is not None and 0 < number <= 1


def read_participation(value: Cohort | None) -> float | None:
    """Return the probability, below 1, by which each client takes part in a round; None: all, or a fixed number."""
    probability = _read_number("poisson", value)
    return None if probability in (None, 1) else float(probability)


def read_turn_share(value: Cohort | None) -> Fraction | None:
    """Return the share of the clients that take part in a round, where they take turns; None where they do not."""
    return _read_number("cyclic", value)


def read_separation(value: Cohort | None) -> int:
    """Return from how many rounds on after one in which a client takes part it may take part again."""
    share = read_turn_share(value)
    return 1 if share is None else int(1 / share)


def count_participations(value: Cohort | None, rounds: int) -> int:
    """Return in how many of so many rounds a client takes part at most."""
    return -(-rounds // read_separation(value))


def fixed_cohort_size(value: Cohort | None, n_clients: int) -> int | None:
    """Return the number of clients of each round, of M in all; None: all clients, or each by a probability."""
    share = read_turn_share(value)
    if share is not None:
        return int(share * n_clients)
    return value if isinstance(value, int) else None


def _read_number(form: str, value: Cohort | None) -> Fraction | None:
    """Return the number of a text such as poisson:0.1, where that is the form; None for other values."""
    match = re.fullmatch(form + r":(\d*\.?\d+(?:e-?\d+)?)", str(value))
    return None if match is None else Fraction(match[1])
