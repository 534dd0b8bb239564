"""The threshold between two classes, ``threshold=``: a number, or a rule that chooses on held-out rows.

The processes that draw pictures import this file, and no JAX.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from fcorun.base.errors import word

DEFAULT_THRESHOLD = 0.5  # the probability at which a row is assigned to the positive class
YOUDEN, SENSITIVITY, SPECIFICITY = "youden", "sensitivity", "specificity"
_GIVEN = "number"
_MARGIN = 1e-5  # exceeds the relative rounding of probabilities in float32


@dataclass(frozen=True)
class ThresholdRule:
    """A rule for the threshold: a number, or a choice on held-out rows.

    Attributes:
        kind: that of a given number; or YOUDEN, the largest sum of sensitivity and specificity (Youden, Cancer 1950);
            or SENSITIVITY: of the thresholds at which the sensitivity is at least ``value``, that of the largest
            specificity; or SPECIFICITY, the other way round.
        value: the number, or the least sensitivity or specificity.
        text: the rule as the user wrote it, a number or text.
    """

    kind: str
    value: float
    text: float | str

    @classmethod
    def parse(cls, text: float | str) -> "ThresholdRule":
        """Return the rule of a value that ``fcorun.base.config`` has checked: 0.3, "youden", "sensitivity:0.9"."""
        if text == YOUDEN:
            return cls(YOUDEN, 0.0, text)
        kind, _, number = str(text).rpartition(":")
        return cls(kind or _GIVEN, float(number), text if kind else float(number))

    @property
    def needs_rows(self) -> bool:
        """Return whether the threshold is chosen on rows."""
        return self.kind != _GIVEN

    def choose(self, y: Int[np.ndarray, " n"], probability: Float[np.ndarray, " n"], rows: str) -> tuple[float, str]:
        """Return the threshold that the rule chooses on some rows, and a warning, "" for none.

        A row is flagged if its probability is at least the threshold, but for a threshold of 0.5, which it must exceed,
        as in the accuracy of a run. A number is returned as it is, with a warning if it flags no row. If the rows are
        of one class only, or no threshold satisfies the rule, the result is 0.5. ``rows`` is what the warning calls the
        rows.
        """
        begin = word(f"`threshold={self.text}`")
        if self.kind == _GIVEN:
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
            return _threshold_that_flags(thresholds, best), ""
        if self.kind == SENSITIVITY:  # all rows are flagged at the last threshold
            return _threshold_that_flags(thresholds, np.argmax(sensitivity >= self.value)), ""
        reaching = np.flatnonzero(specificity >= self.value)
        if len(reaching):
            return _threshold_that_flags(thresholds, reaching[-1]), ""
        return DEFAULT_THRESHOLD, (f"{begin} is reached at no threshold that flags one of the {rows}, at most "
                                   f"{specificity.max():.3g}: 0.5 is taken instead")  # fmt: skip


def _threshold_that_flags(probabilities: Float[np.ndarray, " t"], last: np.integer) -> float:
    """Return a threshold that flags the rows of the decreasing ``probabilities`` up to the index ``last``.

    The threshold is midway between two probabilities, since ``fcorun predict`` computes that of the same row with other
    rounding. Below the least probability, the threshold is a little lower.
    """
    lowest = float(probabilities[last])
    if last == len(probabilities) - 1:
        return lowest * (1 - _MARGIN)
    below = float(probabilities[last + 1])
    middle = (lowest + below) / 2
    return middle if middle > below else lowest


def count_flagged(
    y: Int[np.ndarray, " n"], probability: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " t"], Int[np.ndarray, " t"], Int[np.ndarray, " t"]]:
    """Return the distinct probabilities, from the largest on, and the flagged rows of class 1 and of 0 at each."""
    order = np.argsort(-probability, kind="stable")
    y, probability = y[order], probability[order]
    last_of_tie = np.flatnonzero(np.append(np.diff(probability) != 0, True))
    true_positives = np.cumsum(y)[last_of_tie]
    return probability[last_of_tie], true_positives, last_of_tie + 1 - true_positives
