"""The duality gap from sums over rows: against formulas in NumPy, over parts of the rows, and as a bound."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import xlogy

from fcorun.base.config import numeric_fields
from fcorun.methods.mirror_maps import Euclidean
from fcorun.methods.objectives import Huber, LeastSquares, Logistic
from fcorun.methods.objectives.intercepts import InterceptSearch, has_best_intercept
from fcorun.methods.problem import duality_gap, solver
from fcorun.methods.problem.problem import Batch, Problem, Vector
from fcorun.methods.regularizers import L1, L2, ElasticNet, GroupLasso, L1Ball, L2Ball, LInfBall

FEATURES = 6

# objective, regularizer, whether rows have offsets and uneven weights
PROBLEMS = {
    "lasso": (LeastSquares(intercept=False), L1(0.3), False),
    "lasso with an intercept": (LeastSquares(), L1(0.3), False),
    "weights and offsets": (LeastSquares(), L1(0.3), True),
    "elastic net": (LeastSquares(ridge=0.2), L1(0.3), True),
    "elastic net by psi": (LeastSquares(), ElasticNet(0.3, l1_ratio=0.6, factors={"0": 2.0, "3": 0.5}), True),
    "elastic net without squares": (Logistic(), ElasticNet(0.03, l1_ratio=1.0), True),
    "ridge by psi": (Logistic(), L2(0.1, factors={"0": 2.0, "3": 0.5}), True),
    "group lasso": (LeastSquares(), GroupLasso(0.3), True),
    "factors": (LeastSquares(), L1(0.3, factors={"0": 2.0, "3": 0.5}), False),
    "l1 ball": (LeastSquares(), L1Ball(1.5), False),
    "l2 ball": (Logistic(), L2Ball(1.5), True),
    "l-infinity ball": (Huber(), LInfBall(0.5), True),
    "logistic": (Logistic(intercept=False), L1(0.03), False),
    "logistic with an intercept": (Logistic(), L1(0.03), True),
    "logistic with a ridge": (Logistic(ridge=0.1), L1(0.03), True),
    "huber": (Huber(delta=0.7), L1(0.1), True),
    "huber without an intercept": (Huber(delta=0.7, intercept=False), L1(0.1), False),
}
FAST = ("lasso", "logistic with an intercept")
NAMES = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in PROBLEMS]


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@cache
def problem_of(name):
    """Return a problem, its rows, and points on the way of the solver to the optimum, each with its certificate."""
    objective, regularizer, uneven = PROBLEMS[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, FEATURES)) + 0.5
    y = x @ np.linspace(1.5, -1, FEATURES) + 0.7 + rng.standard_normal(40)
    if isinstance(objective, Logistic):
        y = (y > 0.5).astype(float)
    weight = rng.uniform(0.5, 2, 40) * (rng.uniform(size=40) < 0.9) if uneven else np.ones(40)
    offset = jnp.asarray(rng.standard_normal(40)) if uneven else None
    problem = Problem(objective, regularizer, Euclidean(), objective.shapes((FEATURES,), 0))
    batch = Batch(jnp.asarray(x), jnp.asarray(y), jnp.asarray(weight / weight.sum()), offset=offset)
    compiled = solver.compile_programs(problem, FEATURES)
    iterates = list(solver.minimize(problem, batch, tolerance=1e-13, max_iterations=2000, compiled=compiled))
    return problem, batch, iterates


def move(problem, w):
    """Return a feasible point near w whose intercept is not the best one."""
    rng = np.random.default_rng(0)
    noisy = {name: value + 0.1 * rng.standard_normal(value.shape) for name, value in w.items()}
    return problem.prox(Vector(noisy), 0.0)


def objective_at(problem, w, batch):
    return float(problem.loss(w, batch) + problem.psi(w))


def pooled(problem, w, batch):
    return float(duality_gap.pooled_gap(problem, w, objective_at(problem, w, batch), batch))


def split(batch, parts=3):
    return [jax.tree.map(lambda array, part=part: array[part::parts], batch) for part in range(parts)]


def gap_of_parts(problem, w, batches):
    """Compute the gap in the exchanges that the module describes, with sums over parts of the rows alone."""

    def predictions(w):
        return [problem.predict(w, batch.x, batch.offset) for batch in batches]

    def total(function, *inputs):
        return jax.tree.map(lambda *parts: sum(parts), *map(function, *inputs))

    def losses_at(w):
        return total(lambda p, batch: duality_gap.loss_sums(problem, p, batch), predictions(w), batches)

    exchanges = 2
    losses = losses_at(w)
    objective = losses.loss + problem.ridge(w) + problem.psi(w)
    if "bias" in w:
        search = InterceptSearch(w["bias"])
        while not has_best_intercept(losses):
            search = search.advance(losses, problem.objective.has_flat_losses)
            w = Vector(w | {"bias": search.bias})
            losses = losses_at(w)
            exchanges += 1
    sums = total(lambda p, batch: duality_gap.residual_sums(problem, p, batch), predictions(w), batches)
    scale = duality_gap.dual_scale(problem, sums.gradient)
    conjugates = total(lambda p, batch: duality_gap.conjugate_sum(problem, p, scale, batch), predictions(w), batches)
    return duality_gap.duality_gap(problem, objective, sums, scale, conjugates), exchanges


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_gap_is_the_certificate_of_the_solver_and_a_bound(name):
    problem, batch, iterates = problem_of(name)
    optimum = iterates[-1]
    assert optimum.certified
    certify = solver.compile_programs(problem, FEATURES).certify
    strengths = numeric_fields(problem.regularizer)
    for w in (iterates[0].w, move(problem, optimum.w), optimum.w):
        objective, gap = objective_at(problem, w, batch), pooled(problem, w, batch)
        _, with_best_intercept, certificate = certify(strengths, w, jnp.ones(()), batch)
        expected = float(certificate + objective - with_best_intercept)
        assert gap == pytest.approx(expected, abs=1e-10 * objective)
        assert gap >= objective - optimum.objective - 1e-13


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_sums_over_parts_of_the_rows_give_the_gap_of_all_rows(name):
    problem, batch, iterates = problem_of(name)
    for w in (iterates[0].w, move(problem, iterates[-1].w), iterates[-1].w):
        gap, _ = gap_of_parts(problem, w, split(batch))
        assert float(gap) == pytest.approx(pooled(problem, w, batch), abs=1e-10 * objective_at(problem, w, batch))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["weights and offsets", "logistic with an intercept", "huber"])
def test_few_exchanges_find_the_best_intercept(name):
    problem, batch, iterates = problem_of(name)
    assert gap_of_parts(problem, iterates[-1].w, split(batch))[1] <= 2 + 1
    assert gap_of_parts(problem, move(problem, iterates[-1].w), split(batch))[1] <= 2 + 8


@pytest.mark.slow
def test_the_gap_of_the_lasso_is_that_of_the_textbook():
    """The conjugate of (p - y)^2 at s u, with u = 2 (p - y), is s^2 u^2 / 4 + s u y."""
    problem, batch, iterates = problem_of("lasso")
    w = move(problem, iterates[-1].w)
    x, y, omega, weights = (np.asarray(array) for array in (batch.x, batch.y, batch.weight, w["weights"]))
    u = 2 * (x @ weights - y)
    s = min(1, 0.3 / np.abs(x.T @ (omega * u)).max())
    assert s < 1
    primal = omega @ (x @ weights - y) ** 2 + 0.3 * np.abs(weights).sum()
    assert pooled(problem, w, batch) == pytest.approx(primal + omega @ (s**2 * u**2 / 4 + s * u * y), rel=1e-12)


@pytest.mark.slow
def test_the_gap_of_logistic_regression_is_that_of_the_textbook():
    """The conjugate of the cross entropy at s u is the negative entropy of s u + y; offsets o subtract s u o."""
    problem, batch, iterates = problem_of("logistic with an intercept")
    w = duality_gap.fit_intercept(problem, move(problem, iterates[-1].w), batch)
    x, y, omega, offset = (np.asarray(array) for array in (batch.x, batch.y, batch.weight, batch.offset))
    prediction = x @ np.asarray(w["weights"]) + float(w["bias"]) + offset
    u = 1 / (1 + np.exp(-prediction)) - y
    assert abs(omega @ u) < 1e-13
    s = min(1, 0.03 / np.abs(x.T @ (omega * u)).max())
    v = s * u + y
    conjugate = xlogy(v, v) + xlogy(1 - v, 1 - v) - s * u * offset
    primal = omega @ (np.log1p(np.exp(prediction)) - y * prediction) + 0.03 * np.abs(w["weights"]).sum()
    assert pooled(problem, w, batch) == pytest.approx(primal + omega @ conjugate, rel=1e-10)


@pytest.mark.slow
def test_an_intercept_that_is_not_the_best_gives_no_bound():
    problem, batch, iterates = problem_of("lasso with an intercept")
    w = move(problem, iterates[-1].w)
    prediction = problem.predict(w, batch.x)
    sums = duality_gap.residual_sums(problem, prediction, batch)
    assert not has_best_intercept(sums.losses)
    conjugates = duality_gap.conjugate_sum(problem, prediction, 0.1, batch)
    assert duality_gap.duality_gap(problem, jnp.ones(()), sums, 0.1, conjugates) == np.inf


@pytest.mark.slow
def test_rows_of_weight_0_may_have_infinite_losses():
    problem, batch, iterates = problem_of("lasso")
    w = move(problem, iterates[-1].w)
    objective = objective_at(problem, w, batch)
    more = [np.append(array, extra) for array, extra in ((batch.y, np.inf), (batch.weight, 0.0))]
    padded = Batch(jnp.concatenate([batch.x, batch.x[:1]]), *map(jnp.asarray, more))
    gap = float(duality_gap.pooled_gap(problem, w, objective, padded))
    assert gap == pytest.approx(pooled(problem, w, batch), rel=1e-12)


@pytest.mark.slow
def test_float32_shows_gaps_down_to_its_rounding():
    problem, batch, iterates = problem_of("lasso with an intercept")
    w = iterates[-1].w
    rows, point = jax.tree.map(lambda array: array.astype(jnp.float32), (batch, dict(w)))
    objective = problem.loss(Vector(point), rows) + problem.psi(Vector(point))
    gap = duality_gap.pooled_gap(problem, Vector(point), objective, rows)
    assert gap.dtype == jnp.float32
    assert abs(gap) <= 1e-6 * objective


@pytest.mark.parametrize(
    ("objective", "regularizer", "reason"),
    [
        (LeastSquares(), L1(0.0), "`reg.strength` is 0"),
        (LeastSquares(), L1(0.1, factors={"2": 0.0}), "`reg.factors` leaves features without a penalty"),
        (LeastSquares(ridge=0.1), L1(0.1, factors={"2": 0.0}), ""),
        (LeastSquares(), L1(0.1), ""),
    ],
)
def test_free_features_need_a_ridge(objective, regularizer, reason):
    problem = Problem(objective, regularizer, Euclidean(), objective.shapes((FEATURES,), 0))
    assert duality_gap.explain_missing_conjugate(objective, regularizer).startswith(reason)
    assert duality_gap.has_duality_gap(problem, FEATURES) == (not reason)
    several = replace(problem, shapes={"weights": (FEATURES, 3), "bias": (3,)})
    assert not duality_gap.has_duality_gap(several, FEATURES)
