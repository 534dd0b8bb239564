"""Functions of arrays: predictions of a trained model, what follows from them, and their scores by group of rows."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from fcorun.base.system.machine import use_precision
from fcorun.methods.objectives.objective import Objective, is_linear_model

# The forward pass of a trained model: predictions of examples, and losses, probabilities and means from these.

_BLOCK_ENTRIES = 2**24  # numbers in a block of examples
_PADDED_LENGTH = 2**13  # losses are computed for a multiple of so many rows

Arrays = dict[str, np.ndarray]


def compute_predictions(objective: Objective, params: Arrays, x: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """Return predictions (n,) or (n, classes) of examples ``scale`` * x (n, d), in the precision of the parameters."""
    dtype = next(iter(params.values())).dtype
    block_length = max(_BLOCK_ENTRIES // max(x.shape[1], 1), 1)
    predictions = []
    for start in range(0, max(len(x), 1), block_length):
        block = x[start : start + block_length].astype(dtype, copy=False)
        if scale != 1:
            block = block * dtype.type(scale)
        predictions.append(_predict_block(objective, params, block))
    return np.concatenate(predictions)


def _predict_block(objective: Objective, params: Arrays, x: np.ndarray) -> np.ndarray:
    if not is_linear_model(type(objective)):
        with use_precision(str(x.dtype)):
            on_device = {name: jnp.asarray(value) for name, value in params.items()}
            return np.asarray(objective.predict(on_device, jnp.asarray(x)))
    weights = params["weights"]
    n_features = x.shape[1]
    outputs = weights.size // n_features
    weights = weights.reshape(n_features, outputs) if outputs > 1 else weights.reshape(n_features)
    return x @ weights + params.get("bias", 0)


def predict_by_client(
    objective: Objective, models: Arrays, client: np.ndarray, x: np.ndarray, scale: float = 1.0
) -> np.ndarray:
    """Return predictions of examples x (n, d), each by its client's personal model.

    Args:
        models: the parameters by name, with a leading axis M.
        client: the model of each example, shape (n,), from 0 to M - 1.
    """
    order = np.argsort(client, kind="stable")
    present, first = np.unique(client[order], return_index=True)
    rows_of_client = np.split(order, first[1:])
    longest = max(map(len, rows_of_client))
    predictions = []
    for m, rows in zip(present, rows_of_client, strict=True):
        params = {name: values[m] for name, values in models.items()}
        examples = x[rows]
        if not is_linear_model(type(objective)):  # padded to one length, for one compiled program
            examples = np.pad(examples, ((0, longest - len(rows)), (0, 0)))
        predictions.append(compute_predictions(objective, params, examples, scale)[: len(rows)])
    by_client = np.concatenate(predictions)
    result = np.empty_like(by_client)
    result[order] = by_client
    return result


def compute_losses(
    objective: Objective, prediction: np.ndarray, y: np.ndarray, client: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Return the loss of each example, shape (n,), and the other scores that the objective declares.

    ``client`` is the number of each example's client, (n,). None: all are of one client.
    """
    n_rows = len(y)
    if not objective.has_client_losses:
        # splits of similar lengths then share JAX's compiled operations; losses of whole clients take no other rows
        padding = -n_rows % _PADDED_LENGTH
        prediction = np.pad(prediction, [(0, padding), *[(0, 0)] * (prediction.ndim - 1)], mode="edge")
        y = np.pad(y, (0, padding), mode="edge")
    with jax.enable_x64(True):
        predictions = _put(prediction, float)
        targets = _put(y, None if prediction.ndim > 1 else float)
        if objective.has_client_losses:
            weight = _put(np.ones(n_rows), float)
            losses = jax.jit(objective.client_losses)(predictions, targets, weight, client)
        else:
            losses = objective.loss(predictions, targets)
        scores = {"loss": losses, **objective.scores(predictions, targets)}
        return {name: np.asarray(values, float)[:n_rows] for name, values in scores.items()}


def _put(array: np.ndarray, dtype: type | None) -> jax.Array:
    """Put an array on the device. ``jnp.asarray`` would compile a program for each shape."""
    return jax.device_put(np.asarray(array, dtype))


