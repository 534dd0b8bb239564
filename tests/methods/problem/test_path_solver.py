"""The path solver against the solver of the baseline, for each loss and penalty, and its bound on what is left."""

import tracemalloc
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit
from sklearn.linear_model import Lasso

from fcorun.base.errors import UserError
from fcorun.data.rows.sparse_matrix import SparseMatrix
from fcorun.data.rows.sparse_rows import compress_rows
from fcorun.methods.mirror_maps import Euclidean
from fcorun.methods.objectives import Cox, Gamma, LeastSquares, Logistic, Poisson
from fcorun.methods.problem import path_solver, penalty, row_products, solver
from fcorun.methods.problem.path_solver import _PathState, has_path_solver, solve_path
from fcorun.methods.problem.problem import Batch, Problem
from fcorun.methods.problem.sign_search import CautiousSignSearch, SignSearch
from fcorun.methods.regularizers import L1, L2, ElasticNet, GroupLasso, NoRegularizer

N_ROWS, N_FEATURES, N_CLIENTS = 120, 8, 3
STRENGTHS = (0.3, 0.1, 0.03, 0.003, 0.2)  # the last one begins another path


def make_batch(objective) -> Batch:
    """Return rows of three clients with weights, some of them 0, offsets and ties."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((N_ROWS, N_FEATURES)) * np.geomspace(0.2, 5, N_FEATURES)
    x[:, 3] += 0.9 * x[:, 2]
    prediction = x @ np.array([2.0, -1, 0.5, 0, 0, 0.1, 0, 0]) / 2
    if isinstance(objective, Logistic):
        y = (rng.random(N_ROWS) < 1 / (1 + np.exp(-prediction))).astype(float)
    elif isinstance(objective, Cox):
        y = np.ceil(4 * rng.exponential(np.exp(-prediction / 2))) * np.where(rng.random(N_ROWS) < 0.7, 1, -1)
    elif isinstance(objective, LeastSquares):
        y = prediction + rng.standard_normal(N_ROWS)
    else:
        y = rng.poisson(np.exp(prediction / 4)) + (0.5 if isinstance(objective, Gamma) else 0.0)
    weight = rng.random(N_ROWS) * (np.arange(N_ROWS) % 7 > 0)
    client = np.repeat(np.arange(N_CLIENTS), N_ROWS // N_CLIENTS)
    offset = 0.3 * rng.standard_normal(N_ROWS)
    arrays = [jnp.asarray(values) for values in (x, y, weight / weight.sum())]
    return Batch(*arrays, offset=jnp.asarray(offset), client=jnp.asarray(client, jnp.int32))


def make_problems(objective, psi) -> list[Problem]:
    problem = Problem(objective, psi, Euclidean(), objective.shapes((N_FEATURES,), 0))
    if not hasattr(psi, "strength"):
        return [problem]
    return [replace(problem, regularizer=psi.with_value("strength", strength)) for strength in STRENGTHS]


FACTORS = {"1": 3.0, "4": 0.2}
OBJECTIVES = [
    LeastSquares(),
    LeastSquares(client_intercepts=True),
    Logistic(),
    Logistic(intercept=False, ridge=0.05),
    Logistic(client_intercepts=True),
    Poisson(),
    Poisson(client_intercepts=True),
    Gamma(ridge=0.1),
    Cox(),
]
PENALTIES = [L1(0.1, factors=FACTORS), ElasticNet(0.1, l1_ratio=0.4, factors=FACTORS), L2(0.1)]
CASES = [(objective, psi) for objective in OBJECTIVES for psi in PENALTIES]


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "psi"), CASES, ids=lambda value: str(value)[:60])
def test_minima_are_those_of_the_baseline(objective, psi):
    """Both stop at a bound on what is left of the objective; a ridge bounds the distance of the minima by it."""
    with jax.enable_x64(True):
        batch = make_batch(objective)
        problems = make_problems(objective, psi)
        compiled = solver.compile_programs(problems[0], N_FEATURES)
        assert has_path_solver(problems[0], batch)
        for problem, point in zip(problems, solve_path(problems, batch, 1e-12), strict=True):
            *_, iterate = solver.minimize(problem, batch, 1e-12, 200_000, compiled=compiled)
            objective_here = float(problem.loss(point.w, batch) + problem.psi(point.w))
            assert point.certified
            assert iterate.certified
            assert objective_here == pytest.approx(iterate.objective, rel=1e-11)
            np.testing.assert_allclose(point.w["weights"], iterate.w["weights"], atol=2e-5)
            if "bias" in point.w:
                assert float(point.w["bias"]) == pytest.approx(float(iterate.w["bias"]), abs=2e-5)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-7])
def test_excess_bounds_what_is_left(tolerance):
    """A loose tolerance stops early, and the bound still holds."""
    objective = Logistic()
    with jax.enable_x64(True):
        batch = make_batch(objective)
        problems = make_problems(objective, L1(0.1))
        exact = [point.w for point in solve_path(problems, batch, 1e-13)]
        for problem, point, best in zip(problems, solve_path(problems, batch, tolerance), exact, strict=True):
            left = float(problem.loss(point.w, batch) + problem.psi(point.w))
            left -= float(problem.loss(best, batch) + problem.psi(best))
            assert -1e-14 <= left <= point.excess <= tolerance


@pytest.mark.parametrize("psi", [L1(0.03), NoRegularizer(), L1(0.03, factors={"2": 0})], ids=str)
def test_a_single_problem_has_the_iterates_of_the_baseline(psi):
    """The baseline alone is asked where no bound is known, from its own start; else its ends are those here."""
    with jax.enable_x64(True):
        batch = make_batch(Logistic())
        problem = replace(make_problems(Logistic(), psi)[0], regularizer=psi)
        found = list(path_solver.minimize(problem, batch, 1e-9, 20_000))
        expected = list(solver.minimize(problem, batch, 1e-9, 20_000))
    assert found[-1].certified
    assert found[-1].certificate_kind == expected[-1].certificate_kind
    assert found[0].iteration == 0
    assert found[0].objective == pytest.approx(expected[0].objective, rel=1e-14)
    assert found[-1].objective == pytest.approx(expected[-1].objective, rel=1e-8)
    is_bounded = psi == L1(0.03)
    assert (len(found) == 2) == is_bounded
    assert ([iterate.iteration for iterate in found] == [iterate.iteration for iterate in expected]) != is_bounded
    if is_bounded:
        assert abs(found[0].certificate) >= found[0].objective - expected[-1].objective


def test_a_null_model_that_is_the_minimum_is_one_iterate():
    """The rows of metrics.csv have one row for a round."""
    with jax.enable_x64(True):
        (only,) = path_solver.minimize(make_problems(Logistic(), L1(1e3))[0], make_batch(Logistic()), 1e-9, 20_000)
    assert only.certified
    assert not only.w["weights"].any()


@pytest.mark.parametrize("objective", [Logistic(), Poisson(), LeastSquares(), Cox()], ids=str)
def test_a_column_of_years_is_certified_without_the_solver_of_the_baseline(objective, monkeypatch):
    """The intercept that is fitted last moves the slope of years; the minimum is that of years since 2015."""
    monkeypatch.delattr(solver, "minimize")
    with jax.enable_x64(True):
        for seed in range(8):
            ends = []
            for mean in (0, 2015):
                batch = make_raw_batch(objective, mean, seed)
                problem = Problem(objective, L1(0.003), Euclidean(), objective.shapes((2,), 0))
                null_model, minimum = path_solver.minimize(problem, batch, 1e-9, 20_000)
                assert null_model.iteration == 0 < minimum.iteration
                assert not null_model.w["weights"].any()
                assert minimum.certified
                ends.append(minimum.objective)
            assert ends[1] == pytest.approx(ends[0], rel=2e-9)


def make_raw_batch(objective, mean, seed) -> Batch:
    """Return rows of a feature of this mean and a deviation of 10, and one that is 0 or 1."""
    rng = np.random.default_rng(seed)
    year = 10 * rng.standard_normal(400)
    level = (rng.random(400) < 0.4).astype(float)
    prediction = 0.06 * year + 0.8 * level - 0.3
    if isinstance(objective, Logistic):
        y = (rng.random(400) < 1 / (1 + np.exp(-prediction))).astype(float)
    elif isinstance(objective, Poisson):
        y = rng.poisson(np.exp(prediction)).astype(float)
    elif isinstance(objective, LeastSquares):
        y = prediction + rng.standard_normal(400)
    else:
        y = rng.exponential(np.exp(-prediction)) * np.where(rng.random(400) < 0.6, 1, -1)
    x = np.column_stack([mean + year, level])
    return Batch(jnp.asarray(x), jnp.asarray(y), jnp.full(400, 1 / 400))


def test_the_solver_of_the_baseline_counts_on_from_the_steps_and_the_null_model():
    """A tolerance of 0 is reached by neither."""
    problem = make_problems(Logistic(), L1(0.03))[3]
    with jax.enable_x64(True):
        null_model, *rest = path_solver.minimize(problem, make_batch(Logistic()), 0.0, 100)
    assert null_model.iteration == 0
    assert not null_model.w["weights"].any()
    n_steps = rest[0].iteration
    assert n_steps > 0
    assert [iterate.iteration - n_steps for iterate in rest] == [0, 50, 100]
    assert rest[0].objective < null_model.objective


def test_features_without_a_penalty_are_fitted_without_a_bound():
    """No bound is known there, so that the solver of the baseline has the last word; the point is the minimum."""
    objective = LeastSquares()
    with jax.enable_x64(True):
        batch = make_batch(objective)
        (problem,) = make_problems(objective, NoRegularizer())
        (point,) = solve_path([problem], batch, 1e-12)
        design = np.column_stack([batch.x, np.ones(N_ROWS)]) * np.sqrt(batch.weight)[:, None]
        target = (batch.y - np.asarray(batch.offset)) * np.sqrt(batch.weight)
        expected = np.linalg.lstsq(design, target)[0]
        assert not point.certified
        np.testing.assert_allclose(point.w["weights"], expected[:-1], atol=1e-8)


@pytest.mark.parametrize("objective", [Logistic(), Poisson(), Cox()], ids=lambda objective: type(objective).__name__)
def test_features_without_a_penalty_take_few_steps(monkeypatch, objective):
    """The decrease of the last step tells when to stop and when to renew the Hessian."""
    counts = []

    def count_steps(self, *arguments):
        counts.append(1)
        return step(self, *arguments)

    step = _PathState._step
    monkeypatch.setattr(_PathState, "_step", count_steps)
    with jax.enable_x64(True):
        batch = make_batch(objective)
        (problem,) = make_problems(objective, NoRegularizer())
        (point,) = solve_path([problem], batch, 1e-9)
        assert float(problem.gradient(point.w, batch).norm()) < 1e-6
    assert len(counts) < 30


def test_copies_of_features_and_constant_features_are_no_obstacle():
    """Copies share a coefficient in any way, a constant feature has none: the prediction is that of one copy."""
    objective = Logistic()
    with jax.enable_x64(True):
        batch = make_batch(objective)
        x = np.array(batch.x)
        x[:, 7] = 0
        alone = batch._replace(x=jnp.asarray(x))
        copied = batch._replace(x=jnp.asarray(np.column_stack([x[:, :7], x[:, 0]])))
        problems = make_problems(objective, L1(0.1))
        ends = zip(solve_path(problems, alone, 1e-10), solve_path(problems, copied, 1e-10), strict=True)
        for point, with_copy in ends:
            assert point.certified
            assert with_copy.certified
            together = with_copy.w["weights"][0] + with_copy.w["weights"][7]
            assert float(together) == pytest.approx(float(point.w["weights"][0]), abs=1e-6)
            assert point.w["weights"][7] == 0


def test_separated_classes_are_left_to_the_baseline():
    """Without a penalty there is no finite minimum, and the search ends without a certificate."""
    x = np.linspace(-1, 1, 20)[:, None]
    with jax.enable_x64(True):
        batch = Batch(jnp.asarray(x), jnp.asarray(x[:, 0] > 0), jnp.full(20, 0.05))
        problem = Problem(Logistic(), NoRegularizer(), Euclidean(), Logistic().shapes((1,), 0))
        (point,) = solve_path([problem], batch, 1e-9)
    assert not point.certified
    assert np.isfinite(point.w["weights"]).all()


@pytest.mark.parametrize("psi", [L2(0.1), ElasticNet(0.1, l1_ratio=0.01), L1(0.1)], ids=lambda psi: type(psi).__name__)
def test_paths_of_many_features_form_no_hessian_and_end_where_too_many_join(monkeypatch, psi):
    """All 1,500 features join where l1 is small, or far below that of the problem before."""
    monkeypatch.delattr(_PathState, "_multiply")
    rng = np.random.default_rng(3)
    with jax.enable_x64(True):
        x = jnp.asarray(rng.standard_normal((20, 1500)))
        batch = Batch(x, jnp.asarray(rng.standard_normal(20)), jnp.full(20, 0.05))
        problem = Problem(LeastSquares(), psi, Euclidean(), LeastSquares().shapes((1500,), 0))
        problems = [replace(problem, regularizer=psi.with_value("strength", strength)) for strength in (0.6, 0.006)]
        points = list(solve_path(problems, batch, 1e-9))
        monkeypatch.setattr(path_solver, "MAX_WORKING_OF_WIDE", 1024)
        points_of_few = list(solve_path(problems, batch, 1e-9))
    assert len(points) == 2
    assert all(point.certified for point in points)
    assert len(points_of_few) == (1 if isinstance(psi, L1) else 0)


def test_an_intercept_is_not_counted_among_the_features_that_have_a_hessian(monkeypatch):
    monkeypatch.delattr(row_products.RowHessian, "at_point")
    n_features = penalty.MAX_WORKING
    rng = np.random.default_rng(3)
    with jax.enable_x64(True):
        x = jnp.asarray(rng.standard_normal((20, n_features)))
        batch = Batch(x, jnp.asarray(rng.standard_normal(20)), jnp.full(20, 0.05))
        problem = Problem(LeastSquares(), L1(0.6), Euclidean(), LeastSquares().shapes((n_features,), 0))
        *_, minimum = path_solver.minimize(problem, batch, 1e-9, 20_000)
    assert minimum.certified


@pytest.mark.parametrize("objective", [LeastSquares(client_intercepts=True), Logistic(), Cox()], ids=str)
def test_minima_of_many_sparse_features_meet_their_conditions(objective, monkeypatch):
    """The gradients are those of JAX, and no baseline is asked, also where features are copies of others."""
    monkeypatch.delattr(solver, "minimize")
    monkeypatch.setattr(row_products, "_SMALL_NUMBERS", 0)
    rng = np.random.default_rng(4)
    with jax.enable_x64(True):
        batch = make_batch(objective)
        others = rng.standard_normal((N_ROWS, 600)) + rng.standard_normal((N_ROWS, 1))
        x = np.column_stack([batch.x, others, others[:, :100]])
        batch = batch._replace(x=compress(np.where(rng.random(x.shape) < 0.3, x, 0)))
        problem = Problem(objective, L1(0.02), Euclidean(), objective.shapes((x.shape[1],), 0))
        *_, minimum = path_solver.minimize(problem, batch, 1e-11, 20_000)
        gradient = np.asarray(problem.gradient(minimum.w, batch)["weights"])
    weights = np.asarray(minimum.w["weights"])
    is_nonzero = weights != 0
    assert minimum.certified
    assert is_nonzero.sum() > 10
    assert (np.abs(gradient) <= 0.02 * (1 + 1e-4)).all()
    np.testing.assert_allclose(gradient[is_nonzero], -0.02 * np.sign(weights[is_nonzero]), rtol=1e-3)


def test_the_lasso_of_many_more_features_than_rows_is_that_of_scikit_learn(monkeypatch):
    monkeypatch.delattr(solver, "minimize")
    rng = np.random.default_rng(6)
    x = rng.standard_normal((50, 3000)) + rng.standard_normal((50, 1))
    y = x[:, :20] @ rng.standard_normal(20) + 0.3 * rng.standard_normal(50)
    strength = 0.1 * 2 * np.abs(x.T @ y).max() / 50
    with jax.enable_x64(True):
        objective = LeastSquares(intercept=False)
        problem = Problem(objective, L1(strength), Euclidean(), objective.shapes((3000,), 0))
        batch = Batch(jnp.asarray(x), jnp.asarray(y), jnp.full(50, 1 / 50))
        _, minimum = path_solver.minimize(problem, batch, 1e-10, 20_000)
    peer = Lasso(alpha=strength / 2, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(x, y)
    best = np.mean((x @ peer.coef_ - y) ** 2) + strength * np.abs(peer.coef_).sum()
    assert minimum.certified
    assert minimum.objective == pytest.approx(best, rel=1e-8)
    np.testing.assert_allclose(minimum.w["weights"], peer.coef_, atol=1e-4)


@pytest.mark.parametrize("widest", [300, 600, 800])
@pytest.mark.parametrize("objective", [Poisson(), Gamma()], ids=lambda objective: type(objective).__name__)
def test_points_are_finite_where_losses_overflow(objective, widest):
    """Offsets to exp(300) leave bounds of the loss, and beyond exp(709) the loss, without a number."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        batch = Batch(
            jnp.asarray(rng.standard_normal((60, 4))),
            jnp.asarray(rng.poisson(3.0, 60) + 0.5),
            jnp.full(60, 1 / 60),
            offset=jnp.linspace(-widest, widest, 60),
        )
        problem = Problem(objective, L1(0.1), Euclidean(), objective.shapes((4,), 0))
        problems = [replace(problem, regularizer=L1(strength)) for strength in (0.3, 0.1, 0.01)]
        points = list(solve_path(problems, batch, 1e-6))
        for k, point in enumerate(points):
            assert np.isfinite(float(problems[k].loss(point.w, batch)))
    assert widest < 800 or not points


