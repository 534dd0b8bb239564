"""The minimum of F plus weighted l1 norms and a ridge: a proximal Newton method on sums over rows."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fcorun.base.errors import UserError
from fcorun.methods.problem.penalty import Penalty
from fcorun.results.inference.sums import DerivativeSums, RowSums

MAX_SWEEPS = 5000
_TOLERANCE = 1e-13  # of the largest change in a sweep, relative to the largest entry


def minimize_l1_quadratics(
    matrix: np.ndarray,
    right_sides: np.ndarray,
    penalty: np.ndarray,
    start: np.ndarray,
    *,
    tolerance: float = _TOLERANCE,
    max_sweeps: int = MAX_SWEEPS,
) -> np.ndarray:
    """Return for each column c of ``right_sides`` argmin_v v' A v / 2 - c' v + sum_k penalty_k |v_k|, (p, m).

    Cyclic coordinate descent (Friedman, Hastie and Tibshirani, J. Stat. Softw. 2010), one coordinate of all columns
    at a time. Its steps do not depend on the units of the coordinates. Call under enable_x64.

    Args:
        matrix: A, positive semidefinite (p, p). Coordinates whose diagonal entry is 0 stay at ``start``.
        right_sides: (p, m).
        penalty: (p, m), inf for entries that are 0.
        start: (p, m).
        tolerance: the largest change in a sweep, relative to the largest entry, at which it ends.
        max_sweeps: the sweeps after which it ends without a word.
    """
    return np.asarray(_descend(matrix, right_sides, penalty, start, (tolerance, max_sweeps)))


@jax.jit
def _descend(matrix, right_sides, penalty, start, limits):
    """Run coordinate descent. Changes are compared in units in which the diagonal of the matrix is 1."""
    unit = jnp.sqrt(jnp.diagonal(matrix))[:, None]
    tolerance, max_sweeps = limits

    def update(k, v):
        row = lax.dynamic_index_in_dim(matrix, k, keepdims=False)
        z = row[k] * v[k] - (row @ v - right_sides[k])
        new = jnp.sign(z) * jnp.maximum(jnp.abs(z) - penalty[k], 0) / row[k]
        return v.at[k].set(jnp.where(row[k] > 0, new, v[k]))

    def sweep(state):
        v, _, count = state
        new = lax.fori_loop(0, len(matrix), update, v)
        return new, (jnp.abs(new - v) * unit).max() > tolerance * (jnp.abs(new) * unit).max(), count + 1

    def proceeds(state):
        return state[1] & (state[2] < max_sweeps)

    return lax.while_loop(proceeds, sweep, (start, jnp.ones((), bool), 0))[0]


MAX_STEPS = 100
TOLERANCE = 1e-13  # of the predicted decrease, relative to the objective at 0
NO_OPTIMUM_ADVICE = (
    "check the data for a feature that separates the classes, orders all events or marks rows whose targets are all 0, "
    "or give a penalty"
)
_SHORT = 1e-3  # of a last step, relative to a parameter
_SMALLEST_STEP = 1e-12  # of the line search, which then ends without a decrease
_ARMIJO = 1e-4  # the share of the predicted decrease that a step must reach
_SMALLEST_EIGENVALUE = 1e-10  # of a Hessian with ones on its diagonal


@dataclass(frozen=True, eq=False)
class PenalizedSolution:
    """A minimum of F plus a penalty.

    Attributes:
        theta: the parameters (p,).
        objective: F plus the penalty.
        predicted_decrease: the decrease by the last step of its linear part and of the l1 norms (Tseng and Yun, Math.
            Program. 2009), at least the decrease of the quadratic model.
        sums: the derivatives of F.
    """

    theta: np.ndarray
    objective: float
    predicted_decrease: float
    sums: DerivativeSums


class SingularHessian(UserError):
    """An error for features that are linear combinations of each other, or a model without a finite optimum.

    Attributes:
        parameters: the positions in theta of the parameters that a combination with almost no curvature consists of.
    """

    def __init__(self, parameters: list[int]):
        super().__init__(f"the Hessian is singular in parameters {parameters}")
        self.parameters = parameters


def solve(sums: RowSums, penalty: Penalty, start: np.ndarray) -> PenalizedSolution:
    """Minimize F plus a penalty from ``start`` (p,). Call under enable_x64.

    Raises SingularHessian if parameters without a penalty are not determined, and UserError if ``MAX_STEPS`` steps do
    not reach the optimum.
    """
    at_zero = sums.derivatives(np.zeros_like(start))
    scale = abs(at_zero.loss)
    unit = 1 / np.sqrt(np.maximum(np.diagonal(at_zero.hessian), 1e-300))  # the natural unit of each parameter
    theta = start
    current = sums.derivatives(start) if start.any() else at_zero
    if not np.isfinite(current.loss):
        theta = np.zeros_like(start)
        current = at_zero
    for _ in range(MAX_STEPS):
        value = current.loss + penalty.value(theta)
        gradient = current.gradient + penalty.ridge * theta
        minimum = _minimize_model(gradient, current.hessian + np.diag(penalty.ridge), penalty.l1, theta)
        move = minimum - theta
        decrease = float(-gradient @ move + penalty.l1 @ (np.abs(theta) - np.abs(minimum)))
        is_short = (np.abs(move) <= _SHORT * (np.abs(theta) + unit)).all()  # not while separated classes diverge
        if decrease <= TOLERANCE * scale and is_short:
            last = sums.derivatives(minimum)
            return PenalizedSolution(minimum, last.loss + penalty.value(minimum), max(decrease, 0.0), last)
        step = 1.0
        while True:
            proposed = sums.derivatives(theta + step * move)
            target = value - _ARMIJO * step * decrease + 1e-14 * abs(value) + 2 * sums.loss_error
            if proposed.loss + penalty.value(theta + step * move) <= target or step < _SMALLEST_STEP:
                break
            step /= 2
        theta = theta + step * move
        current = proposed
    raise UserError(f"no finite optimum was reached in {MAX_STEPS} steps: {NO_OPTIMUM_ADVICE}")


def check_regular(hessian: np.ndarray) -> None:
    """Raise SingularHessian for a Hessian that cannot be inverted, whatever the units of its features."""
    diagonal = np.diagonal(hessian)
    unusable = ~(diagonal > 0) | ~np.isfinite(hessian).all(axis=1)
    if unusable.any():
        raise SingularHessian(np.flatnonzero(unusable).tolist())
    scale = 1 / np.sqrt(diagonal)
    eigenvalues, vectors = np.linalg.eigh(hessian * scale * scale[:, None])
    if eigenvalues[0] < _SMALLEST_EIGENVALUE:
        direction = np.abs(vectors[:, 0])
        raise SingularHessian(np.flatnonzero(direction > 0.1 * direction.max()).tolist())


def _minimize_model(gradient: np.ndarray, hessian: np.ndarray, l1: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Return argmin_v <gradient, v - theta> + (v - theta)' hessian (v - theta) / 2 + l1'|v|.

    Parameters without an l1 penalty are eliminated, as in ``fcorun.methods.problem.penalized_quadratic``.
    """
    free = np.flatnonzero(l1 == 0)
    penalized = np.flatnonzero(l1 > 0)
    new = theta.copy()
    linear = hessian @ theta - gradient  # the model is v' hessian v / 2 - linear' v + l1'|v|
    if not len(free):
        new[:] = minimize_l1_quadratics(hessian, linear[:, None], l1[:, None], theta[:, None])[:, 0]
        return new
    free_block = hessian[np.ix_(free, free)]
    try:
        check_regular(free_block)
    except SingularHessian as error:
        raise SingularHessian(free[error.parameters].tolist()) from error
    cross = hessian[np.ix_(free, penalized)]
    if len(penalized):
        eliminated = _solve_scaled(free_block, cross)
        reduced = hessian[np.ix_(penalized, penalized)] - cross.T @ eliminated
        slopes = linear[penalized] - eliminated.T @ linear[free]
        columns = minimize_l1_quadratics(reduced, slopes[:, None], l1[penalized][:, None], theta[penalized][:, None])
        new[penalized] = columns[:, 0]
    new[free] = _solve_scaled(free_block, linear[free] - cross @ new[penalized])
    return new


def _solve_scaled(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve a system after scaling the diagonal of its matrix to 1."""
    scale = 1 / np.sqrt(np.diagonal(matrix))
    scaled_right = (right.T * scale).T
    return (np.linalg.solve(matrix * scale * scale[:, None], scaled_right).T * scale).T
