"""scores.csv: the scores of a run's model on the training, validation and test rows, of all clients and of each."""

from collections.abc import Callable, Iterator

import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.models.forward import (
    Arrays,
    class_probabilities,
    compute_losses,
    compute_predictions,
    expected_targets,
    predict_by_client,
)
from fcorun.models.score_functions import Groups, score_binary, score_multiclass, score_regression
from fcorun.objectives.base import Objective

SHARED, PERSONAL = "shared", "personal"  # the model of all clients; the personal models of the clients


def compute_scores(
    objective: Objective,
    data: FederatedData,
    solution: Arrays | None,
    models: Arrays | None = None,
    remote_predictions: Callable[[], Arrays] = dict,
) -> list[dict[str, object]]:
    """Return the rows of scores.csv; no rows if nothing is held out, or if the model is not finite.

    A row is about a ``set`` (train, validation, test), a ``model`` (shared, or personal: each client's personal model)
    and a ``client``, empty for all rows of the set. Then come ``n``, the mean ``loss``, and the scores of
    ``fcorun.models.score_functions``. For two classes, ``positive`` names the class of sensitivity, prevalence and
    probabilities. Scores that the rows do not define are empty. Each row counts once, whatever its training weight.

    Args:
        solution: the parameters by name of the shared model, or None.
        models: the parameters by name of the clients' personal models, with a leading axis M, or None.
        remote_predictions: returns predictions by set, without offsets, of sets with rows on other hosts.
    """
    parameters = [*(solution or {}).values(), *(models or {}).values()]
    if len(data.splits) < 2 or not all(np.isfinite(value).all() for value in parameters):
        return []
    predictions = remote_predictions()
    scores: list[dict[str, object]] = []
    for split, rows in data.splits.items():
        clients = data.client_of_row(split)
        offset = rows.offset
        if solution is not None:
            if split in predictions:
                prediction = predictions[split]
            else:
                prediction = compute_predictions(objective, solution, rows.x, data.features.scale)
            if offset is not None:
                prediction = prediction + offset
            scores += _score_split(_ScoredRows(objective, data, prediction, rows.y), clients, split, SHARED)
        if models is None or clients is None:
            continue
        index = {name: m for m, name in enumerate(data.client_names)}
        client = np.array([index.get(name, -1) for name in clients])
        has_model = client >= 0  # clients that are held out wholly have no models
        if has_model.any():
            prediction = predict_by_client(objective, models, client[has_model], rows.x[has_model], data.features.scale)
            if offset is not None:
                prediction = prediction + offset[has_model]
            scored = _ScoredRows(objective, data, prediction, rows.y[has_model])
            scores += _score_split(scored, clients[has_model], split, PERSONAL)
    return scores


class _ScoredRows:
    """Rows of one set with their predictions by one model."""

    def __init__(self, objective: Objective, data: FederatedData, prediction: np.ndarray, y: np.ndarray):
        self.data = data
        self.y = y
        self.prediction = prediction
        self.losses = compute_losses(objective, prediction, y)
        if data.task == "regression":
            self.expected = expected_targets(objective, prediction)
        else:
            self.expected = class_probabilities(objective, prediction)

    def scores(self, groups: Groups) -> dict[str, np.ndarray]:
        """Return all scores by name, each of shape (G,)."""
        y, expected, prediction = self.y, self.expected, self.prediction
        if self.data.task == "regression":
            scores = {} if expected is None else score_regression(np.asarray(y, float), expected, groups)
        elif self.data.task == "binary":
            probability = None if expected is None else expected[:, 1]
            label = (prediction > 0).astype(int)
            scores = score_binary(y, label, prediction.astype(float), probability, groups)
        else:
            scores = score_multiclass(y, prediction.argmax(axis=1), expected, groups, len(self.data.classes))
        losses = {name: groups.mean(values) for name, values in self.losses.items() if name not in scores}
        return {"n": groups.sizes.astype(int), **losses, **scores}


def _score_split(rows: _ScoredRows, clients: np.ndarray | None, split: str, model: str) -> Iterator[dict[str, object]]:
    """Yield the rows of scores.csv of one set and one model: all clients together, then each client."""
    n = len(rows.y)
    names, row_group = np.unique(np.full(n, "") if clients is None else clients, return_inverse=True)
    group = {str(name): g for g, name in enumerate(names)}
    trained = [name for name in rows.data.client_names if name in group]
    held_out = [name for name in group if name and name not in set(trained)]
    together = _to_lists(rows.scores(Groups(np.zeros(n, int), 1)))
    by_client = _to_lists(rows.scores(Groups(row_group, len(names))))
    for client in ("", *trained, *held_out):
        row: dict[str, object] = {"set": split, "model": model, "client": client}
        if rows.data.task == "binary":
            row["positive"] = str(rows.data.classes[1])
        for name, values in (by_client if client else together).items():
            row[name] = values[group[client] if client else 0]
        yield row


def _to_lists(scores: dict[str, np.ndarray]) -> dict[str, list[object]]:
    """Return the scores as plain numbers, "" for nan."""
    return {name: np.where(np.isnan(values), "", values.astype(object)).tolist() for name, values in scores.items()}
