"""Minima of F + psi along a path of strengths: a proximal Newton method in NumPy, of which nothing is compiled.

psi is a sum of l1_j |w_j| + ridge_j w_j^2 / 2 over the features. Each problem starts from the minimum of the one
before, as in Friedman, Hastie and Tibshirani (J. Stat. Softw. 2010), with the features that the sequential strong rule
keeps (Tibshirani et al., J. R. Stat. Soc. B 2012). Features left out whose optimality condition fails then join them.
A step goes to the minimum of a quadratic model of F plus psi (Lee, Sun and Saunders, SIAM J. Optim. 2014), which
``SignSearch`` finds. The gradient of the model is exact, and its Hessian may be that of an earlier point, since a
Hessian costs as much as many steps. Of sparse or many features no Hessian is formed: its products with vectors are
computed from the rows, and a step goes only near the minimum of the model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from threadpoolctl import threadpool_limits

from fcorun.base.system.files import check_interrupted
from fcorun.data.rows.features import to_numpy, why_not_dense
from fcorun.methods.objectives.intercepts import find_intercepts
from fcorun.methods.objectives.objective import LinearModel, LossDerivatives, is_linear_model
from fcorun.methods.problem import solver
from fcorun.methods.problem.duality_gap import has_one_output
from fcorun.methods.problem.penalized_quadratic import MAX_PARAMETERS
from fcorun.methods.problem.penalty import MAX_WORKING, Penalty
from fcorun.methods.problem.problem import Batch, Problem, Vector
from fcorun.methods.problem.row_products import RowHessian, SparseFeatures, arrange_features
from fcorun.methods.problem.sign_search import CautiousSignSearch, ProductSignSearch, SignSearch, add_to_diagonal

MAX_WORKING_OF_WIDE = 4096  # of more features
_ATTEMPTS = 20  # to reach the tolerance, each with the features that violate their condition
_MAX_STEPS = 200
_STEPS_PER_HESSIAN = 8  # cost as much as a Hessian
_ARMIJO = 1e-4  # the share of the predicted decrease that a step must reach
_SMALLEST_STEP = 1e-10
_ROUNDING = 1e-14  # of a value, relative to it
_FEASIBLE = 1e-12  # of the sum of the slopes, relative to the sum of their sizes: that of the best intercept
_PATH_FACTOR = 1.3  # of l1 on the way to a first minimum; with 2 or more the strong rule leaves no feature out
_WIDE_PATH_FACTOR = 1.4  # without the strong rule
_LOOSE = 0.1  # of the loss of the null model: the goal on this way
_may_overflow = np.errstate(over="ignore", invalid="ignore")  # at predictions far away, where the path ends


class PathRows(NamedTuple):
    """The n rows of a path, sorted by client.

    Attributes:
        x: the features (p, n), with a row of ones for an intercept, which is the last one.
        y, weight, offset, client: the targets, the weights in F, the offsets and the clients, each (n,).
    """

    x: Float[np.ndarray, "p n"] | SparseFeatures
    y: Shaped[np.ndarray, " n"]
    weight: Float[np.ndarray, " n"]
    offset: Float[np.ndarray, " n"]
    client: Int[np.ndarray, " n"]

    @classmethod
    def of_batch(cls, problem: Problem, batch: Batch) -> "PathRows":
        """Return the rows of a batch that have a weight."""
        weight = np.asarray(batch.weight)
        has_weight = weight > 0
        has_intercept = "bias" in problem.shapes
        rows = to_numpy(batch.x)
        x = arrange_features(rows if has_weight.all() else rows[has_weight], problem.scale, has_intercept)
        y = np.asarray(batch.y)[has_weight]
        offset = np.zeros(len(y)) if batch.offset is None else np.asarray(batch.offset)[has_weight]
        client = np.zeros(len(y), int) if batch.client is None else np.asarray(batch.client)[has_weight]
        return cls(x, y, weight[has_weight], offset, client)


class PathPoint(NamedTuple):
    """A point of a path.

    Attributes:
        w: the parameters.
        excess: an upper bound on F + psi at the point minus its minimum; infinite if none is known.
        certified: whether the bound has reached the tolerance.
    """

    w: Vector
    excess: float
    certified: bool


def has_path_solver(problem: Problem, batch: Batch) -> bool:
    """Return whether ``solve_path`` solves a problem: a linear model of one output, derivatives in NumPy, and psi."""
    objective = problem.objective
    n_rows, n_features = batch.x.shape
    return (
        isinstance(objective, LinearModel)
        and is_linear_model(type(objective))
        and objective.has_numpy_derivatives
        and has_one_output(problem, n_features)
        and "l1_and_ridge" in vars(type(problem.regularizer))
        and (why_not_dense(batch.x) != "" or min(n_rows, n_features) <= MAX_PARAMETERS)
    )


def solve_path(problems: Sequence[Problem], batch: Batch, tolerance: float) -> Iterator[PathPoint]:
    """Yield the minimum of each of the problems, which differ in the numbers of psi alone.

    A point is certified if its ``excess`` is at most ``tolerance`` times the objective of the model without features.
    The path ends early where more than ``MAX_WORKING_OF_WIDE`` features may be nonzero, or the point or its loss is not
    finite: the problems left have no points.
    Call and consume this generator under ``jax.enable_x64(True)``.
    """
    state = _start_path(problems[0], batch, tolerance)
    for problem in problems:
        excess = state.find_minimum(Penalty.of_problem(problem, batch.x.shape[1]))
        if excess is None:
            return
        yield PathPoint(state.parameters(problem), excess, excess <= state.goal)


class RowsPoint(NamedTuple):
    """The parameters (p,) that minimize, an intercept last, and whether their bound reaches the tolerance."""

    theta: Float[np.ndarray, " p"]
    certified: bool


def solve_rows(
    objective: LinearModel,
    rows: PathRows,
    has_intercept: bool,
    penalties: Sequence[Penalty],
    tolerance: float,
) -> Iterator[RowsPoint]:
    """Yield the minima of ``solve_path`` for rows that are prepared once, as for many targets of the same features.

    The first minimum is approached along a path of its own: from 0 it takes several times as long where few of many
    features remain.
    """
    state_class = _WidePathState if _is_wide(rows, has_intercept) else _CautiousPathState
    state = state_class(objective, rows, has_intercept, tolerance)
    state.approach(penalties[0])
    for penalty in penalties:
        excess = state.find_minimum(penalty)
        if excess is None:
            return
        yield RowsPoint(state.theta.copy(), excess <= state.goal)


def minimize(
    problem: Problem,
    batch: Batch,
    tolerance: float,
    max_iterations: int,
    compiled: solver.SolverPrograms | None = None,
) -> Iterator[solver.Iterate]:
    """Yield the iterates of ``solver.minimize``; where the method of this file certifies a minimum, only its ends.

    The method of this file yields the null model, unless that is the minimum, and the minimum, whose ``certificate`` is
    ``PathPoint.excess``. It compiles nothing. Where it reaches no certificate, ``solver.minimize`` goes on from its
    last point, and counts on from its steps.
    """
    start = None
    n_steps = 0
    if has_path_solver(problem, batch):
        state = _start_path(problem, batch, tolerance)
        penalty = Penalty.of_problem(problem, batch.x.shape[1])
        if penalty.can_be_certified(state.has_intercept):
            null_model = state.describe(problem, penalty, state.bound_excess(penalty, state.full_gradient()))
            excess = state.find_single_minimum(penalty)
            if excess is not None:
                minimum = state.describe(problem, penalty, excess)
                start = minimum.w
                n_steps = minimum.iteration
                if n_steps > 0:
                    yield null_model
                if minimum.certified:
                    yield minimum
                    return
    for iterate in solver.minimize(problem, batch, tolerance, max_iterations, start=start, compiled=compiled):
        yield replace(iterate, iteration=n_steps + iterate.iteration)


class _PathState:
    """The point of a path, and the quadratic model of F in its working features.

    Attributes:
        theta: the point (p,), and ``derivatives`` of F in the predictions there.
        working: the numbers of the features that may be nonzero, in the order in which they joined, (k,).
        design: the working features, (k, n).
        hessian: that of F in the working features, (k, k), at the point that has the derivatives ``model``.
        goal: the excess at which a point is certified.
        l1: that of the last penalty, (p,); None before the first.
        n_steps: the number of steps so far.
    """

    search_class: type[SignSearch] = SignSearch
    path_factor = _PATH_FACTOR

    @_may_overflow
    def __init__(self, objective: LinearModel, rows: PathRows, has_intercept: bool, tolerance: float):
        self.objective = objective
        self.rows = rows
        self.has_intercept = has_intercept
        self.theta = np.zeros(rows.x.shape[0])
        self.is_working = np.zeros(rows.x.shape[0], bool)
        if has_intercept:
            self.is_working[-1] = True
        self.working = np.flatnonzero(self.is_working)
        self.design: Any = rows.x[self.working]
        self._differentiated: LossDerivatives | None = None
        self._fit_intercept()
        self._refresh()
        self.scale = abs(self.derivatives.loss)
        self.goal = max(tolerance * self.scale, np.finfo(float).tiny)
        self.l1: np.ndarray | None = None
        self.n_steps = 0

    def parameters(self, problem: Problem) -> Vector:
        """Return the point as parameters of a problem."""
        n_features = len(self.theta) - self.has_intercept
        w = Vector(weights=jnp.asarray(self.theta[:n_features].reshape(problem.shapes["weights"])))
        if self.has_intercept:
            w["bias"] = jnp.asarray(self.theta[-1])
        return w

    def describe(self, problem: Problem, penalty: Penalty, excess: float) -> solver.Iterate:
        """Return the point, with this bound on its excess, as an iterate of a solver."""
        return solver.Iterate(
            iteration=self.n_steps,
            w=self.parameters(problem),
            objective=self.derivatives.loss + penalty.value(self.theta),
            certificate=excess,
            certificate_kind="duality gap",
            certified=excess <= self.goal,
        )

    @_may_overflow
    def full_gradient(self) -> Float[np.ndarray, " p"]:
        """Return the gradient of F at the point, which one problem of a path ends at and the next one begins with."""
        if self._differentiated is not self.derivatives:
            self._differentiated = self.derivatives
            self._gradient = self.rows.x @ self.derivatives.slope
        return self._gradient

    def _predict(self, theta: np.ndarray) -> Float[np.ndarray, " n"]:
        return self.rows.offset + theta[self.working] @ self.design

    def _differentiate(self, theta: np.ndarray) -> LossDerivatives:
        """Return the derivatives of F in the predictions at a point."""
        rows = self.rows
        return self.objective.derivatives(self._predict(theta), rows.y, rows.weight, rows.client)

    @_may_overflow
    def find_minimum(self, penalty: Penalty) -> float | None:
        """Go to the minimum of F + psi; return ``bound_excess`` there, or None where the path ends."""
        joins = np.abs(self.full_gradient()) >= self._lower_threshold(penalty)
        self.l1 = penalty.l1
        for _ in range(_ATTEMPTS):
            if np.count_nonzero(self.is_working | joins) > MAX_WORKING_OF_WIDE or not self._is_finite:
                return None
            self.add_features(joins)
            has_converged = self.minimize(penalty)
            gradient = self.full_gradient()
            excess = self.bound_excess(penalty, gradient)
            joins = (np.abs(gradient) > penalty.l1) & ~self.is_working
            if excess <= self.goal or not (has_converged and joins.any()):
                break
        return excess if self._is_finite else None

    def _lower_threshold(self, penalty: Penalty) -> Float[np.ndarray, " p"]:
        """Return the sizes of slopes from which on features join at first: by the strong rule after a first minimum."""
        return penalty.l1 if self.l1 is None else 2 * penalty.l1 - self.l1

    def find_single_minimum(self, penalty: Penalty) -> float | None:
        """Do as ``find_minimum`` for a single problem."""
        return self.find_minimum(penalty)

    @_may_overflow
    def approach(self, penalty: Penalty) -> None:
        """Go near the minimum of F + psi, loosely along stronger l1, from where 0 is the minimum."""
        has_l1 = penalty.l1 > 0
        factor = np.max(np.abs(self.full_gradient()[has_l1]) / penalty.l1[has_l1], initial=1.0)
        if not np.isfinite(factor):
            return
        goal = self.goal
        self.goal = max(goal, _LOOSE * self.scale)
        for k in range(int(np.log(factor) / np.log(self.path_factor)), 0, -1):
            if self.find_minimum(penalty._replace(l1=self.path_factor**k * penalty.l1)) is None:
                break
        self.goal = goal

    @property
    def _is_finite(self) -> bool:
        return bool(np.isfinite(self.theta).all() and np.isfinite(self.derivatives.loss))

    def add_features(self, joins: Bool[np.ndarray, " p"]) -> None:
        """Add features to the working ones, with their rows and columns of the Hessian."""
        features = np.flatnonzero(joins & ~self.is_working)
        if not len(features):
            return
        known = len(self.working)
        self.working = np.append(self.working, features)
        self.is_working[features] = True
        self.design = self.rows.x[self.working]
        columns = self._multiply(self.design[known:])
        hessian = np.empty((len(self.working), len(self.working)))
        hessian[:known, :known] = self.hessian
        hessian[:, known:] = columns
        hessian[known:, :] = columns.T
        self.hessian = hessian

    def _multiply(self, features: Float[np.ndarray, "m n"]) -> Float[np.ndarray, "k m"]:
        """Return the columns of the model's Hessian that belong to some working features."""
        if features.shape[0] == len(self.working):
            root = features * np.sqrt(self.model.curvature)
            columns = root @ root.T  # half the work of a product of two matrices
        else:
            columns = self.design @ (features * self.model.curvature).T
        if self.model.eliminate is not None:
            columns -= self.model.eliminate(self.design) @ self.model.eliminate(features).T
        return columns

    def minimize(self, penalty: Penalty) -> bool:
        """Minimize F + psi over the working features; return whether the excess among them has reached the goal."""
        l1 = penalty.l1[self.working]
        ridge = penalty.ridge[self.working]
        search = None
        last_excess = np.inf
        decrease = np.inf
        for _ in range(_MAX_STEPS):
            check_interrupted()
            slopes, excess = self._measure_working(penalty, decrease)
            if excess <= self.goal / 4:
                self._fit_intercept()  # moves the slopes of features whose mean is not 0
                slopes, excess = self._measure_working(penalty, decrease)
                if excess <= self.goal:
                    return True
            point = self.theta[self.working]
            is_fresh = self.model is self.derivatives
            if not is_fresh and self._needs_hessian(excess, last_excess):
                search = None
                self._refresh()
                is_fresh = True
            if search is None:
                search = self._make_search(ridge, l1)
            last_excess = excess
            gradient = slopes + ridge * point
            move = search.minimize(search.matrix @ point - gradient, point) - point
            decrease = float(-gradient @ move + l1 @ (np.abs(point) - np.abs(point + move)))
            if not self._step(penalty, move, decrease):
                if is_fresh:
                    return False
                search = None
                self._refresh()
                last_excess = np.inf
                decrease = np.inf
        return False

    def _measure_working(self, penalty: Penalty, decrease: float) -> tuple[Float[np.ndarray, " k"], float]:
        """Return the gradient of F in the working features, and the bound on the excess among them.

        Where features without a penalty have no bound, a small gradient is one after a step of small ``decrease``.
        """
        slopes = self.design @ self.derivatives.slope
        excess = self._bound_excess(penalty, slopes, self.working)
        if np.isinf(excess):
            excess = np.sqrt(max(decrease, 0.0) * self.scale)
        return slopes, excess

    def _needs_hessian(self, excess: float, last_excess: float) -> bool:
        """Return whether a Hessian of the point costs less than the steps to the goal with that of the model."""
        if not np.isfinite(last_excess):
            return False
        rate = np.log(last_excess / excess)
        return rate <= 0 or np.log(excess / self.goal) / rate > _STEPS_PER_HESSIAN

    def _refresh(self) -> None:
        """Make the quadratic model that of the point."""
        self.model = self.derivatives
        self.hessian = self._multiply(self.design)

    def _make_search(self, ridge: Float[np.ndarray, " k"], l1: Float[np.ndarray, " k"]) -> SignSearch:
        """Return a search for the minimum of the quadratic model plus the penalty of the working features."""
        return self.search_class(add_to_diagonal(self.hessian, ridge), l1)

    def _step(self, penalty: Penalty, move: np.ndarray, decrease: float) -> bool:
        """Go along ``move`` until F + psi is low enough by Armijo's rule; return False where it is nowhere.

        With the Hessian of another point only the whole step is tried.
        """
        value = self.derivatives.loss + penalty.value(self.theta)
        is_fresh = self.model is self.derivatives
        step = 1.0
        while step > _SMALLEST_STEP:
            theta = self.theta.copy()
            theta[self.working] += step * move
            derivatives = self._differentiate(theta)
            target = value - _ARMIJO * step * decrease + _ROUNDING * abs(value)
            if derivatives.loss + penalty.value(theta) <= target:
                self.theta = theta
                self.derivatives = derivatives
                self.n_steps += 1
                return True
            if not is_fresh:
                return False
            step /= 2
        return False

    def _fit_intercept(self) -> None:
        """Make the intercept the best one for the weights."""
        rows = self.rows
        if self.has_intercept:
            row_derivatives = partial(self.objective.row_derivatives, y=rows.y)  # type: ignore[attr-defined]
            one_client = np.zeros(len(rows.y), int)
            prediction = self._predict(self.theta)
            has_flat_losses = self.objective.has_flat_losses
            missing = find_intercepts(
                row_derivatives,
                prediction,
                rows.weight,
                one_client,
                start=np.zeros(1),
                has_flat_losses=has_flat_losses,
            )
            self.theta[-1] += missing[0]
        self.derivatives = self._differentiate(self.theta)

    def bound_excess(self, penalty: Penalty, gradient: Float[np.ndarray, " p"]) -> float:
        """Return an upper bound on F + psi at the point minus its minimum, given the gradient of F there.

        The bound is infinite unless the intercept is the best one, and if other features have no penalty.
        """
        if self.has_intercept:
            slope = self.derivatives.slope
            if not abs(slope.sum()) <= _FEASIBLE * np.abs(slope).sum():
                return np.inf
        return self._bound_excess(penalty, gradient, np.arange(len(gradient)))

    def _bound_excess(self, penalty: Penalty, slopes: np.ndarray, features: np.ndarray) -> float:
        """Return the bound in some features, of which ``slopes`` is the gradient of F; of an intercept that is best.

        F is nowhere below its tangent at the point: the bound is the largest decrease of the tangent plus psi. Where a
        feature has no ridge, the decrease is at most the relative excess of the slope over l1_j times psi at the
        minimum, which is at most the objective here minus the least F; no F falls below minus its value at 0.
        """
        is_penalized = features < len(self.theta) - self.has_intercept
        point = self.theta[features][is_penalized]
        slopes = slopes[is_penalized]
        l1 = penalty.l1[features][is_penalized]
        ridge = penalty.ridge[features][is_penalized]
        beyond = np.maximum(np.abs(slopes) - l1, 0)
        has_ridge = ridge > 0
        if not (has_ridge | (l1 > 0)).all():
            return np.inf
        of_ridge = (beyond[has_ridge] ** 2 / (2 * ridge[has_ridge])).sum()
        violation = (beyond[~has_ridge] / l1[~has_ridge]).max(initial=0)
        psi = l1 @ np.abs(point) + ridge @ point**2 / 2
        most_psi = psi + self.derivatives.loss + self.scale
        return float(psi + slopes @ point + of_ridge + violation * most_psi)


