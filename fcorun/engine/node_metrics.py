"""Metrics of the models of the nodes of a graph."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from fcorun.engine.evaluate import Evaluation
from fcorun.methods.problem.problem import Problem, Vector

_MAX_PREDICTIONS = 2**23  # of the nodes whose models are evaluated together


def measure_nodes(
    evaluation: Evaluation, problem: Problem, models: Vector, mean_model: Vector, *, weights: np.ndarray, rows: tuple
) -> dict[str, Float[Array, ""]]:
    """Return the objective of the node with the largest one, and the distance of the nodes from ``mean_model``.

    The distance is the root of the mean of the nodes' squared distances, with their weights in F. ``models`` are
    stacked along a leading axis M, as are ``weights``; ``rows`` are x and y of all training rows, and what else belongs
    to rows.
    """
    x, y, extra = rows

    def objective(w: Vector) -> jax.Array:
        sums = {"train": evaluation.weighted_scores(problem, w, x, y, extra)}
        return evaluation.metrics_from_sums(problem, w, sums, extra)["objective"]

    objectives = lax.map(objective, models, batch_size=max(_MAX_PREDICTIONS // len(y), 1))
    distances = jax.vmap(lambda w: (w - mean_model).norm())(models)
    squares = jnp.asarray(weights, distances.dtype) @ distances**2
    return {"worst_node_objective": objectives.max(), "consensus_distance": jnp.sqrt(squares)}
