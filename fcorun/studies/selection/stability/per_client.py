"""Supports of the solutions that each client finds by itself."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.data.datasets.dataset import FederatedData
from fcorun.engine.device_rows import client_row_table
from fcorun.experiment.build import build_problem
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.problem import solver
from fcorun.methods.problem.problem import Batch
from fcorun.results.models.coefficients import nonzero_limits

_TOLERANCE = 1e-6
_ITERATIONS = 5000


def fit_client_supports(
    experiment: PreparedExperiment, data: FederatedData, param_name: str, value: float
) -> tuple[np.ndarray, np.ndarray]:
    """Solve the problem of each client alone; return the supports, (M, d), and which of them are valid, (M,).

    The solver minimizes the regularized loss of the client's rows, with their weights and offsets, in float64 at this
    strength or radius. A support is not valid if the rows with weight are of one class only, or if the solver did not
    certify its solution.
    """
    supports = []
    is_valid = []
    train = data.train
    n_features = train.x.shape[1]
    limits = nonzero_limits(experiment, data)[:, None]
    with jax.enable_x64(True):
        problem = build_problem(experiment, data)
        reg = problem.regularizer.with_value(param_name, value)
        compiled = solver.compile_programs(replace(problem, regularizer=reg), n_features)
        for m, padded_rows in enumerate(client_row_table(train.offsets)):  # padded with -1 to one length
            is_row = padded_rows >= 0
            rows = np.maximum(padded_rows, 0)
            x = train.x[rows].astype(np.float64) if train.x.dtype.kind == "f" else train.x[rows]
            y = train.y[rows].astype(np.int32 if data.task == "multiclass" else np.float64)
            weight = is_row / is_row.sum() * (1 if train.relative_weight is None else train.relative_weight[rows])
            offset = None if train.offset is None else jnp.asarray(train.offset[rows], jnp.float64)
            batch = Batch(jnp.asarray(x), jnp.asarray(y), jnp.asarray(weight), offset=offset)
            client_numbers = {name: float(values[m]) for name, values in (reg.per_client or {}).items()}
            client_problem = replace(problem, regularizer=replace(reg, **client_numbers))
            for iterate in solver.minimize(client_problem, batch, _TOLERANCE, _ITERATIONS, compiled=compiled):  # noqa: B007
                pass
            weights = np.abs(np.asarray(iterate.w["weights"])).reshape(n_features, -1)
            supports.append((weights > limits).any(axis=1))
            has_classes = not data.classes or len(np.unique(train.y[padded_rows[weight > 0]])) > 1
            is_valid.append(iterate.certified and has_classes)
    return np.array(supports), np.array(is_valid)
