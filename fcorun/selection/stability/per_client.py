"""What each client would choose by itself."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.engine.arrays import client_row_table
from fcorun.experiment.build import build_problem
from fcorun.experiment.experiment import Experiment
from fcorun.problem import solver
from fcorun.problem.problem import Batch

_TOLERANCE, _ITERATIONS = 1e-6, 5000


def fit_client_supports(
    experiment: Experiment, data: FederatedData, number: str, value: float
) -> tuple[np.ndarray, np.ndarray]:
    """Which features each client's own solution has, (M, d), and whether it is one, (M,).

    A solution is that of the client's rows alone, with their weights and offsets, solved in float64 at this strength or
    radius; it is none where the rows that weigh anything are of one class only, or the solver did not come to its
    certificate.
    """
    rows, found, sure = client_row_table(data.offsets), [], []
    with jax.enable_x64(True):
        problem = build_problem(experiment, data)
        reg = problem.regularizer.with_value(number, value)
        made = solver.compile_programs(replace(problem, regularizer=reg), data.x.shape[1])
        for m, own in enumerate(rows):
            there, each = own >= 0, np.maximum(own, 0)
            x = data.x[each].astype(np.float64) if data.x.dtype.kind == "f" else data.x[each]
            y = data.y[each].astype(np.int32 if data.task == "multiclass" else np.float64)
            weight = there / there.sum() * (1 if data.row_weights is None else data.row_weights[each])
            offset = None if data.offset is None else jnp.asarray(data.offset[each], jnp.float64)
            batch = Batch(jnp.asarray(x), jnp.asarray(y), jnp.asarray(weight), offset=offset)
            numbers = {name: float(values[m]) for name, values in (reg.per_client or {}).items()}
            mine = replace(problem, regularizer=replace(reg, **numbers))
            for now in solver.minimize(mine, batch, _TOLERANCE, _ITERATIONS, compiled=made):  # noqa: B007
                pass
            weights = np.abs(np.asarray(now.w["weights"])).reshape(data.x.shape[1], -1)
            found.append((weights > experiment.settings.cutoff).any(axis=1))
            several = data.task == "regression" or len(np.unique(data.y[own[weight > 0]])) > 1
            sure.append(now.certified and several)
    return np.array(found), np.array(sure)
