"""The threshold of a rule from counts of scores in the bins of ``fcorun.results.scores.auc_interval``, over sites.

A threshold is an edge of a bin. Which side of an edge a row of a merged cell is on may be unknown: the sensitivity and
the specificity by which the rule chooses are the least that the counts allow, so that the rows have at least these.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from fcorun.base.errors import word
from fcorun.experiment.classifiers import SENSITIVITY, YOUDEN, ThresholdRule
from fcorun.methods.objectives.objective import Objective
from fcorun.results.models.score_functions import class_probabilities
from fcorun.results.scores.auc_interval import EDGES


def probability_at(objective: Objective, edge: float) -> float:
    """Return the probability of the positive class of a row with this score."""
    probabilities = class_probabilities(objective, np.array([edge]))
    assert probabilities is not None
    return float(probabilities[0, 1])


# Counts of rows in bins: first with each row in the lowest bin that it may be in, then in the highest.
Placements = Int[np.ndarray, "2 b"]


@dataclass(frozen=True)
class BinnedChoice:
    """The choice of a rule.

    Attributes:
        edge: the score from which on a row is flagged.
        warning: a sentence where no edge satisfies the rule, so that 0 is taken, and "" otherwise.
    """

    edge: float
    warning: str = ""


def choose_edge(rule: ThresholdRule, positive: Placements, negative: Placements, rows: str) -> BinnedChoice:
    """Return the edge that a rule chooses by counts of the scores of positive and of negative rows.

    Of equal sums of sensitivity and specificity, ``youden`` takes the largest edge. ``rows`` names the rows in the
    warning.
    """
    begin = word(f"`threshold={rule.text}`")
    n_positive, n_negative = int(positive[0].sum()), int(negative[0].sum())
    if not n_positive or not n_negative:
        return BinnedChoice(0.0, f"{begin} needs both classes among the {rows}: 0.5 is taken instead")
    true_positives, false_positives = _count_above(positive[0]), _count_above(negative[1])
    sensitivity, specificity = true_positives / n_positive, (n_negative - false_positives) / n_negative
    if rule.kind == YOUDEN:
        sums = true_positives * n_negative - false_positives * n_positive  # of integers, for the sake of ties
        return BinnedChoice(float(EDGES[len(EDGES) - 1 - np.argmax(sums[::-1])]))
    if rule.kind == SENSITIVITY:
        reaching, best = np.flatnonzero(sensitivity >= rule.value), sensitivity.max()
        if len(reaching):
            return BinnedChoice(float(EDGES[reaching[-1]]))
    else:
        flags_some = _count_above(positive[0]) + _count_above(negative[0]) > 0
        reaching = np.flatnonzero((specificity >= rule.value) & flags_some)
        best = specificity[flags_some].max(initial=0)
        if len(reaching):
            return BinnedChoice(float(EDGES[reaching[0]]))
    return BinnedChoice(0.0, f"{begin} is reached with certainty at no edge of a bin of scores that flags one of the "
                             f"{rows}, at most {best:.3g}: 0.5 is taken instead")  # fmt: skip


def _count_above(counts: Int[np.ndarray, " b"]) -> Int[np.ndarray, " e"]:
    """Return the number of rows whose score is at least each edge."""
    return (counts.sum() - np.cumsum(counts)[:-1]).astype(np.int64)
