"""Proximal Newton and Gram: certified gaps, other solvers, bytes, and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import fails, flat, ragged, snapshots
from sklearn import linear_model

import fcorun
from fcorun import run
from fcorun.base.config import numeric_fields
from fcorun.experiment.build import build_problem, load_data
from fcorun.experiment.optimum import resolve_strength
from fcorun.experiment.prepare import prepare
from fcorun.methods.mirror_maps.mirror_map import Euclidean
from fcorun.methods.problem import penalized_quadratic, solver
from fcorun.methods.problem.inner_solvers import StoppingRule
from fcorun.methods.problem.problem import Problem, Vector
from fcorun.methods.problem.solver import gather_rows

SIZES = (12, 20, 16, 30)


def gaps(config, evaluations):
    """Return the duality gap of each evaluation, certified by the centralized solver's program."""
    experiment = prepare(config)
    data = load_data(experiment)
    experiment = experiment.with_resolved(reg=resolve_strength(experiment, data))
    with jax.enable_x64(True):
        problem, rows = build_problem(experiment, data), gather_rows(data, "examples")
        certify = solver.compile_programs(problem, rows.x.shape[1]).certify
        numbers = numeric_fields(problem.regularizer)
        values = []
        for evaluation in evaluations:
            w = Vector({name: jnp.asarray(value[0]) for name, value in evaluation.solution.items()})
            values.append(float(certify(numbers, w, jnp.ones(()), rows)[2]))
    return values


def resolved(config):
    """Return the configuration with a number for the relative strength."""
    experiment = prepare(config)
    strength = resolve_strength(experiment, load_data(experiment)).strength_or_none
    config["reg"] |= {"relative": None, "strength": strength}
    return config


@pytest.mark.filterwarnings("ignore::fcorun.ExperimentWarning")  # of the column of zeros
@pytest.mark.parametrize("algorithm", [fcorun.Newton(), fcorun.Gram(), fcorun.Centralized()])
@pytest.mark.parametrize("seed", [3, 24])
def test_what_the_data_leave_open_is_the_solution_of_least_norm(algorithm, seed, tmp_path):
    """Two equal columns share their coefficient, and the coefficient of a column of zeros is exactly 0, as by lstsq."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(60, 3))
    x[:, 1], x[:, 2] = x[:, 0], 0
    y = rng.normal(size=60) + x[:, 0]
    data = fcorun.from_arrays(x, y, np.arange(60) % 3, standardize="none", validation=0.0)
    experiment = fcorun.Experiment(
        data=data, algorithm=algorithm, regularizer=fcorun.NoRegularizer(), rounds=5, precision="float64"
    )
    solution = experiment.run(tmp_path / "run").solution
    expected = np.linalg.lstsq(np.c_[x, np.ones(60)], y, rcond=None)[0]
    assert solution["weights"].ravel().tolist() == pytest.approx(expected[:3].tolist(), abs=1e-6)
    assert solution["weights"].ravel()[2] == 0
    assert solution["bias"].item() == pytest.approx(expected[3], abs=1e-6)


@pytest.mark.slow
def test_a_step_to_an_infinite_loss_is_halved(tmp_path):
    """The first step for counts of 500 is 499, whose exponential is infinite in float32."""
    x = np.random.default_rng(0).standard_normal((30, 1))
    data = fcorun.from_arrays(x, np.full(30, 500.0), np.arange(30) % 3, validation=0.0)
    experiment = fcorun.Experiment(
        data=data,
        algorithm=fcorun.Newton(),
        objective=fcorun.Poisson(),
        regularizer=fcorun.NoRegularizer(),
        rounds=25,
        eval_every=25,
        precision="float32",
    )
    solution = experiment.run(tmp_path / "run").solution
    assert solution["bias"].item() == pytest.approx(np.log(500), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("features", [pytest.param(20, marks=pytest.mark.slow), 120])
def test_logistic_lasso_reaches_its_optimum_in_ten_rounds(features, tmp_path):
    """At a hundredth of the largest strength, with more features than rows and with fewer."""
    config = resolved(ragged(tmp_path, "algo=newton", "reg.relative=0.01", "rounds=10", sizes=SIZES,
                             features=features, task="binary"))  # fmt: skip
    values = gaps(config, snapshots(config))
    assert abs(values[-1]) <= 1e-9
    assert values[0] > 0.1


@pytest.mark.slow
def test_newton_is_logistic_regression_of_scikit_learn(tmp_path):
    """Without psi and with a ridge, whose strength scikit-learn gives as 1 / (n ridge)."""
    config = ragged(tmp_path, "algo=newton", "reg=none", "objective.ridge=0.05", "rounds=8", "eval_every=8",
                    sizes=SIZES, task="binary")  # fmt: skip
    data = load_data(prepare(config))
    model = linear_model.LogisticRegression(C=1 / (0.05 * len(data.train)), solver="newton-cholesky", tol=1e-12)
    model.fit(data.train.x, data.train.y)
    solution = flat({name: value[0] for name, value in snapshots(config)[-1].solution.items()})
    np.testing.assert_allclose(solution, np.append(model.coef_.ravel(), model.intercept_), atol=1e-8)


@pytest.mark.slow
def test_gram_solves_a_path_of_strengths_in_one_round(tmp_path):
    """More features than rows; the loss of scikit-learn is half of ours, so that its alpha is half the strength."""
    strengths = [0.02, 0.1, 0.5, 2.0]
    config = ragged(tmp_path, "algo=gram", "rounds=1", "reg.strength=0.1", sizes=(9, 6, 10), features=40)
    points = []
    for strength in strengths:
        points.append({**config, "reg": config["reg"] | {"strength": strength}})
    path = snapshots(*points)[-1].solution
    train = load_data(prepare(config)).train
    for g, strength in enumerate(strengths):
        model = linear_model.Lasso(alpha=strength / 2, tol=1e-14, max_iter=1_000_000).fit(train.x, train.y)
        np.testing.assert_allclose(path["weights"][g], model.coef_, atol=1e-7)
        np.testing.assert_allclose(path["bias"][g], model.intercept_, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "uploads"),
    [
        pytest.param("newton", [0, 1, 2, 3], marks=pytest.mark.slow),
        ("gram", [0, 1, 1, 1]),
    ],
)
def test_a_hessian_is_sent_as_its_triangle(name, uploads, tmp_path):
    record = run(ragged(tmp_path, f"algo={name}", "rounds=3", "stop={}", "reg.strength=0.1"), tmp_path / "run")
    loss = 1 if name == "newton" else 0
    upload = 3 * 8 * (7 * 8 // 2 + 7 + loss)  # three clients, seven parameters
    assert [row["bytes_up"] for row in record.rows] == [upload * count for count in uploads]
    broadcast = 3 * 8 * 7 if name == "newton" else 0
    assert [row["bytes_down"] for row in record.rows] == [broadcast * count for count in range(4)]


@pytest.mark.slow
def test_a_refused_step_is_halved(tmp_path):
    """Newton's first step for Poisson counts of mean 30 goes to exp(29); no accepted point is above the one before."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 3))
    y = rng.poisson(np.exp(3.4 + 0.3 * x[:, 0]))
    config = ragged(tmp_path, "algo=newton", "objective=poisson", "reg.strength=0.1", "rounds=16", sizes=(20, 20),
                    x=x, y=y)  # fmt: skip
    evaluations = snapshots(config)
    objectives = [float(evaluation.metrics["objective"][0]) for evaluation in evaluations]
    assert np.diff(objectives).max() <= 1e-12
    assert objectives[3] == objectives[0]  # the first proposals are refused
    assert abs(gaps(config, evaluations)[-1]) <= 1e-9


