"""How good predictions are, by group of rows: the figures of scores.csv.

All groups are computed at once. scikit-learn has most of these figures for one group, and takes a second to import
and a millisecond a figure, which for a sweep on many clients is longer than the sweep. A figure that a group does not
define is nan.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

_TINY = np.finfo(float).tiny


@dataclass(frozen=True)
class Groups:
    """Rows in groups.

    Attributes:
        of: the group of each row, shape (n,), from 0 to count - 1.
        count: how many groups there are, G; some may be empty.
    """

    row_group: np.ndarray
    count: int

    def total(self, values: np.ndarray) -> Float[np.ndarray, " G"]:
        """Sums over the rows of each group."""
        return np.bincount(self.row_group, values, self.count)

    def mean(self, values: np.ndarray) -> Float[np.ndarray, " G"]:
        return safe_divide(self.total(values), self.sizes)

    @property
    def sizes(self) -> Float[np.ndarray, " G"]:
        return self.total(np.ones(len(self.row_group)))

    def min_max(self, values: np.ndarray, where: np.ndarray | bool = True) -> tuple[np.ndarray, np.ndarray]:
        """The least and the largest value of each group, of the rows ``where`` that is true; inf, -inf without any."""
        least, most = np.full(self.count, np.inf), np.full(self.count, -np.inf)
        rows = np.broadcast_to(where, values.shape)
        np.minimum.at(least, self.row_group[rows], values[rows])
        np.maximum.at(most, self.row_group[rows], values[rows])
        return least, most


def safe_divide(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """above / below, nan where below is not positive."""
    return np.divide(above, below, out=np.full(np.shape(below), np.nan), where=below > _TINY)


def score_regression(
    y: Float[np.ndarray, " n"], mean: Float[np.ndarray, " n"], groups: Groups
) -> dict[str, np.ndarray]:
    """R^2, the root of the mean squared error and the mean absolute error of predictions ``mean``; the slope of the
    line of least squares of y on them (1 if they are calibrated), and the mean of y - mean (0 if they are)."""
    squared = groups.total((y - mean) ** 2)
    about_y, about_mean = (values - groups.mean(values)[groups.row_group] for values in (y, mean))
    varies, predicts = (least < most for least, most in (groups.min_max(y), groups.min_max(mean)))
    spread = np.where(varies, groups.total(about_y**2), 0.0)
    return {
        "r2": 1 - safe_divide(squared, spread),
        "rmse": np.sqrt(safe_divide(squared, groups.sizes)),
        "mae": groups.mean(np.abs(y - mean)),
        "calibration_slope": safe_divide(
            groups.total(about_y * about_mean), np.where(predicts, groups.total(about_mean**2), 0.0)
        ),
        "calibration_intercept": groups.mean(y - mean),
    }


def score_binary(
    y: Int[np.ndarray, " n"], label: Int[np.ndarray, " n"], score: Float[np.ndarray, " n"],
    probability: Float[np.ndarray, " n"] | None, groups: Groups
) -> dict[str, np.ndarray]:  # fmt: skip
    """Figures of two classes, of which 1 is positive; those that need both are nan where a group has one only.

    Args:
        y, label: true and predicted classes, 0 or 1.
        score: the larger, the more likely the class is 1.
        probability: that of class 1; without it there is neither Brier score nor calibration.
    """
    positive, n = groups.total(y), groups.sizes
    both = np.where((positive > 0) & (positive < n), 1.0, np.nan)
    sensitivity = safe_divide(groups.total(y * label), positive)
    specificity = safe_divide(groups.total((1 - y) * (1 - label)), n - positive)
    found = {
        "prevalence": safe_divide(positive, n),
        "accuracy": groups.mean(y == label),
        "balanced_accuracy": (sensitivity + specificity) / 2 * both,
        "sensitivity": sensitivity,
        "specificity": specificity,
        "auc": roc_auc(y == 1, score, groups),
    }
    if probability is not None:
        found["brier"] = groups.mean((probability - y) ** 2)
        found["calibration_slope"], found["calibration_intercept"] = fit_calibration(y, score, groups)
    return found


def score_multiclass(
    y: Int[np.ndarray, " n"], label: Int[np.ndarray, " n"], probability: Float[np.ndarray, "n k"] | None,
    groups: Groups, classes: int
) -> dict[str, np.ndarray]:  # fmt: skip
    """Figures of k classes: the mean recall of the classes that a group has (two at least), the mean over all classes
    of the AUC against the rest, where a group has them all, and the Brier score, the sum over classes (Brier 1950)."""
    found = {"accuracy": groups.mean(y == label)}
    recall = np.stack(
        [safe_divide(groups.total((y == k) & (label == k)), groups.total(y == k)) for k in range(classes)]
    )
    there = (~np.isnan(recall)).sum(axis=0)
    found["balanced_accuracy"] = safe_divide(np.nansum(recall, axis=0), np.where(there > 1, there, 0))
    if probability is not None:
        found["auc_macro"] = np.mean([roc_auc(y == k, probability[:, k], groups) for k in range(classes)], axis=0)
        found["brier"] = groups.mean(((probability - (y[:, None] == np.arange(classes))) ** 2).sum(axis=1))
    return found


def roc_auc(
    positive: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"], groups: Groups
) -> Float[np.ndarray, " G"]:
    """The area under the ROC curve: by the ranks of the positive, ties sharing theirs (Mann and Whitney 1947)."""
    order = np.lexsort((score, groups.row_group))
    group, value = groups.row_group[order], score[order]
    new = np.append(True, (np.diff(group) != 0) | (np.diff(value) != 0))[: len(order)]
    first = np.flatnonzero(new)
    rank = (first + (np.diff(np.append(first, len(order))) + 1) / 2)[np.cumsum(new) - 1]  # from 1, over all groups
    before = np.cumsum(groups.sizes) - groups.sizes
    hits, n = groups.total(positive), groups.sizes
    ranks = np.bincount(group, (rank - before[group]) * positive[order], groups.count)
    return safe_divide(ranks - hits * (hits + 1) / 2, hits * (n - hits))


def fit_calibration(
    y: Int[np.ndarray, " n"], score: Float[np.ndarray, " n"], groups: Groups
) -> tuple[Float[np.ndarray, " G"], Float[np.ndarray, " G"]]:
    """Slope b and intercept a of Cox's model logit P(y = 1) = a + b score (Biometrika 1958): of the log odds that a
    model gives; 1 and 0 if it is calibrated. The intercept is that with b held at 1, as it is reported (Van Calster et
    al., BMC Medicine 2019); b < 1 says that predictions are too extreme. nan where there is no finite one: with one
    class only, and of the slope where the scores part the classes (Silvapulle, J. R. Stat. Soc. B 1981)."""
    low, high = groups.min_max(score, y == 1), groups.min_max(score, y == 0)
    both = np.isfinite(low[0]) & np.isfinite(high[0])
    overlap = both & (low[0] < high[1]) & (high[0] < low[1])
    center = groups.mean(score)
    z = score - center[groups.row_group]
    scale = np.sqrt(groups.mean(z**2))
    scale = np.where(overlap & (scale > 0), scale, 1.0)
    _, slope = _logistic(y, np.zeros(len(y)), z / scale[groups.row_group], groups, overlap)
    intercept, _ = _logistic(y, score, np.zeros(len(y)), groups, both)
    return slope / scale, intercept


def _logistic(
    y: np.ndarray, offset: np.ndarray, z: np.ndarray, groups: Groups, which: np.ndarray, steps: int = 100
) -> tuple[np.ndarray, np.ndarray]:
    """a and b (G,) that maximise the likelihood of logit P(y = 1) = offset + a + b z in the groups ``which``, by
    Newton's method with steps halved as needed; nan in others, and where it does not come to an end."""
    a, b, of = np.zeros(groups.count), np.zeros(groups.count), groups.row_group
    floor, done = 1e-8 * np.maximum(groups.sizes, 1), ~which

    def loss(a, b):
        eta = offset + a[of] + b[of] * z
        return groups.total(np.logaddexp(0, eta) - y * eta)

    for _ in range(steps):
        value, p = loss(a, b), np.exp(-np.logaddexp(0, -(offset + a[of] + b[of] * z)))
        slope_a, slope_b = groups.total(p - y), groups.total((p - y) * z)
        aa, ab, bb = (groups.total(p * (1 - p) * power) for power in (1.0, z, z**2))
        aa = np.maximum(aa, floor)
        db = (slope_b - ab / aa * slope_a) / np.maximum(bb - ab**2 / aa, floor)
        da = (slope_a - ab * db) / aa
        close = slope_a * da + slope_b * db <= 1e-16 * groups.sizes  # one more step is exact
        step = np.where(done, 0.0, 1.0)
        for _ in range(50):
            worse = loss(a - step * da, b - step * db) > value + 1e-12 * np.abs(value)
            step = np.where(worse, step / 2, step)
            if not worse.any():
                break
        a, b, done = a - step * da, b - step * db, done | close
        if done.all():
            break
    good = which & done
    return np.where(good, a, np.nan), np.where(good, b, np.nan)
