"""The centralized solver against scikit-learn, closed forms and its certificates."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn
from helpers import NONCONVEX, choice_names, flat, matrices_only, ragged
from sklearn import linear_model

from fcorun import run
from fcorun.experiment.build import build_problem, load_data
from fcorun.experiment.prepare import prepare
from fcorun.methods.mirror_maps import Euclidean
from fcorun.methods.objectives import Gamma, LeastSquares, Logistic
from fcorun.methods.problem import solver
from fcorun.methods.problem.problem import Batch, Problem
from fcorun.methods.problem.solver import gather_rows, strength_max
from fcorun.methods.regularizers import L1, TV, NoRegularizer

CONVEX = [name for name in choice_names("reg") if name not in NONCONVEX]
TIGHT = ["algo=centralized", "algo.tolerance=1e-14"]
SKLEARN = tuple(map(int, sklearn.__version__.split(".")[:2]))
L1_PENALTY: dict[str, Any] = {"l1_ratio": 1} if SKLEARN >= (1, 8) else {"penalty": "l1"}


def solve(config, folder="run"):
    record = run(config, folder)
    return flat(record.solution), load_data(prepare(config))


def coefficients(model):
    return np.append(np.ravel(model.coef_), np.ravel(model.intercept_))


# ---------------------------------------------------------------- other solvers


@pytest.mark.slow
@pytest.mark.parametrize("strength", [0.05, 0.5])
def test_lasso_is_that_of_scikit_learn(tmp_path, strength):
    """The loss of scikit-learn is half of ours, so that its alpha is half the strength."""
    w, data = solve(ragged(tmp_path, *TIGHT, f"reg.strength={strength}"))
    model = linear_model.Lasso(alpha=strength / 2, tol=1e-14, max_iter=100_000).fit(data.train.x, data.train.y)
    np.testing.assert_allclose(w, coefficients(model), atol=1e-6)
    assert (w == 0).tolist() == (coefficients(model) == 0).tolist()


@pytest.mark.slow
def test_elastic_net_is_that_of_scikit_learn(tmp_path):
    config = ragged(tmp_path, *TIGHT, "reg=elastic_net", "reg.strength=0.4", "reg.l1_ratio=0.7")
    w, data = solve(config)
    model = linear_model.ElasticNet(alpha=0.2, l1_ratio=0.7, tol=1e-14, max_iter=100_000).fit(
        data.train.x, data.train.y
    )
    np.testing.assert_allclose(w, coefficients(model), atol=1e-6)


@pytest.mark.slow
def test_ridge_is_that_of_scikit_learn(tmp_path):
    w, data = solve(ragged(tmp_path, *TIGHT, "reg=l2", "reg.strength=0.3"))
    model = linear_model.Ridge(alpha=0.3 * len(data.train.y), tol=1e-12).fit(data.train.x, data.train.y)
    np.testing.assert_allclose(w, coefficients(model), atol=1e-6)


@pytest.mark.slow
def test_least_squares_is_that_of_scikit_learn(tmp_path):
    w, data = solve(ragged(tmp_path, *TIGHT, "reg=none"))
    np.testing.assert_allclose(
        w, coefficients(linear_model.LinearRegression().fit(data.train.x, data.train.y)), atol=1e-6
    )


@pytest.mark.slow
def test_l1_logistic_regression_is_that_of_scikit_learn(tmp_path):
    w, data = solve(ragged(tmp_path, *TIGHT, "reg.strength=0.1", task="binary", sizes=(20, 30, 50)))
    model = linear_model.LogisticRegression(**L1_PENALTY, C=1 / (0.1 * 100), solver="saga", tol=1e-12, max_iter=100_000)
    np.testing.assert_allclose(w, coefficients(model.fit(data.train.x, data.train.y)), atol=1e-6)
    assert (w == 0).any()


@pytest.mark.slow
@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_l2_logistic_regression_is_that_of_scikit_learn(tmp_path, task):
    config = ragged(tmp_path, *TIGHT, "reg=l2", "reg.strength=0.02", task=task, sizes=(20, 30, 50))
    record, data = run(config, "run"), load_data(prepare(config))
    model = linear_model.LogisticRegression(C=1 / (2 * 0.02 * 100), solver="newton-cg", tol=1e-12, max_iter=10_000)
    model.fit(data.train.x, data.train.y)
    np.testing.assert_allclose(record.solution["weights"].T, np.squeeze(model.coef_), atol=1e-6)
    # the intercepts of a softmax are free to move together
    bias = np.ravel(record.solution["bias"])
    expected = np.ravel(model.intercept_)
    if task == "multiclass":
        bias = bias - bias.mean()
        expected = expected - expected.mean()
    np.testing.assert_allclose(bias, expected, atol=1e-6)
    accuracy = record.metrics["train_accuracy"].iloc[-1]
    assert accuracy == pytest.approx(model.score(data.train.x, data.train.y))


@pytest.mark.slow
def test_uniform_client_weights_are_sample_weights_of_scikit_learn(tmp_path):
    w, data = solve(ragged(tmp_path, *TIGHT, "reg.strength=0.3", "client_weighting=uniform"))
    weights = np.repeat(1 / data.train.sizes, data.train.sizes)
    model = linear_model.Lasso(alpha=0.15, tol=1e-14, max_iter=100_000).fit(
        data.train.x, data.train.y, sample_weight=weights
    )
    np.testing.assert_allclose(w, coefficients(model), atol=1e-6)
    other = linear_model.Lasso(alpha=0.15).fit(data.train.x, data.train.y)
    assert np.abs(w - coefficients(other)).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("client", [0, 2])
def test_one_client_is_centralized_on_the_rows_of_that_client(tmp_path, client):
    everyone = ragged(
        tmp_path / "all", "algo=one_client", f"algo.client={client}", "algo.tolerance=1e-14", "reg.strength=0.4"
    )
    w, data = solve(everyone, "local")
    part = slice(data.train.offsets[client], data.train.offsets[client + 1])
    alone = ragged(
        tmp_path / "one",
        *TIGHT,
        "reg.strength=0.4",
        sizes=(data.train.sizes[client],),
        x=data.train.x[part],
        y=data.train.y[part],
    )
    np.testing.assert_allclose(w, solve(alone, "alone")[0], atol=1e-6)


# ---------------------------------------------------------------- certificates


LOSSES = [
    (),
    ("objective.intercept=false",),
    ("objective.ridge=0.01",),
    ("objective.ridge=0.01", "objective.intercept=false", "reg=fused_lasso"),
]


def iterates(config, tolerance=1e-11, most=20_000):
    experiment = prepare(config)
    data = load_data(experiment)
    with jax.enable_x64(True):
        batch = gather_rows(data, experiment.settings.client_weighting)
        return list(solver.minimize(build_problem(experiment, data), batch, tolerance, most))


@pytest.mark.slow
@pytest.mark.parametrize("task", ["regression", "binary"])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_gap_bounds_the_distance_to_the_optimum(tmp_path, task, loss):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 40)) * np.logspace(0, -2, 40) + rng.standard_normal((60, 1))
    y = x @ rng.standard_normal(40) + 0.3 * rng.standard_normal(60)
    y = y > np.median(y) if task == "binary" else y
    points = iterates(ragged(tmp_path, *loss, "reg.strength=0.001", sizes=(10, 50), task=task, x=x, y=y))
    assert {point.certificate_kind for point in points} == {"duality gap"}
    assert len(points) > 2
    assert points[-1].certified
    assert not any(point.certified for point in points[:-1])
    best = min(point.objective for point in points)
    for point in points:
        assert point.certificate >= point.objective - best - 1e-12
        assert point.certificate >= -1e-12


@pytest.mark.parametrize("task", ["regression", "binary"])
def test_the_gap_uses_the_best_intercept(tmp_path, task):
    """If w = 0 is optimal, the optimum is a function of the intercept alone."""
    y = np.random.default_rng(0).standard_normal(20) + 5 if task == "regression" else np.arange(20) < 18
    last = iterates(ragged(tmp_path, "reg.strength=100", task=task, y=y))[-1]
    best = y.var() if task == "regression" else -(0.9 * np.log(0.9) + 0.1 * np.log(0.1))
    assert last.certified
    assert last.objective == pytest.approx(best, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CONVEX if not matrices_only(name)])
def test_with_a_ridge_every_regularizer_has_a_gap(name, tmp_path):
    points = iterates(ragged(tmp_path, f"reg={name}", "objective.ridge=0.1"), 1e-9)
    assert {point.certificate_kind for point in points} == {"duality gap"}
    assert points[-1].certified
    best = min(point.objective for point in points)
    assert all(point.certificate >= point.objective - best - 1e-12 for point in points)


@pytest.mark.slow
def test_several_outputs_have_no_gap(tmp_path):
    for loss in ((), ("objective.intercept=false",), ("objective.ridge=0.1",)):
        assert (
            iterates(ragged(tmp_path, *loss, task="multiclass"), most=50)[-1].certificate_kind == "prox-gradient norm"
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", CONVEX)
def test_every_regularizer_is_solved_to_a_certificate(name, tmp_path):
    task = "multiclass" if matrices_only(name) else "regression"
    final = iterates(ragged(tmp_path, f"reg={name}", task=task), 1e-9)[-1]
    assert final.certified
    better = iterates(ragged(tmp_path, f"reg={name}", task=task), 1e-12)[-1]
    assert -1e-12 <= final.objective - better.objective < 1e-6


@pytest.mark.slow
def test_too_few_iterations_are_reported(tmp_path):
    x = np.random.default_rng(0).standard_normal((30, 6)) * np.logspace(0, -4, 6)
    options = ("algo=centralized", "algo.max_iterations=50", "reg=fused_lasso", "reg.strength=1e-9")
    record = run(ragged(tmp_path, *options, sizes=(30,), x=x, y=x.sum(1)), "run")
    assert "not certified" in record.status["reason"]
    assert record.metrics["round"].tolist() == [0, 50]


# ---------------------------------------------------------------- the largest strength


@pytest.mark.slow
def test_strength_max_has_a_closed_form(tmp_path):
    def largest(config):
        experiment = prepare(config)
        data = load_data(experiment)
        with jax.enable_x64(True):
            batch = gather_rows(data, experiment.settings.client_weighting)
            return strength_max(build_problem(experiment, data), batch), data

    strength, data = largest(ragged(tmp_path / "a"))
    assert strength == pytest.approx(
        np.abs(2 * data.train.x.T @ (data.train.y - data.train.y.mean()) / len(data.train.y)).max(), rel=1e-9
    )
    strength, data = largest(ragged(tmp_path / "b", task="binary", sizes=(20, 40)))
    assert strength == pytest.approx(
        np.abs(data.train.x.T @ (data.train.y - data.train.y.mean()) / len(data.train.y)).max(), rel=1e-9
    )
    strength, data = largest(ragged(tmp_path / "c", "client_weighting=uniform"))
    weight = np.repeat(1 / (3 * data.train.sizes), data.train.sizes)
    assert strength == pytest.approx(
        np.abs(2 * data.train.x.T @ (weight * (data.train.y - weight @ data.train.y))).max(), rel=1e-9
    )


# ---------------------------------------------------------------- hard cases


def logistic(x, y, strength):
    objective = Logistic()
    problem = Problem(objective, L1(strength), Euclidean(), objective.shapes(x.shape[1:], 2))
    with jax.enable_x64(True):
        batch = Batch(jnp.asarray(x), jnp.asarray(y), jnp.full(len(y), 1 / len(y)))
        return list(solver.minimize(problem, batch))


@pytest.mark.slow
@pytest.mark.parametrize("positives", [1, 5, 2500, 4999])
def test_the_gap_is_a_bound_however_unbalanced_the_classes(positives):
    rng = np.random.default_rng(0)
    y = np.zeros(5000)
    y[:positives] = 1
    x = rng.standard_normal((5000, 6)) + 2 * y[:, None] * (np.arange(6) < 2)
    strength = 0.5 * np.abs(x.T @ (y.mean() - y)).max() / len(y)
    iterates = logistic(x, y, strength)
    assert iterates[-1].certified
    assert not iterates[0].certified
    for iterate in iterates:
        assert iterate.certificate >= iterate.objective - iterates[-1].objective - 1e-12


@pytest.mark.parametrize("scale", [1e-5, 1e5])
def test_small_and_large_targets_are_solved_alike(scale):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((200, 8))
    y = x[:, 0] + 0.1 * rng.standard_normal(200)
    objective = LeastSquares()
    problem = Problem(objective, L1(0.1 * scale), Euclidean(), objective.shapes((8,), 0))
    with jax.enable_x64(True):
        batch = Batch(jnp.asarray(x), jnp.asarray(y * scale), jnp.full(200, 1 / 200))
        weights = np.asarray(list(solver.minimize(problem, batch))[-1].w["weights"])
    model = linear_model.Lasso(alpha=0.05, tol=1e-12).fit(x, y)
    np.testing.assert_allclose(weights / scale, model.coef_, atol=1e-6)


def test_small_features_need_few_iterations():
    rng = np.random.default_rng(2)
    x = 1e-4 * rng.standard_normal((200, 8))
    y = 1e4 * x[:, 0] + 0.1 * rng.standard_normal(200)
    objective = LeastSquares()
    problem = Problem(objective, L1(1e-5), Euclidean(), objective.shapes((8,), 0))
    with jax.enable_x64(True):
        last = list(solver.minimize(problem, Batch(jnp.asarray(x), jnp.asarray(y), jnp.full(200, 1 / 200))))[-1]
    assert last.certified
    assert last.iteration <= 500


def gamma_problem(unit: float, regularizer: Any) -> tuple[Problem, Batch]:
    """Return a problem of positive targets in a unit, and its rows."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((300, 3))
    y = unit * rng.gamma(2, 0.5, 300) * np.exp(0.3 * x[:, 0])
    batch = Batch(jnp.asarray(x), jnp.asarray(y), jnp.full(300, 1 / 300), client=jnp.zeros(300, int))
    return Problem(Gamma(), regularizer, Euclidean(), {"weights": (3,), "bias": ()}), batch