def test_infinite_gradients_of_many_features_end_the_path():
    with jax.enable_x64(True):
        x = jnp.asarray(1e300 * np.random.default_rng(0).standard_normal((4, 1100)))
        batch = Batch(x, jnp.asarray([1e10, -1e10, 2e10, -2e10]), jnp.full(4, 0.25))
        problem = Problem(LeastSquares(), L1(0.1), Euclidean(), LeastSquares().shapes((1100,), 0))
        iterates = list(path_solver.minimize(problem, batch, 1e-9, 2))
        assert not any(iterate.certified for iterate in iterates)


def test_a_part_of_the_hessian_without_its_transpose_is_refused():
    whole = Cox().derivatives(np.zeros(4), np.array([1.0, 2, -3, 4]), np.full(4, 0.25), np.zeros(4, int))
    assert np.isfinite(whole.multiply(np.ones(4))).all()
    with pytest.raises(UserError, match="give eliminate_transposed"):
        whole._replace(eliminate_transposed=None).multiply(np.ones(4))


def compress(x) -> Any:
    """Return rows (n, d) as the sparse rows of a batch, in float64."""
    return compress_rows(SparseMatrix(sparse.csr_array(x)), np.float64)


@pytest.mark.parametrize(("small", "tolerance", "atol"), [(2**24, 1e-6, 1e-12), (0, 1e-13, 2e-6)])
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda value: str(value)[:60])
def test_sparse_rows_have_the_path_of_their_dense_twins(objective, small, tolerance, atol, monkeypatch):
    """Few sparse features become dense; many have the products of a Hessian with vectors, another method."""
    monkeypatch.setattr(row_products, "_SMALL_NUMBERS", small)
    with jax.enable_x64(True):
        batch = make_batch(objective)
        dense = np.where(np.random.default_rng(1).random(batch.x.shape) < 0.4, batch.x, 0)
        problems = make_problems(objective, ElasticNet(0.1, l1_ratio=0.4, factors=FACTORS))
        problems = [replace(problem, scale=0.5) for problem in problems]
        path = solve_path(problems, batch._replace(x=jnp.asarray(dense)), tolerance)
        twin_path = solve_path(problems, batch._replace(x=compress(dense)), tolerance)
        for point, twin in zip(path, twin_path, strict=True):
            assert twin.certified
            for name, values in point.w.items():
                np.testing.assert_allclose(twin.w[name], values, rtol=0, atol=atol)


