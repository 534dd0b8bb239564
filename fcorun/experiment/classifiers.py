"""Classifiers: whether a threshold applies to them, and warnings at the end of a run."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from fcorun.base.errors import UserError, abbreviate, word
from fcorun.base.metrics import RANKING_METRICS
from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.threshold_rule import DEFAULT_THRESHOLD, ThresholdRule
from fcorun.methods.objectives.objective import LinearModel, is_linear_model
from fcorun.methods.problem.separation import Separation, find_separation
from fcorun.methods.regularizers.regularizer import NoRegularizer, Regularizer


def check_threshold(
    experiment: PreparedExperiment, data: FederatedData, threshold: float | str, *, out_of_fold: bool = False
) -> None:
    """Refuse a value of ``threshold`` other than 0.5 that does not apply to these data or this objective.

    A rule is applied to rows ``out_of_fold``, or else to validation rows. Raises UserError.
    """
    rule = ThresholdRule.parse(threshold)
    if rule.text == DEFAULT_THRESHOLD:
        return
    begin, names = f"`threshold={rule.text}`", experiment.names
    if not data.target_task.has_two_classes:
        raise UserError(f"{begin} divides two classes, and `data={names['data']}` has no such target: leave it out, or "
                        "give `data.task=binary`")  # fmt: skip
    if not hasattr(experiment.objective, "probabilities"):
        raise UserError(f"{begin} is a probability, and `objective={names['objective']}` has none: leave it out, or "
                        "give `objective=logistic`")  # fmt: skip
    if rule.needs_rows and data.validation is None and not (out_of_fold or data.train.stays_at_sites):
        raise UserError(f"{begin} is chosen on validation rows, and none are held out: give `data.validation=0.2`, "
                        "or a number")  # fmt: skip


# Warnings about a classifier at the end of a run: one class for all rows, perfectly separated classes.

_ROUNDING = 1e-6  # the rounding of an accuracy, a mean in float32
_CHECK_LEAKS = "check that no feature was recorded after the outcome, or because of it"
_ALL_RIGHT = "every training row is classified right"


def warn_constant_prediction(experiment: PreparedExperiment, data: FederatedData, row: Mapping[str, float]) -> str:
    """Return a warning if the final accuracy is the share of the largest class; else an empty string.

    The accuracy is that of the validation rows, or of the training rows if the data have no validation rows.
    """
    split = "val" if "val_accuracy" in row else "train"
    if f"{split}_accuracy" not in row or data.train.stays_at_sites:
        return ""
    if split == "val":
        assert data.validation is not None
        targets = data.validation.y
        weight = np.ones(len(targets)) if data.validation.weight is None else data.validation.weight
    else:
        targets, weight = data.train.y, data.train.objective_weights(experiment.settings.client_weighting)
    class_shares = np.bincount(targets, weight, len(data.classes)) / weight.sum()
    accuracy = row[f"{split}_accuracy"]
    if abs(accuracy - class_shares.max()) > _ROUNDING:
        return ""
    better_metrics = [name for name in (f"{split}_loss", *RANKING_METRICS) if name in row]
    if split == "train":
        better_metrics.append(word("the scores of rows that are held out (`data.test`, `data.validation`)"))
    *others, last = better_metrics
    alternatives = f"{', '.join(others)} or {last}" if others else last
    largest_class = data.classes[class_shares.argmax()]
    return (f"{split}_accuracy {accuracy:.4g} is that of predicting '{largest_class}' for every row: judge the model "
            f"by {alternatives}")  # fmt: skip


def warn_constant_scores(scores: Sequence[Mapping[str, Any]], classes: Sequence[Any]) -> tuple[str, ...]:
    """Return a tuple with a warning if the accuracy in scores.csv is the share of the larger class, else an empty one.

    For two classes and rows at sites, of which scores are known and not the targets. The rows are those of validation,
    else of test.
    """
    by_set = {row["set"]: row for row in reversed(scores)}  # the first row of a set has the scores of all clients
    row = by_set.get("validation") or by_set.get("test") or {}
    if len(classes) != 2 or "prevalence" not in row:
        return ()
    share = max(row["prevalence"], 1 - row["prevalence"])
    if abs(row["accuracy"] - share) > _ROUNDING:
        return ()
    largest_class = classes[int(row["prevalence"] > 0.5)]
    return (f"the accuracy {row['accuracy']:.4g} of the {row['set']} rows is that of predicting '{largest_class}' for "
            "every row: judge the model by the loss and the bounds on the AUC in scores.csv",)  # fmt: skip


def warn_unbounded_coefficients(
    experiment: PreparedExperiment,
    data: FederatedData,
    row: Mapping[str, float],
    reg: Regularizer,
) -> str:
    """Return a warning about coefficients whose size the data do not determine, in any task; empty for none.

    Of features without a penalty these are those that ``find_separation`` finds; others have finite coefficients. Where
    it finds none under a penalty, the warning is given only if all training rows are classified right and there are
    fewer features than rows. ``reg`` is the regularizer with the factors of these data's features.
    """
    objective, train = experiment.objective, data.train
    if not isinstance(objective, LinearModel) or not is_linear_model(type(objective)) or train.stays_at_sites:
        return ""
    is_all_right = 1 - row.get("train_accuracy", 0) < min(_ROUNDING, 0.5 / len(train.y))
    unpenalized = find_unpenalized_features(experiment, reg, train.x.shape[1])
    separation = _find_separation_of(unpenalized, objective, experiment, data)
    if separation is None and is_penalized(experiment):
        if not is_all_right or train.x.shape[1] >= len(train.y):
            return ""
        return f"perfect separation: {_ALL_RIGHT}; the size of the coefficients depends on the penalty; {_CHECK_LEAKS}"
    if separation is None:
        if not is_all_right:
            return ""
        return word(f"perfect separation: {_ALL_RIGHT}; without a penalty the coefficients may grow with every round: "
                    f"`objective.ridge=0.01` or `reg=l1` makes them finite; {_CHECK_LEAKS}")  # fmt: skip
    features = unpenalized[separation.features]
    unbounded = [f"'{name}'" for name in _feature_names(data)[features]]
    cure = "a factor above 0 (`reg.factors`)" if is_penalized(experiment) else "`reg=l1`"
    sentences = [word(f"the data determine no finite coefficient of {abbreviate(unbounded)}{separation.limits}: "
                      f"{objective.unbounded_reason}; the size of such a coefficient tells when the run ended, and has "
                      f"no meaning: `objective.ridge=0.01` or {cure} makes it finite")]  # fmt: skip
    if data.classes:
        sentences.insert(0, f"{separation.kind}: {_ALL_RIGHT}" if is_all_right else separation.kind)
        sentences.append(_CHECK_LEAKS)
    return "; ".join(sentences)


def _find_separation_of(
    unpenalized: Int[np.ndarray, " k"], objective: LinearModel, experiment: PreparedExperiment, data: FederatedData
) -> Separation | None:
    """Return the separation by the features that nothing penalizes; None also of rows not in memory, or sparse."""
    train = data.train
    if not len(unpenalized) or not experiment.has_shared_model or train.why_not_in_memory or train.why_not_dense:
        return None
    present = train.objective_weights(experiment.settings.client_weighting) > 0
    x = train.x[present][:, unpenalized]
    return find_separation(objective, x, train.y[present], train.known_client[present])


def name_separating_features(experiment: PreparedExperiment, data: FederatedData, reg: Regularizer) -> str:
    """Return a clause with the features of factor 0 that have no finite coefficient; "" for none.

    ``reg`` is the regularizer with the factors of these data's features.
    """
    unpenalized = np.flatnonzero(np.asarray(reg.feature_factors(data.train.x.shape[1])) == 0)
    objective = experiment.objective
    if not isinstance(objective, LinearModel):
        return ""
    separation = _find_separation_of(unpenalized, objective, experiment, data)
    if separation is None:
        return ""
    names = [f"'{name}'" for name in _feature_names(data)[unpenalized[separation.features]]]
    return f"the data determine no finite coefficient of {abbreviate(names)}{separation.limits}"


def find_unpenalized_features(
    experiment: PreparedExperiment, reg: Regularizer, n_features: int
) -> Int[np.ndarray, " k"]:
    """Return the numbers of the features that neither a ridge nor ``reg``, with their factors, penalizes."""
    if not is_penalized(experiment):
        return np.arange(n_features)
    if experiment.objective.ridge > 0 or not reg.has_free_features:
        return np.zeros(0, int)
    return np.flatnonzero(np.asarray(reg.feature_factors(n_features)) == 0)


def is_penalized(experiment: PreparedExperiment) -> bool:
    """Return whether a ridge or a regularizer bounds the coefficients of a run."""
    without_psi = isinstance(experiment.reg, NoRegularizer) or experiment.reg.strength_or_none == 0
    return experiment.objective.ridge > 0 or (experiment.applies_regularizer and not without_psi)


def _feature_names(data: FederatedData) -> np.ndarray:
    """Return the names of the features, (d,); x0, x1 and so on where they have none."""
    return np.array(data.features.names or [f"x{k}" for k in range(data.train.x.shape[1])])