def test_a_triangle_is_the_matrix_again():
    matrix = jnp.arange(25.0).reshape(5, 5)
    symmetric = matrix + matrix.T
    packed = penalized_quadratic.pack_symmetric(symmetric)
    np.testing.assert_array_equal(packed, np.asarray(symmetric)[np.triu_indices(5)])
    np.testing.assert_array_equal(penalized_quadratic.unpack_symmetric(packed, 5), symmetric)


def test_too_many_parameters_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fcorun.experiment.requirements.MAX_PARAMETERS", 6)
    with fails("sends Hessians, of at most 6 parameters, and data=table has 7"):
        load_data(prepare(ragged(tmp_path, "algo=newton")))


def model_of(weights, gradient, curvatures, strength, dtype):
    """Return the arguments of the model of a problem without an intercept: quadratic, with psi the l1 norm."""
    shapes = {"weights": (len(weights),)}
    problem = Problem(fcorun.LeastSquares(intercept=False), fcorun.L1(strength=strength), Euclidean(), shapes)
    start, slopes = (Vector(weights=jnp.asarray(values, dtype)) for values in (weights, gradient))
    return problem, slopes, jnp.diag(jnp.asarray(curvatures, dtype)), start


def test_the_decrement_has_the_decrease_of_psi_at_a_kink():
    """From w = 1e-4 to the kink at 0, (v - w)^2 / 2 + |v| falls by |w| - w^2 / 2, of which d'Hd = w^2 has little."""
    with jax.enable_x64(True):
        problem, slopes, matrix, start = model_of([1e-4], [0.0], [1.0], 1.0, "float64")
        minimum = penalized_quadratic.minimize_model(problem, slopes, matrix, start, StoppingRule(100, 0.0, 1e-12))
        bound = penalized_quadratic.bound_model_decrease(problem, slopes, matrix, start, minimum)
    assert minimum["weights"].tolist() == [0.0]
    assert float(bound) == pytest.approx(2 * (1e-4 - 1e-8 / 2), rel=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1.0, 1e3, 1e5])
def test_the_decrement_counts_what_the_solver_of_the_model_leaves(scale, dtype):
    """Steps of 1 / scale^2 leave the first feature in place: twice the decrease is (|g| - strength)^2."""
    with jax.enable_x64(dtype == "float64"):
        problem, slopes, matrix, start = model_of([0.02, 0.0], [-0.3, 0.0], [1.0, scale**2], 0.1, dtype)
        left = penalized_quadratic.bound_model_decrease(problem, slopes, matrix, start, start)
        solved = Vector(weights=jnp.asarray([0.22, 0.0], dtype))
        found = penalized_quadratic.bound_model_decrease(problem, slopes, matrix, start, solved)
    assert float(left) >= 0.99 * 0.2**2
    assert float(found) >= 0.99 * 0.2**2
    if scale == 1:
        assert float(left) <= 2 * 0.2**2
        assert float(found) == pytest.approx(0.2**2, rel=1e-5)