def test_many_sparse_features_are_certified_without_the_solver_of_the_baseline(monkeypatch):
    """Many more of 2,000 features violate their condition at 0 than are nonzero, and none at the minimum."""
    monkeypatch.delattr(solver, "minimize")
    rng = np.random.default_rng(2)
    x = sparse.random_array((800, 2000), density=0.01, rng=rng, format="csr")
    y = (x @ np.where(np.arange(2000) < 30, 3.0, 0.0) + 0.3 * rng.standard_normal(800) > 0.2).astype(float)
    strength = 1e-3
    with jax.enable_x64(True):
        problem = Problem(Logistic(), L1(strength), Euclidean(), Logistic().shapes((2000,), 0))
        batch = Batch(compress(x), jnp.asarray(y), jnp.full(800, 1 / 800))
        null_model, minimum = path_solver.minimize(problem, batch, 1e-10, 20_000)
    weights = np.asarray(minimum.w["weights"])
    gradient = x.T @ (expit(x @ weights + float(minimum.w["bias"])) - y) / 800
    is_nonzero = weights != 0
    assert null_model.iteration == 0
    assert minimum.certified
    assert is_nonzero.any()
    assert (np.abs(gradient) <= strength * (1 + 1e-6)).all()
    np.testing.assert_allclose(gradient[is_nonzero], -strength * np.sign(weights[is_nonzero]), rtol=1e-4)


