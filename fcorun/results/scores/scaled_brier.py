"""The Brier score relative to that of a model without features."""

import numpy as np

from fcorun.results.scores.score import ClassScore, Places
from fcorun.results.scores.weighted_rows import Sums, divide


class ScaledBrier(ClassScore):
    """One minus the Brier score over that of predictions that are each class's share of the rows.

    1 is perfect, and 0 is no better than the shares (Steyerberg et al., Epidemiology 2010).
    """

    name = "scaled_brier"
    label = "scaled Brier score"
    long_label = "scaled Brier score (1: perfect, 0: as the prevalence)"
    higher = True
    needs_probability = True
    places = Places(table=14, page=12, terminal=None, verdict=None)

    def of_sums(self, sums: Sums) -> np.ndarray:
        share = divide(sums.class_rows, sums.n)
        of_shares = (share * (1 - share)).sum(axis=0)
        if "positive" in sums:  # of two classes, the Brier score has the error of one
            of_shares = of_shares / 2
        return 1 - divide(divide(sums["brier"], sums.n), of_shares)
