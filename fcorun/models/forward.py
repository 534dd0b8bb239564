"""What a model gives for examples: predictions, and what they say of the target."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.objectives.base import Objective, is_linear_model

_AT_ONCE = 2**24  # numbers of a block of examples

Arrays = dict[str, np.ndarray]


def compute_predictions(objective: Objective, params: Arrays, x: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """Predictions (n,) or (n, classes) of examples x (n, d), times ``scale``, in the precision of the parameters."""
    dtype = next(iter(params.values())).dtype
    block = max(_AT_ONCE // max(x.shape[1], 1), 1)
    parts = (x[i : i + block].astype(dtype, copy=False) for i in range(0, max(len(x), 1), block))
    return np.concatenate([_of_features(objective, params, p if scale == 1 else p * dtype.type(scale)) for p in parts])


def _of_features(objective: Objective, params: Arrays, x: np.ndarray) -> np.ndarray:
    if not is_linear_model(type(objective)):
        with jax.enable_x64(x.dtype == np.float64):
            on_device = {name: jnp.asarray(value) for name, value in params.items()}
            return np.asarray(objective.predict(on_device, jnp.asarray(x)))
    weights = params["weights"]
    outputs = weights.size // x.shape[1]
    return x @ weights.reshape(x.shape[1], *((outputs,) if outputs > 1 else ())) + params.get("bias", 0)


def predict_by_client(
    objective: Objective, models: Arrays, owner: np.ndarray, x: np.ndarray, scale: float = 1.0
) -> np.ndarray:
    """Predictions of examples x (n, d), each by its client's model: ``owner`` (n,), of models with a leading axis M."""
    order = np.argsort(owner, kind="stable")
    who, first = np.unique(owner[order], return_index=True)
    parts = np.split(order, first[1:])
    longest = max(map(len, parts))
    found: Any = [None] * len(parts)
    for place, (m, rows) in enumerate(zip(who, parts, strict=True)):
        params = {name: values[m] for name, values in models.items()}
        mine = x[rows]
        if not is_linear_model(type(objective)):  # one program for all
            mine = np.pad(mine, ((0, longest - len(rows)), (0, 0)))
        found[place] = compute_predictions(objective, params, mine, scale)[: len(rows)]
    out = np.concatenate(found)
    back = np.empty_like(out)
    back[order] = out
    return back


def compute_losses(objective: Objective, prediction: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """The loss of each example, shape (n,), and further figures that the objective has."""
    with jax.enable_x64(True):
        prediction_, y_ = jnp.asarray(prediction, float), jnp.asarray(y, None if prediction.ndim > 1 else float)
        found = {"loss": objective.loss(prediction_, y_), **objective.scores(prediction_, y_)}
        return {name: np.asarray(values, float) for name, values in found.items()}


def class_probabilities(objective: Objective, prediction: np.ndarray) -> np.ndarray | None:
    """Those of the classes, shape (n, classes); None where the objective does not say."""
    if not hasattr(objective, "probabilities"):
        return None
    with jax.enable_x64(True):
        return np.asarray(objective.probabilities(jnp.asarray(prediction, float)), float)  # type: ignore[attr-defined]


def expected_targets(objective: Objective, prediction: np.ndarray) -> np.ndarray | None:
    """What is expected of the target of a regression, shape (n,); None where the objective does not say."""
    if not hasattr(objective, "response"):
        return None
    with jax.enable_x64(True):
        return np.asarray(objective.response(jnp.asarray(prediction, float)), float)  # type: ignore[attr-defined]
