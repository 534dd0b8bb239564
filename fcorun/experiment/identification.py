"""Identification: whether a solution has the zeros, or the rank, of the reference optimum.

Zeros are exact. Methods whose last operation on w is a prox have exact zeros, means of models have not. The rank counts
singular values above rounding.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from fcorun.methods.regularizers.nuclear import Nuclear
from fcorun.methods.regularizers.nuclear_ball import NuclearBall
from fcorun.methods.regularizers.regularizer import Regularizer

Pattern = Mapping[str, int | list[int]]  # by parameter: the rank, or the indices of nonzero entries


def find_pattern(reg: Regularizer, names: Iterable[str], solution: Mapping[str, np.ndarray]) -> Pattern | None:
    """Return the pattern of a solution in the parameters ``names``; None if psi promotes neither zeros nor low rank."""
    if isinstance(reg, (Nuclear, NuclearBall)):
        return {name: int(np.linalg.matrix_rank(solution[name])) for name in names}
    if reg.sparse:
        return {name: np.flatnonzero(solution[name]).tolist() for name in names}
    return None


def count_errors(pattern: Pattern, solution: Mapping[str, np.ndarray]) -> int:
    """Count the entries that are zero in only one of a solution and the optimum, or the difference of their ranks."""
    errors = 0
    for name, expected in pattern.items():
        if isinstance(expected, int):
            errors += abs(int(np.linalg.matrix_rank(solution[name])) - expected)
        else:
            errors += len(np.setxor1d(np.flatnonzero(solution[name]), expected))
    return errors


def identification_metrics(pattern: Pattern, solution: Mapping[str, np.ndarray], rows: list, round_: int) -> dict:
    """Return the errors of a solution's pattern, and the round since when there have been none.

    ``rows`` are the run's earlier rows of metrics.csv. The round is NaN if the pattern has errors, so that the last
    evaluation of a run has the round from which on the pattern was the optimum's to the end.
    """
    errors = count_errors(pattern, solution)
    since = float("nan")
    if not errors:
        earlier = rows[-1].get("identified_round", since) if rows else since
        since = float(round_) if np.isnan(earlier) else earlier
    return {"pattern_errors": float(errors), "identified_round": since}