class _CautiousPathState(_PathState):
    """A path whose searches are cautious."""

    search_class = CautiousSignSearch


class _WidePathState(_PathState):
    """A path of sparse or many features, whose Hessian is known by its products alone and is always that of the point.

    The working features are in the order of their numbers. Each problem begins without the strong rule: it keeps
    several times as many features as are nonzero, and their steps cost more than the gradients that find missing ones.
    """

    path_factor = _WIDE_PATH_FACTOR

    def _lower_threshold(self, penalty: Penalty) -> Float[np.ndarray, " p"]:
        return penalty.l1

    def find_single_minimum(self, penalty: Penalty) -> float | None:
        """Do as ``find_minimum`` for a single problem, of which too many features would join at once."""
        with threadpool_limits(1):  # so long vectors have threads of BLAS, which cost five times what they compute
            self.approach(penalty)
            return self.find_minimum(penalty)

    def add_features(self, joins: Bool[np.ndarray, " p"]) -> None:
        """Add features to the working ones."""
        if (joins & ~self.is_working).any():
            self.is_working |= joins
            self.working = np.flatnonzero(self.is_working)
            self.design = self.rows.x[self.working]

    def _needs_hessian(self, excess: float, last_excess: float) -> bool:
        return True

    def _refresh(self) -> None:
        self.model = self.derivatives

    def _make_search(self, ridge: Float[np.ndarray, " k"], l1: Float[np.ndarray, " k"]) -> SignSearch:
        return ProductSignSearch(RowHessian.at_point(self.design, self.model, ridge), l1)


def _is_wide(rows: PathRows, has_intercept: bool) -> bool:
    return isinstance(rows.x, SparseFeatures) or len(rows.x) - has_intercept > MAX_WORKING


def _start_path(problem: Problem, batch: Batch, tolerance: float) -> _PathState:
    """Return the null model of a problem for which ``has_path_solver`` is true."""
    assert isinstance(problem.objective, LinearModel)
    rows = PathRows.of_batch(problem, batch)
    has_intercept = "bias" in problem.shapes
    state_class = _WidePathState if _is_wide(rows, has_intercept) else _PathState
    return state_class(problem.objective, rows, has_intercept, tolerance)
