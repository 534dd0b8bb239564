"""The forward pass of a trained model: predictions of examples, and losses, probabilities and means from these."""

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.system.machine import use_precision
from fcorun.methods.objectives.objective import Objective, add_intercept, is_linear_model

_BLOCK_ENTRIES = 2**24  # numbers in a block of examples
_PADDED_LENGTH = 2**13  # rows are computed in multiples of so many

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
        if not is_linear_model(type(objective)):
            with use_precision(str(dtype)):
                on_device = {name: jnp.asarray(value) for name, value in params.items()}
                predictions.append(np.asarray(objective.predict(on_device, jnp.asarray(block))))
            continue
        weights = params["weights"]
        n_features = x.shape[1]
        outputs = weights.size // n_features
        weights = weights.reshape(n_features, outputs) if outputs > 1 else weights.reshape(n_features)
        prediction = block @ weights
        if "bias" in params:
            prediction = add_intercept(prediction, params["bias"][None])
        predictions.append(prediction)
    return np.concatenate(predictions)


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
    if not objective.has_client_losses:  # which take no other rows
        prediction = _pad(prediction)
        y = _pad(y)
    with jax.enable_x64(True):
        predictions = jax.device_put(np.asarray(prediction, float))  # jnp.asarray would compile for each shape
        targets = jax.device_put(np.asarray(y, None if prediction.ndim > 1 else float))
        if objective.has_client_losses:
            weight = jax.device_put(np.ones(n_rows))
            losses = jax.jit(objective.client_losses)(predictions, targets, weight, client)
        else:
            losses = objective.loss(predictions, targets)
        scores = {"loss": losses, **objective.scores(predictions, targets)}
        return {name: np.asarray(values, float)[:n_rows] for name, values in scores.items()}


def class_probabilities(objective: Objective, prediction: np.ndarray) -> np.ndarray | None:
    """Return the probabilities of the classes, shape (n, classes); None if the objective defines none."""
    return _transform(objective, "probabilities", prediction)


def expected_targets(objective: Objective, prediction: np.ndarray) -> np.ndarray | None:
    """Return the expected target of each row of a regression, shape (n,); None if the objective defines none."""
    return _transform(objective, "response", prediction)


def _transform(objective: Objective, name: str, prediction: np.ndarray) -> np.ndarray | None:
    """Return what a method that an objective may have makes of predictions."""
    if not hasattr(objective, name):
        return None
    with jax.enable_x64(True):
        rows = np.asarray(prediction, float)
        if rows.ndim == 1:  # many classes would take memory
            rows = _pad(rows)
        return np.asarray(getattr(objective, name)(jax.device_put(rows)), float)[: len(prediction)]


def _pad(rows: np.ndarray) -> np.ndarray:
    """Repeat the last row, so that sets of similar lengths share JAX's compiled operations."""
    padding = -len(rows) % _PADDED_LENGTH
    return np.pad(rows, [(0, padding), *[(0, 0)] * (rows.ndim - 1)], mode="edge")
