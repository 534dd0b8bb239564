"""scores.csv: the scores of a run's model on the training, validation and test rows, of all clients and of each."""

from collections.abc import Iterator, Sequence

import numpy as np

from fcorun.models.predictions import Predictions
from fcorun.models.score_functions import Groups, score_binary, score_multiclass, score_regression
from fcorun.models.survival import score_survival


def tabulate_scores(predictions: Sequence[Predictions]) -> list[dict[str, object]]:
    """Return the lines of scores.csv.

    A line is about a ``set`` (train, validation, test), a ``model`` (shared, or personal: each client's personal model)
    and a ``client``, empty for all clients. Then come ``n``, the number of data rows, for two classes and for times
    ``events``, the number of positive rows or of events, the scores that the objective declares, such as ``loss``, and
    those of ``fcorun.models.score_functions``, or of ``fcorun.models.survival`` for times. For two classes,
    ``positive`` names the class that events, sensitivity, prevalence and probabilities are about. Scores that the rows
    do not define are empty. Each row counts once, whatever its training weight.
    """
    return [row for of_split in predictions for row in _score_split(of_split)]


def scores_by_group(predictions: Predictions, groups: Groups) -> dict[str, np.ndarray]:
    """Return all scores of groups of the rows by name, each of shape (G,)."""
    y, expected, output = predictions.y, predictions.expected, predictions.output
    if predictions.data.task == "regression":
        scores = {} if expected is None else score_regression(np.asarray(y, float), expected, groups)
    elif predictions.data.task == "survival":
        scores = score_survival(y, output.astype(float), predictions.client_numbers, groups)
    elif predictions.data.task == "binary":
        scores = score_binary(y, predictions.label, output.astype(float), predictions.probability, groups)
    else:
        scores = score_multiclass(y, predictions.label, expected, groups, len(predictions.data.classes))
    losses = {name: groups.mean(values) for name, values in predictions.losses.items() if name not in scores}
    counts = {"n": groups.sizes.astype(int)}
    if predictions.data.task in ("binary", "survival"):
        counts["events"] = groups.total(np.asarray(y) > 0).astype(int)
    return {**counts, **losses, **scores}


def _score_split(predictions: Predictions) -> Iterator[dict[str, object]]:
    """Yield the lines of scores.csv of one set and one model: all clients together, then each client."""
    n, data = len(predictions), predictions.data
    clients = np.full(n, "") if predictions.clients is None else predictions.clients
    names, row_group = np.unique(clients, return_inverse=True)
    group = {str(name): g for g, name in enumerate(names)}
    trained = [name for name in data.client_names if name in group]
    held_out = [name for name in group if name and name not in set(trained)]
    together = _to_lists(scores_by_group(predictions, Groups(np.zeros(n, int), 1)))
    by_client = _to_lists(scores_by_group(predictions, Groups(row_group, len(names))))
    for client in ("", *trained, *held_out):
        row: dict[str, object] = {"set": predictions.split, "model": predictions.model, "client": client}
        if data.task == "binary":
            row["positive"] = str(data.classes[1])
        for name, values in (by_client if client else together).items():
            row[name] = values[group[client] if client else 0]
        yield row


def _to_lists(scores: dict[str, np.ndarray]) -> dict[str, list[object]]:
    """Return the scores as plain numbers, "" for nan."""
    return {name: np.where(np.isnan(values), "", values.astype(object)).tolist() for name, values in scores.items()}