@pytest.mark.parametrize(("strength", "least_nonzero"), [(2e-3, 5), (1e-5, 400)])
def test_sparse_rows_and_their_minimum_take_less_than_three_times_the_memory_of_the_nonzeros(strength, least_nonzero):
    """A square matrix of the features that are nonzero with the weak strength would take as much as the rows."""
    rng = np.random.default_rng(3)
    x = SparseMatrix(sparse.random_array((2000, 20_000), density=0.01, rng=rng, format="csr"))
    y = (x @ np.where(np.arange(20_000) < 20, 3.0, 0.0) > 0).astype(float)
    with jax.enable_x64(True):
        problem = Problem(Logistic(), L1(strength), Euclidean(), Logistic().shapes((20_000,), 0))
        tracemalloc.start()
        batch = Batch(compress_rows(x, np.float64), jnp.asarray(y), jnp.full(2000, 1 / 2000))
        *_, minimum = path_solver.minimize(problem, batch, 1e-8, 20_000)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert minimum.certified
    assert np.count_nonzero(minimum.w["weights"]) > least_nonzero
    assert peak < 2 * x.nbytes


def test_other_problems_have_no_path_solver():
    class OwnLoss(Logistic):
        """A subclass, whose loss may be another one."""

    with jax.enable_x64(True):
        batch = make_batch(Logistic())
        for objective, psi in [(OwnLoss(), L1(0.1)), (Logistic(), GroupLasso(0.1))]:
            assert not has_path_solver(make_problems(objective, psi)[0], batch)


