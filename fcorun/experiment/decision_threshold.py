"""The threshold of ``threshold=``: the probability at which a row is assigned to the positive class."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from fcorun.datasets.base import FederatedData
from fcorun.errors import UserError
from fcorun.experiment.experiment import PreparedExperiment

DEFAULT_THRESHOLD = 0.5
YOUDEN, SENSITIVITY, SPECIFICITY = "youden", "sensitivity", "specificity"


@dataclass(frozen=True)
class ThresholdRule:
    """A rule for the threshold: a number, or a choice on held-out rows.

    Attributes:
        kind: "number"; or YOUDEN, the largest sum of sensitivity and specificity (Youden, Cancer 1950); or SENSITIVITY:
            of the thresholds at which the sensitivity is at least ``value``, that of the largest specificity; or
            SPECIFICITY, the other way round.
        value: the number, or the least sensitivity or specificity.
        text: the rule as the user wrote it, a number or text.
    """

    kind: str
    value: float
    text: float | str

    @classmethod
    def parse(cls, text: float | str) -> "ThresholdRule":
        """Return the rule of a value that ``fcorun.config`` has checked: 0.3, "youden", "sensitivity:0.9", and such."""
        if text == YOUDEN:
            return cls(YOUDEN, 0.0, text)
        kind, _, number = str(text).rpartition(":")
        return cls(kind or "number", float(number), text if kind else float(number))

    @property
    def needs_rows(self) -> bool:
        """Return whether the threshold is chosen on rows."""
        return self.kind != "number"

    def choose(self, y: Int[np.ndarray, " n"], probability: Float[np.ndarray, " n"], rows: str) -> tuple[float, str]:
        """Return the threshold that the rule chooses on some rows, and a warning, "" for none.

        A row is flagged if its probability is at least the threshold, but for a threshold of 0.5, which it must exceed,
        as in the accuracy of a run. If no threshold satisfies the rule, the result is 0.5. ``rows`` is what the warning
        calls the rows.
        """
        begin = f"threshold={self.text}"
        if self.kind == "number":
            largest = probability.max(initial=0.0)
            if largest >= self.value:
                return self.value, ""
            return self.value, f"{begin} flags none of the {rows}, whose largest probability is {largest:.3g}"
        n_positive = int(y.sum())
        if n_positive in (0, len(y)):
            return DEFAULT_THRESHOLD, f"{begin} needs both classes among the {rows}: 0.5 is taken instead"
        thresholds, true_positives, false_positives = count_flagged(y, probability)
        n_negative = len(y) - n_positive
        sensitivity = true_positives / n_positive
        specificity = (n_negative - false_positives) / n_negative
        if self.kind == YOUDEN:  # integers tie exactly; of equal sums the largest threshold
            best = np.argmax(true_positives * n_negative - false_positives * n_positive)
            return _threshold_that_flags(thresholds[best]), ""
        if self.kind == SENSITIVITY:  # all rows are flagged at the last threshold
            return _threshold_that_flags(thresholds[np.argmax(sensitivity >= self.value)]), ""
        reaching = np.flatnonzero(specificity >= self.value)
        if len(reaching):
            return _threshold_that_flags(thresholds[reaching[-1]]), ""
        return DEFAULT_THRESHOLD, (f"{begin} is reached at no threshold that flags one of the {rows}, at most "
                                   f"{specificity.max():.3g}: 0.5 is taken instead")  # fmt: skip


def _threshold_that_flags(threshold: Float[np.ndarray, ""]) -> float:
    """Return a threshold that flags the rows of this probability: the probability, and for 0.5 the number below it."""
    return float(np.nextafter(threshold, 0) if threshold == DEFAULT_THRESHOLD else threshold)


def count_flagged(
    y: Int[np.ndarray, " n"], probability: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " t"], Int[np.ndarray, " t"], Int[np.ndarray, " t"]]:
    """Return the distinct probabilities, from the largest on, and the flagged rows of class 1 and of 0 at each."""
    order = np.argsort(-probability, kind="stable")
    y, probability = y[order], probability[order]
    last_of_tie = np.flatnonzero(np.append(np.diff(probability) != 0, True))
    true_positives = np.cumsum(y)[last_of_tie]
    return probability[last_of_tie], true_positives, last_of_tie + 1 - true_positives


def check_threshold(
    experiment: PreparedExperiment, data: FederatedData, text: float | str, *, out_of_fold: bool = False
) -> None:
    """Refuse a value of ``threshold`` other than 0.5 that these data, or this objective, cannot follow.

    A rule is applied to rows ``out_of_fold``, or else to validation rows. Raises UserError.
    """
    rule = ThresholdRule.parse(text)
    if rule.text == DEFAULT_THRESHOLD:
        return
    begin, names = f"threshold={rule.text}", experiment.names
    if data.task != "binary":
        raise UserError(f"{begin} divides two classes, and data={names['data']} has no such target: leave it out, or "
                        "give data.task=binary")  # fmt: skip
    if not hasattr(experiment.objective, "probabilities"):
        raise UserError(f"{begin} is a probability, and objective={names['objective']} has none: leave it out, or "
                        "give objective=logistic")  # fmt: skip
    if rule.needs_rows and data.validation is None and not (out_of_fold or data.train.stays_at_sites):
        raise UserError(f"{begin} is chosen on validation rows, and none are held out: give data.validation=0.2, or a "
                        "number")  # fmt: skip