@pytest.mark.parametrize("unit", [1e-6, 1e9])
@pytest.mark.usefixtures("x64")
def test_the_largest_strength_does_not_depend_on_the_unit_of_the_target(unit):
    expected = strength_max(*gamma_problem(1.0, L1(strength=1.0)))
    assert strength_max(*gamma_problem(unit, L1(strength=1.0))) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_the_largest_strength_is_known_where_a_class_has_no_rows():
    """Its best intercept is minus infinity. The gradient is that of the shares of the other classes."""
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((60, 4)), rng.integers(0, 2, 60)
    batch = Batch(jnp.asarray(x), jnp.asarray(y), jnp.full(60, 1 / 60), client=jnp.zeros(60, int))
    problem = Problem(Logistic(), L1(strength=1.0), Euclidean(), {"weights": (4, 3), "bias": (3,)})
    gradient = x.T @ (np.eye(2)[y] - np.eye(2)[y].mean(axis=0)) / 60
    assert strength_max(problem, batch) == pytest.approx(np.abs(gradient).max(), rel=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("unit", [1e-6, 1e9])
def test_a_certified_optimum_does_not_depend_on_the_unit_of_the_target(unit):
    """Neither with a duality gap nor with a prox-gradient norm: a unit is a summand of the intercept."""
    for regularizer in (L1(strength=0.05), TV(strength=0.05), NoRegularizer()):
        *_, expected = solver.minimize(*gamma_problem(1.0, regularizer))
        *_, found = solver.minimize(*gamma_problem(unit, regularizer))
        assert expected.certified
        assert found.certified
        assert found.iteration <= 2 * expected.iteration
        np.testing.assert_allclose(found.w["weights"], expected.w["weights"], atol=1e-7)
        assert float(found.w["bias"] - expected.w["bias"]) == pytest.approx(np.log(unit), abs=1e-7)