@pytest.mark.parametrize("search_class", [SignSearch, CautiousSignSearch])
@pytest.mark.parametrize("seed", range(5))
def test_sign_search_meets_the_conditions_of_the_minimum(seed, search_class):
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((30, 20)) + rng.standard_normal((30, 1))
    l1 = rng.random(20) * (rng.random(20) < 0.8)
    linear = rng.standard_normal(20)
    search = search_class(root.T @ root / 30, l1)
    v = search.minimize(linear, 10 * rng.standard_normal(20))
    gradient = search.matrix @ v - linear
    np.testing.assert_allclose(gradient[v != 0], (-l1 * np.sign(v))[v != 0], atol=1e-8)
    assert (np.abs(gradient) <= l1 + 1e-8).all()
    assert (v == 0).any()


def test_a_cautious_search_finds_the_minimum_among_many_alike_entries():
    """Let 300 entries share a pattern, of which 60 rows determine few: where all enter at once, most leave again."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 60)) + 2 * rng.standard_normal((1, 60))
    linear = x @ rng.choice([-1.0, 1.0], 60) / 60
    search = CautiousSignSearch(x @ x.T / 60, np.full(300, 0.01))
    v = search.minimize(linear, np.zeros(300))
    gradient = search.matrix @ v - linear
    np.testing.assert_allclose(gradient[v != 0], -0.01 * np.sign(v[v != 0]), atol=1e-12)
    assert (np.abs(gradient) <= 0.01 + 1e-12).all()
