"""Statements on a classifier at the end of a run: one class for all rows, classes that are separated perfectly."""

from collections.abc import Mapping

import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.engine.evaluate import objective_weights
from fcorun.experiment.experiment import Experiment
from fcorun.metrics import RANKING_METRICS
from fcorun.objectives.base import is_linear_model
from fcorun.regularizers.none import NoRegularizer
from fcorun.rows.host_rows import local_rows
from fcorun.rows.on_disk import DiskRows

_ROUNDING = 1e-6  # of an accuracy, a mean in float32
_MOST = 2**24  # numbers of the features that are looked through


def warn_constant_prediction(experiment: Experiment, data: FederatedData, row: Mapping[str, float]) -> str:
    """Return the remark that an accuracy of the last evaluation is the share of the largest class; empty if it is not.

    Of held-out rows where there are some, else of the training rows.
    """
    part = "val" if "val_accuracy" in row else "train"
    if data.task == "regression" or f"{part}_accuracy" not in row:
        return ""
    y, weight = data.y, objective_weights(data, experiment.settings.client_weighting)
    if part == "val":
        assert data.y_val is not None
        y, weight = data.y_val, np.ones(len(data.y_val)) if data.weight_val is None else data.weight_val
    shares = np.bincount(y, weight, len(data.classes)) / weight.sum()
    if abs(row[f"{part}_accuracy"] - shares.max()) > _ROUNDING:
        return ""
    better = [name for name in (f"{part}_loss", *RANKING_METRICS.values()) if name in row]
    better += [] if part == "val" else ["the scores of rows that are held out (data.test, data.validation)"]
    judges = " or ".join(filter(None, (", ".join(better[:-1]), better[-1])))
    return (f"{part}_accuracy {row[f'{part}_accuracy']:.4g} is what saying '{data.classes[shares.argmax()]}' of every "
            f"row gives, and tells nothing of the model: judge it by {judges}")  # fmt: skip


def warn_separation(experiment: Experiment, data: FederatedData, row: Mapping[str, float]) -> str:
    """Return the remark that the classes are separated perfectly, so that the size of coefficients says nothing.

    That is so where all training rows are classified right, or a single feature parts two classes but for ties. With a
    penalty the coefficients are finite, and it is said only where there are fewer features than rows.
    """
    objective = experiment.objective
    if data.task == "regression" or not (is_linear_model(type(objective)) and hasattr(objective, "probabilities")):
        return ""
    penalised = objective.ridge > 0 or not _without_penalty(experiment)
    right = 1 - row.get("train_accuracy", 0) < min(_ROUNDING, 0.5 / len(data.y))
    if penalised and not (right and data.x.shape[1] < len(data.y)):
        return ""
    feature = _separating(data)
    if not (right or feature):
        return ""
    told = ["every training row is classified right"] if right else []
    told += (
        [f"feature '{feature}' alone parts '{data.classes[0]}' from '{data.classes[1]}', but for ties"]
        if feature
        else []
    )
    end = ("the size of the coefficients is that of the penalty" if penalised else
           "without a penalty coefficients grow with every round, and their size says nothing: "
           "objective.ridge=0.01 or reg=l1 keeps them finite")  # fmt: skip
    return (f"perfect separation: {' and '.join(told)}; {end}; check that no feature was recorded after the outcome, "
            "or because of it")  # fmt: skip


def _without_penalty(experiment: Experiment) -> bool:
    none = isinstance(experiment.reg, NoRegularizer) or experiment.reg.strength_or_none == 0
    return none or not experiment.applies_regularizer


def _separating(data: FederatedData) -> str:
    """Return the name of the first feature whose values for one of two classes are nowhere above those for the other,
    nor all the same; empty where there is none."""
    x = local_rows(data.x)
    if len(data.classes) != 2 or isinstance(x, DiskRows) or data.host_bounds is not None or x.size > _MOST:
        return ""
    first, second = x[data.y == 0], x[data.y == 1]
    low = (first.max(axis=0) <= second.min(axis=0)) | (second.max(axis=0) <= first.min(axis=0))
    low &= np.minimum(first.min(axis=0), second.min(axis=0)) < np.maximum(first.max(axis=0), second.max(axis=0))
    if not low.any():
        return ""
    place = int(low.argmax())
    return data.features[place] if data.features else f"x{place}"
