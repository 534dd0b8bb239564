"""scores.csv: how good the model of a run is on the rows of training, validation and test, of all and by client."""

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

SHARED, PERSONAL = "shared", "own"  # a model of all clients; each client's own


def compute_scores(
    objective: Objective,
    data: FederatedData,
    solution: Arrays | None,
    models: Arrays | None = None,
    remote_predictions: Callable[[], Arrays] = dict,
) -> list[dict[str, object]]:
    """The rows of scores.csv; none where no rows are held out, or the model has numbers that are not finite.

    A row is of a ``set`` of rows (train, validation, test), a ``model`` (shared, or each client's own) and a
    ``client``, empty for all rows of the set. Then come ``n``, the mean ``loss``, and the figures of
    ``fcorun.models.score_functions``; of two classes ``positive`` names the one that sensitivity, prevalence and
    probabilities are of. Figures that rows do not define are empty. Each row counts once, whatever it weighs in
    training.

    Args:
        solution: the parameters by name of the model for all clients, or None.
        models: those of the clients by name, with a leading axis M, where they have own ones.
        elsewhere: gives predictions by set, without offsets, where not all rows of it are on this host.
    """
    finite = all(np.isfinite(value).all() for value in (*(solution or {}).values(), *(models or {}).values()))
    if len(data.splits) < 2 or not finite:
        return []
    found, known = list[dict[str, object]](), remote_predictions()
    for part, (x, y) in data.splits.items():
        owners, offset = data.client_of_row(part), data.offset_of(part)
        if solution is not None:
            raw = known[part] if part in known else compute_predictions(objective, solution, x, data.scale)
            prediction = _shifted(raw, offset)
            found += _of_rows(_ScoredRows(objective, data, prediction, y), owners, part, SHARED)
        if models is None or owners is None:
            continue
        places = {name: m for m, name in enumerate(data.client_names)}
        owner = np.array([places.get(name, -1) for name in owners])
        there = owner >= 0  # clients that are held out wholly have no models
        if there.any():
            prediction = predict_by_client(objective, models, owner[there], x[there], data.scale)
            prediction = _shifted(prediction, None if offset is None else offset[there])
            found += _of_rows(_ScoredRows(objective, data, prediction, y[there]), owners[there], part, PERSONAL)
    return found


def _shifted(prediction: np.ndarray, offset: np.ndarray | None) -> np.ndarray:
    return prediction if offset is None else prediction + offset


class _ScoredRows:
    """Rows of one set with their predictions by one model."""

    def __init__(self, objective: Objective, data: FederatedData, prediction: np.ndarray, y: np.ndarray):
        self.data, self.y, self.prediction = data, y, prediction
        self.losses = compute_losses(objective, prediction, y)
        told = expected_targets if data.task == "regression" else class_probabilities
        self.told = told(objective, prediction)  # what is expected, or the chances of the classes

    def figures(self, groups: Groups) -> dict[str, np.ndarray]:
        """All figures, each of shape (G,)."""
        y, told, task, prediction = self.y, self.told, self.data.task, self.prediction
        if task == "regression":
            more = {} if told is None else score_regression(np.asarray(y, float), told, groups)
        elif task == "binary":
            chance = None if told is None else told[:, 1]
            more = score_binary(y, (prediction > 0).astype(int), prediction.astype(float), chance, groups)
        else:
            more = score_multiclass(y, prediction.argmax(axis=1), told, groups, len(self.data.classes))
        own = {name: groups.mean(values) for name, values in self.losses.items() if name not in more}
        return {"n": groups.sizes.astype(int), **own, **more}


def _of_rows(rows: _ScoredRows, owners: np.ndarray | None, part: str, model: str) -> Iterator[dict[str, object]]:
    """The rows of scores.csv of one set and one model: of all clients together, then of each."""
    names, of = np.unique(np.full(len(rows.y), "") if owners is None else owners, return_inverse=True)
    places = {str(name): g for g, name in enumerate(names)}
    trained = [name for name in rows.data.client_names if name in places]
    held = [name for name in places if name and name not in set(trained)]  # wholly
    of_all, of_each = (rows.figures(Groups(*each)) for each in ((np.zeros(len(of), int), 1), (of, len(names))))
    for client, figures in (("", of_all), *((name, of_each) for name in (*trained, *held))):
        head: dict[str, object] = {"set": part, "model": model, "client": client}
        head |= {"positive": str(rows.data.classes[1])} if rows.data.task == "binary" else {}
        yield head | {name: _cell(values[places[client] if client else 0]) for name, values in figures.items()}


def _cell(value: np.number) -> object:
    return "" if np.isnan(value) else value.item()
