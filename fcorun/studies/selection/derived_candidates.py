"""Candidates of a comparison without fits of their own: the shared model recalibrated, and the means of clients."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fcorun.base.errors import UserError, abbreviate
from fcorun.base.records.record import OUT_OF_FOLD, PREDICTIONS_FILE, SHARED
from fcorun.base.system.files import write_atomically
from fcorun.data.rows.rows import Rows
from fcorun.data.tasks import find_task
from fcorun.methods.objectives.objective import LinearModel
from fcorun.methods.problem.penalty import Penalty
from fcorun.results.inference.solution import solve
from fcorun.results.inference.sums import ModelRows, PooledSums
from fcorun.results.model_outputs import compute_predictions
from fcorun.results.models.predictions import choose_thresholds, predictions_csv
from fcorun.results.score_intervals.held_out_rows import HeldOutRows
from fcorun.studies.selection.fitting import join_folds
from fcorun.studies.selection.select import SelectionPlan
from fcorun.studies.selection.selection_result import Selection

RECALIBRATED, MEAN = "recalibrated", "mean"
_SHORTEST = 64  # padded rows of a client, so that clients of similar sizes share a compiled program


def write_recalibrated(plan: SelectionPlan, selection: Selection, folder: Path) -> list[str]:
    """Write predictions.csv of the recalibrated shared model, out of fold, into a folder, and return warnings.

    The training rows of each client in an outer fold determine an intercept and a slope of the shared model of that
    fold, by the loss of the model without a penalty. A client whose rows do not determine them gets an intercept alone,
    or the shared model as it is. Raises UserError for models that have no single linear predictor.
    """
    study = plan.study
    objective: Any = study.experiment.objective
    if objective.client_intercepts:
        raise UserError("the shared model has intercepts of clients already")
    if not isinstance(objective, LinearModel) or objective.has_client_losses or not objective.has_hessian:
        raise UserError("the loss of the model determines no intercept and slope of a client")
    if len(study.data.classes) > 2:
        raise UserError("a model of several classes has no single linear predictor")
    rows = {}
    outputs = []
    without_slope: set[str] = set()
    as_shared: set[str] = set()
    for number, (name, index) in enumerate(selection.outer_choices.items(), start=1):
        subset = study.take_subset(name).data
        rows[number] = np.flatnonzero(study.subsets[name].validation)
        solution = {key: values[index] for key, values in selection.computed_fits[name].solution.items()}
        clients = {}
        predictors = {}
        for split in ("train", "validation"):
            clients[split] = subset.client_of_row(split)
            output = compute_predictions(objective, solution, subset.splits[split].x, subset.features.scale)
            predictors[split] = output.astype(float)
        if any(names is None for names in clients.values()):
            raise UserError("it is not known which client the rows are of")
        recalibrated, of_slope, of_model = recalibrate_clients(objective, predictors, clients, subset.train)
        without_slope |= of_slope
        as_shared |= of_model
        outputs.append({SHARED: recalibrated})
    predictions = join_folds(objective, study.data, rows, outputs)
    if not predictions:
        raise UserError("the shared model of some fold is not finite")
    if predictions[0].probability is not None:
        predictions = choose_thresholds(predictions, plan.threshold, OUT_OF_FOLD).apply(predictions)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / PREDICTIONS_FILE, predictions_csv(predictions))
    warnings = []
    if without_slope:
        warnings.append(f"{RECALIBRATED}: {abbreviate(sorted(without_slope))} keep the slope of the shared model in "
                        "some fold, since their training rows determine an intercept alone")  # fmt: skip
    if as_shared:
        warnings.append(f"{RECALIBRATED}: {abbreviate(sorted(as_shared))} keep the shared model as it is in some fold, "
                        "since they have no training rows there, or rows that determine not even an intercept"
                        )  # fmt: skip
    return warnings


def recalibrate_clients(
    objective: LinearModel, predictors: Mapping[str, np.ndarray], clients: Mapping[str, np.ndarray], train: Rows
) -> tuple[np.ndarray, set[str], set[str]]:
    """Return the recalibrated predictors of the validation rows, (n,), and the clients without a slope of their own.

    The first set of clients has an intercept alone, the second the shared model as it is.

    Args:
        objective: the loss of the model.
        predictors: the linear predictors of the shared model, of the rows of "train" and of "validation".
        clients: the names of the clients of these rows.
        train: the rows of "train".
    """
    recalibrated = predictors["validation"].copy()
    without_slope = set()
    as_shared = set()
    for client in np.unique(clients["validation"]):
        own = np.flatnonzero(clients["train"] == client)
        slope, intercept = _fit_client(objective, predictors["train"][own], train.take(own))
        if intercept is None:
            as_shared.add(str(client))
            continue
        if slope is None:
            without_slope.add(str(client))
            slope = 1.0
        is_own = clients["validation"] == client
        recalibrated[is_own] = recalibrated[is_own] * slope + intercept
    return recalibrated, without_slope, as_shared


def _fit_client(objective: LinearModel, predictor: np.ndarray, rows: Rows) -> tuple[float | None, float | None]:
    """Return the slope and the intercept that minimize a client's loss.

    Where the loss has no such minimum, the slope is None, and the intercept is the one that minimizes the loss with the
    slope 1. Where no intercept does, as without rows, both are None.
    """
    n = len(predictor)
    weight = np.ones(n) if rows.weight is None else rows.weight
    if not weight.any():
        return None, None
    padding = (0, max(_SHORTEST, 2 ** (n - 1).bit_length()) - n)
    weight = np.pad(weight / weight.sum(), padding)
    target = np.pad(rows.y.astype(float), padding, mode="edge")
    offset = np.zeros(len(target)) if rows.offset is None else np.pad(rows.offset.astype(float), padding)
    predictor = np.pad(predictor, padding)
    ones = np.ones(len(target))
    both = ModelRows(np.stack([predictor, ones], axis=1), target, weight, offset)
    alone = ModelRows(ones[:, None], target, weight, offset + predictor)
    without_ridge = replace(objective, ridge=0.0)
    with jax.enable_x64(True):
        with suppress(UserError):
            slope, intercept = solve(PooledSums(without_ridge, both), Penalty.none(2), np.array([1.0, 0.0])).theta
            return float(slope), float(intercept)
        with suppress(UserError):
            return None, float(solve(PooledSums(without_ridge, alone), Penalty.none(1), np.zeros(1)).theta[0])
    return None, None


def predict_means(rows: HeldOutRows) -> HeldOutRows:
    """Predict each row by the mean of the targets of its client in the other folds.

    To the rows of the client, a mean adds one whose target is the mean over the rows of all clients in the other folds:
    a share of 0 would have an infinite log loss, and a client without rows in the other folds has the mean over all of
    them. All rows count alike, whatever their weights.
    """
    assert rows.fold is not None
    targets = rows.target.astype(float)[:, None]
    if rows.classes:
        targets = np.eye(len(rows.classes))[rows.target]
    means = np.empty_like(targets)
    for fold in np.unique(rows.fold):
        is_training = rows.fold != fold
        of_all = targets[is_training].mean(axis=0)
        for client in np.unique(rows.client):
            is_own = rows.client == client
            client_targets = targets[is_training & is_own]
            means[is_own & ~is_training] = (client_targets.sum(axis=0) + of_all) / (len(client_targets) + 1)
    if not rows.classes:
        return replace(rows, model=MEAN, prediction=means[:, 0])
    probability = means[:, 1] if find_task(rows.task).has_two_classes else means
    if rows.probability is None:  # the other models have no scores of probabilities
        probability = None
    return replace(rows, model=MEAN, prediction=means.argmax(axis=1), probability=probability)
