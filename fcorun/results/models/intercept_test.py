"""The likelihood-ratio test of the clients' intercepts: whether one intercept of all clients hides their differences.

Where clients differ in the level of the target and in their features, one intercept moves these differences into the
coefficients. The test compares the fits without a penalty, in the features that a model uses, with one intercept and
with an intercept of each client.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from fcorun.base.errors import UserError, word
from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.objectives.least_squares import LeastSquares
from fcorun.methods.objectives.log_link import LogLink
from fcorun.methods.problem.penalty import Penalty
from fcorun.results.inference.solution import solve
from fcorun.results.inference.sums import ModelRows, PooledSums, derivatives_in_prediction

ALPHA = 0.01
_ROWS_PER_PARAMETER = 10  # with fewer the statistic is larger than its distribution
_MOST_WORK = 2e9  # rows times squared parameters, a few seconds
_MOST_NUMBERS = 2e7  # rows times parameters
_INDEPENDENT = 1e-10  # the least share of the largest eigenvalue: combinations of features below are constant


class InterceptTest(NamedTuple):
    """A test of the hypothesis that all clients have the same intercept.

    Attributes:
        statistic: twice the difference of the log-likelihoods; of targets with a dispersion to estimate, F.
        degrees: the degrees of freedom of the clients.
        residual_degrees: those of the dispersion; infinite without one.
    """

    statistic: float
    degrees: int
    residual_degrees: float

    @property
    def p_value(self) -> float:
        """The p value."""
        from scipy.special import chdtrc, fdtrc  # scipy.stats takes longer to import than all tests of a sweep

        if np.isinf(self.residual_degrees):
            return float(chdtrc(self.degrees, self.statistic))
        return float(fdtrc(self.degrees, self.residual_degrees, self.statistic))


def warn_of_client_differences(
    experiment: PreparedExperiment, data: FederatedData, solution: Mapping[str, np.ndarray]
) -> str:
    """Return a remark if clients differ in their intercepts, and the model of a solution has one of all; else ""."""
    if not experiment.objective.takes_client_intercepts:
        return ""
    try:
        test = compare_intercepts(experiment, data, solution["weights"])
    except UserError:  # without a penalty there is no finite optimum, or sparse rows would be dense ones
        return ""
    if test is None or not test.p_value < ALPHA:
        return ""
    name = f"likelihood ratio {test.statistic:.4g}"
    degrees = f"{test.degrees}"
    if np.isfinite(test.residual_degrees):
        name = f"F {test.statistic:.4g}"
        degrees += f" and {test.residual_degrees:.0f}"
    p_value = "p below 0.001" if test.p_value < 0.001 else f"p {test.p_value:.3f}"
    options = "objective.client_intercepts=true"  # such fits take all rows, and one model
    if experiment.settings.batch_size is not None:
        options += " batch_size=null"
    if experiment.algo.traits.local_fits or experiment.algo.has_personal_models:
        options += " algo=newton"
    return word(f"the clients' intercepts differ ({name} with {degrees} degrees of freedom, {p_value}), and one "
                f"intercept moves such differences into the coefficients: `{options}` "
                "gives each client its own")  # fmt: skip


def compare_intercepts(
    experiment: PreparedExperiment, data: FederatedData, weights: np.ndarray
) -> InterceptTest | None:
    """Test the intercepts of the clients, in the features of nonzero weight (d,); in float64.

    Returns None where the test is not defined, or takes long: for rows without named clients or at sites, in groups or
    of unequal weights, for losses that are no likelihoods of single rows, for models without a shared intercept, and
    for few rows. Raises UserError where a fit has no finite optimum, and for more columns of sparse rows than
    SparseMatrix makes dense.
    """
    objective: Any = experiment.objective
    algo: Any = experiment.algo
    rows = data.train
    has_one_intercept = objective.intercept and not objective.client_intercepts
    fits_clients = algo.picks_client or getattr(algo, "has_client_estimates", False)
    if not has_one_intercept or fits_clients or len(data.classes) > 2 or len(data.clients) < 2:
        return None
    if rows.stays_at_sites or rows.why_not_in_memory or len(rows) < rows.n_rows or rows.group is not None:
        return None
    if rows.weight is not None and np.ptp(rows.weight):
        return None
    used = np.flatnonzero(np.ravel(weights))
    client = np.unique(rows.known_client, return_inverse=True)[1]
    n_rows = len(rows)
    n_parameters = len(used) + client.max() + 1
    is_large = n_rows * n_parameters > _MOST_NUMBERS or n_rows * n_parameters**2 > _MOST_WORK
    if n_rows < _ROWS_PER_PARAMETER * n_parameters or is_large or client.max() < 1:
        return None
    x = np.asarray(rows.x[:, used], float)
    with jax.enable_x64(True):
        shared = _fit(objective, data, x, np.zeros(n_rows, int))
        own = _fit(objective, data, x, client)
    degrees = own.n_parameters - shared.n_parameters
    if degrees < 1:  # features tell the clients apart
        return None
    statistic = 2 * n_rows * (shared.loss - own.loss)
    if objective.is_log_likelihood:
        return InterceptTest(statistic, degrees, np.inf)
    residual_degrees = n_rows - own.n_parameters
    dispersion = n_rows * own.pearson / residual_degrees
    if dispersion <= np.finfo(float).eps * np.mean(np.square(rows.y)):  # an exact fit, whose rest is rounding
        return None
    return InterceptTest(statistic / dispersion / degrees, degrees, residual_degrees)


class _Fit(NamedTuple):
    """A fit without a penalty: the mean loss, the number of parameters, and the mean squared Pearson residual."""

    loss: float
    n_parameters: int
    pearson: float


def _fit(objective: Any, data: FederatedData, x: Float[np.ndarray, "n k"], client: np.ndarray) -> _Fit:
    """Fit features and an intercept of each client; a client without a finite one adds no loss. Raises UserError.

    The features are centred at each client, and replaced by combinations that are independent of each other.
    """
    y = np.asarray(data.train.y, float)
    offset = np.zeros(len(y)) if data.train.offset is None else np.asarray(data.train.offset, float)
    indicators = (client[:, None] == np.arange(client.max() + 1)).astype(float)
    counts = indicators.sum(axis=0)
    centred = x - indicators @ (indicators.T @ x / counts[:, None])
    length = np.linalg.norm(centred, axis=0)
    centred = centred / np.where(length > 1e-10 * np.linalg.norm(x, axis=0), length, np.inf)
    eigenvalues, vectors = np.linalg.eigh(centred.T @ centred)
    kept = eigenvalues > _INDEPENDENT * eigenvalues.max(initial=0)
    combinations = vectors[:, kept] * np.sqrt(len(y) / eigenvalues[kept])
    mean = indicators.T @ y / counts
    finite = np.ones(len(mean), bool)
    if data.classes:
        finite = (mean > 0) & (mean < 1)
    elif isinstance(objective, LogLink):
        finite = mean > 0
    n_parameters = int(kept.sum()) + len(mean)
    if isinstance(objective, LeastSquares):  # the combinations and the indicators are orthogonal
        residual = y - offset
        residual = residual - indicators @ (indicators.T @ residual / counts)
        slopes = combinations.T @ (centred.T @ residual) / len(y)
        residual = residual - centred @ (combinations @ slopes)
        mean_square = float(np.mean(residual**2))
        return _Fit(mean_square, n_parameters, 2 * mean_square)
    is_used = finite[client]
    design = np.concatenate([centred @ combinations, indicators[:, finite]], axis=1)[is_used]
    rows = ModelRows(design, y[is_used], np.full(int(is_used.sum()), 1 / len(y)), offset[is_used])
    without_ridge = replace(objective, ridge=0.0)
    n_columns = design.shape[1]
    solution = solve(PooledSums(without_ridge, rows), Penalty.none(n_columns), np.zeros(n_columns))
    _, slope, curvature = derivatives_in_prediction(without_ridge, solution.theta, rows)
    pearson = float((slope**2).sum() / curvature.sum())
    return _Fit(solution.objective, n_parameters, pearson)