def class_probabilities(objective: Objective, prediction: np.ndarray) -> np.ndarray | None:
    """Return the probabilities of the classes, shape (n, classes); None if the objective defines none."""
    if not hasattr(objective, "probabilities"):
        return None
    with jax.enable_x64(True):
        return np.asarray(objective.probabilities(_put(prediction, float)), float)  # type: ignore[attr-defined]


def expected_targets(objective: Objective, prediction: np.ndarray) -> np.ndarray | None:
    """Return the expected target of each row of a regression, shape (n,); None if the objective defines none."""
    if not hasattr(objective, "response"):
        return None
    with jax.enable_x64(True):
        return np.asarray(objective.response(_put(prediction, float)), float)  # type: ignore[attr-defined]


# The scores of predictions, by group of rows, for scores.csv.
#
# All groups are computed at once. scikit-learn has most of these scores for one group. Its import takes a second and
# each score a millisecond, which for a sweep on many clients is longer than the sweep. A score that a group does not
# define is nan.

_TINY = np.finfo(float).tiny


@dataclass(frozen=True)
class Groups:
    """Rows in groups.

    Attributes:
        row_group: the group of each row, shape (n,), from 0 to count - 1.
        count: the number of groups, G; some may be empty.
    """

    row_group: np.ndarray
    count: int

    def total(self, values: np.ndarray) -> Float[np.ndarray, " G"]:
        """Return the sum over the rows of each group."""
        return np.bincount(self.row_group, values, self.count)

    def mean(self, values: np.ndarray) -> Float[np.ndarray, " G"]:
        """Return the mean over the rows of each group, nan for an empty group."""
        return safe_divide(self.total(values), self.sizes)

    @property
    def sizes(self) -> Float[np.ndarray, " G"]:
        """The number of rows of each group."""
        return self.total(np.ones(len(self.row_group)))

    def min_max(self, values: np.ndarray, where: np.ndarray | bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Return the least and the largest value of each group over the rows ``where`` is true; inf, -inf of no row."""
        least, largest = np.full(self.count, np.inf), np.full(self.count, -np.inf)
        rows = np.broadcast_to(where, values.shape)
        np.minimum.at(least, self.row_group[rows], values[rows])
        np.maximum.at(largest, self.row_group[rows], values[rows])
        return least, largest


def safe_divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return numerator / denominator, nan where the denominator is not positive."""
    out = np.full(np.shape(denominator), np.nan)
    return np.divide(numerator, denominator, out=out, where=denominator > _TINY)


def score_regression(
    y: Float[np.ndarray, " n"], mean: Float[np.ndarray, " n"], groups: Groups
) -> dict[str, np.ndarray]:
    """Return R^2, the root mean squared error, the mean absolute error and the calibration of predictions ``mean``.

    The slope of calibration is that of the least-squares line of y on the predictions, the intercept the mean of
    y - mean. Calibrated predictions have slope 1 and intercept 0.
    """
    squared_error = groups.total((y - mean) ** 2)
    centered_y = y - groups.mean(y)[groups.row_group]
    centered_mean = mean - groups.mean(mean)[groups.row_group]
    least_y, largest_y = groups.min_max(y)
    least_mean, largest_mean = groups.min_max(mean)
    squares_y = np.where(least_y < largest_y, groups.total(centered_y**2), 0.0)
    squares_mean = np.where(least_mean < largest_mean, groups.total(centered_mean**2), 0.0)
    return {
        "r2": 1 - safe_divide(squared_error, squares_y),
        "rmse": np.sqrt(safe_divide(squared_error, groups.sizes)),
        "mae": groups.mean(np.abs(y - mean)),
        "calibration_slope": safe_divide(groups.total(centered_y * centered_mean), squares_mean),
        "calibration_intercept": groups.mean(y - mean),
    }


def score_binary(
    y: Int[np.ndarray, " n"],
    label: Int[np.ndarray, " n"],
    score: Float[np.ndarray, " n"],
    probability: Float[np.ndarray, " n"] | None,
    groups: Groups,
) -> dict[str, np.ndarray]:
    """Return the scores of two classes, of which 1 is positive. Scores that need both are nan if a group has one only.

    ``ppv`` and ``npv`` are the predictive values: the shares of class 1 among the rows labelled 1, and of class 0 among
    those labelled 0. ``expected_over_observed`` is the sum of the probabilities over the number of positive rows.

    Args:
        y: true classes, 0 or 1.
        label: predicted classes, 0 or 1.
        score: larger values for rows that are more likely of class 1.
        probability: the probability of class 1. None: neither Brier score nor calibration is computed.
    """
    positive = groups.total(y)
    sizes = groups.sizes
    has_both_classes = (positive > 0) & (positive < sizes)
    flagged = groups.total(label)
    true_positives, true_negatives = groups.total(y * label), groups.total((1 - y) * (1 - label))
    sensitivity = safe_divide(true_positives, positive)
    specificity = safe_divide(true_negatives, sizes - positive)
    scores = {
        "prevalence": safe_divide(positive, sizes),
        "accuracy": groups.mean(y == label),
        "balanced_accuracy": (sensitivity + specificity) / 2 * np.where(has_both_classes, 1.0, np.nan),
        "sensitivity": sensitivity,
        "specificity": specificity,
        "ppv": safe_divide(true_positives, flagged),
        "npv": safe_divide(true_negatives, sizes - flagged),
        "auc": roc_auc(y == 1, score, groups),
        "average_precision": average_precision(y == 1, score, groups),
    }
    if probability is not None:
        scores["brier"] = groups.mean((probability - y) ** 2)
        scores["expected_over_observed"] = safe_divide(groups.total(probability), positive)
        scores["calibration_slope"], scores["calibration_intercept"] = fit_calibration(y, score, groups)
    return scores


def score_multiclass(
    y: Int[np.ndarray, " n"],
    label: Int[np.ndarray, " n"],
    probability: Float[np.ndarray, "n k"] | None,
    groups: Groups,
    classes: int,
) -> dict[str, np.ndarray]:
    """Return the scores of k classes.

    The balanced accuracy is the mean recall of the classes that a group has, two at least. The macro AUC is the mean
    over all classes of the AUC against the rest, for groups that have all classes. The Brier score is the sum over
    classes (Brier 1950).
    """
    scores = {"accuracy": groups.mean(y == label)}
    recalls = []
    for k in range(classes):
        recalls.append(safe_divide(groups.total((y == k) & (label == k)), groups.total(y == k)))
    recall = np.stack(recalls)
    n_classes = (~np.isnan(recall)).sum(axis=0)
    scores["balanced_accuracy"] = safe_divide(np.nansum(recall, axis=0), np.where(n_classes > 1, n_classes, 0))
    if probability is not None:
        scores["auc_macro"] = np.mean([roc_auc(y == k, probability[:, k], groups) for k in range(classes)], axis=0)
        one_hot = y[:, None] == np.arange(classes)
        scores["brier"] = groups.mean(((probability - one_hot) ** 2).sum(axis=1))
    return scores


def roc_auc(
    positive: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"], groups: Groups
) -> Float[np.ndarray, " G"]:
    """Return the area under the ROC curve from the ranks of the positive rows (Mann and Whitney 1947).

    Ties share their mean rank.
    """
    order = np.lexsort((score, groups.row_group))
    group, value = groups.row_group[order], score[order]
    starts_tie = np.append(True, (np.diff(group) != 0) | (value[1:] != value[:-1]))[: len(order)]
    first = np.flatnonzero(starts_tie)
    tie_length = np.diff(np.append(first, len(order)))
    rank = (first + (tie_length + 1) / 2)[np.cumsum(starts_tie) - 1]  # from 1, over all groups
    n_before = np.cumsum(groups.sizes) - groups.sizes
    n_positive = groups.total(positive)
    n = groups.sizes
    rank_sum = np.bincount(group, (rank - n_before[group]) * positive[order], groups.count)
    return safe_divide(rank_sum - n_positive * (n_positive + 1) / 2, n_positive * (n - n_positive))


def average_precision(
    positive: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"], groups: Groups
) -> Float[np.ndarray, " G"]:
    """Return the mean over the positive rows of the precision at their score, in which ties count together."""
    order = np.lexsort((-score, groups.row_group))
    group, value = groups.row_group[order], score[order]
    ends_tie = np.append((np.diff(group) != 0) | (value[1:] != value[:-1]), True)[: len(order)]
    last = np.flatnonzero(ends_tie)[np.cumsum(np.append(0, ends_tie[:-1]))] if len(order) else order
    n_before = np.cumsum(groups.sizes) - groups.sizes
    n_positive = groups.total(positive)
    positive_before = np.cumsum(n_positive) - n_positive
    flagged = last + 1 - n_before[group]
    true_positives = np.cumsum(positive[order])[last] - positive_before[group]
    precision = safe_divide(true_positives, flagged)
    return safe_divide(np.bincount(group, precision * positive[order], groups.count), n_positive)


def fit_calibration(
    y: Int[np.ndarray, " n"], score: Float[np.ndarray, " n"], groups: Groups
) -> tuple[Float[np.ndarray, " G"], Float[np.ndarray, " G"]]:
    """Return slope b and intercept a of Cox's model logit P(y = 1) = a + b score (Biometrika 1958).

    ``score`` is the log odds that a model predicts. Calibrated predictions have b = 1 and a = 0; b < 1 means that
    predictions are too extreme. The intercept is fitted with b held at 1, as usual (Van Calster et al., BMC Medicine
    2019). Values are nan if no finite one exists: in groups of one class, and the slope if the scores separate the
    classes (Silvapulle, J. R. Stat. Soc. B 1981). The intercept is nan, too, if all calibrated probabilities would be 0
    or 1 up to rounding.
    """
    least_positive, largest_positive = groups.min_max(score, y == 1)
    least_negative, largest_negative = groups.min_max(score, y == 0)
    has_both_classes = np.isfinite(least_positive) & np.isfinite(least_negative)
    overlap = has_both_classes & (least_positive < largest_negative) & (least_negative < largest_positive)
    z = score - groups.mean(score)[groups.row_group]
    scale = np.sqrt(groups.mean(z**2))
    scale = np.where(overlap & (scale > 0), scale, 1.0)
    zeros = np.zeros(len(y))
    _, slope = _fit_logistic(y, zeros, z / scale[groups.row_group], groups, overlap)
    intercept, _ = _fit_logistic(y, score, zeros, groups, has_both_classes)
    return slope / scale, intercept


def _fit_logistic(
    y: np.ndarray, offset: np.ndarray, z: np.ndarray, groups: Groups, mask: np.ndarray, max_steps: int = 100
) -> tuple[np.ndarray, np.ndarray]:
    """Return a and b, shape (G,), that maximize the likelihood of logit P(y = 1) = offset + a + b z in each group.

    Newton's method, with steps halved as needed. Values are nan outside of ``mask``, if ``max_steps`` are too few, and
    if all probabilities are 0 or 1 up to rounding.
    """
    a = np.zeros(groups.count)
    b = np.zeros(groups.count)
    group = groups.row_group
    floor = 1e-8 * np.maximum(groups.sizes, 1)
    done = ~mask

    def loss(a, b):
        eta = offset + a[group] + b[group] * z
        return groups.total(np.logaddexp(0, eta) - y * eta)

    for _ in range(max_steps):
        value = loss(a, b)
        p = np.exp(-np.logaddexp(0, -(offset + a[group] + b[group] * z)))
        gradient_a = groups.total(p - y)
        gradient_b = groups.total((p - y) * z)
        hessian_aa = np.maximum(groups.total(p * (1 - p)), floor)
        hessian_ab = groups.total(p * (1 - p) * z)
        hessian_bb = groups.total(p * (1 - p) * z**2)
        schur = np.maximum(hessian_bb - hessian_ab**2 / hessian_aa, floor)
        step_b = (gradient_b - hessian_ab / hessian_aa * gradient_a) / schur
        step_a = (gradient_a - hessian_ab * step_b) / hessian_aa
        close = gradient_a * step_a + gradient_b * step_b <= 1e-16 * groups.sizes  # one more step is exact
        mask = mask & ~(close & (hessian_aa <= floor))  # all probabilities are 0 or 1 up to rounding
        length = np.where(done, 0.0, 1.0)
        for _ in range(50):
            worse = loss(a - length * step_a, b - length * step_b) > value + 1e-12 * np.abs(value)
            length = np.where(worse, length / 2, length)
            if not worse.any():
                break
        a, b = a - length * step_a, b - length * step_b
        done = done | close
        if done.all():
            break
    converged = mask & done
    return np.where(converged, a, np.nan), np.where(converged, b, np.nan)
