"""Meta-analysis, DLSA and ADAP: published numbers, other solvers, bytes and refusals."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import fails, flat, ragged, snapshots
from sklearn import linear_model

from fcorun import run
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.experiment.requirements import check_hessian
from fcorun.methods.algorithms.algorithm import LocalData
from fcorun.methods.algorithms.local_fit import MetaAnalysis, combine_estimates
from fcorun.methods.mirror_maps import Euclidean
from fcorun.methods.objectives.least_squares import LeastSquares
from fcorun.methods.objectives.log_link import Gamma
from fcorun.methods.problem.penalized_quadratic import invert_positive
from fcorun.methods.problem.problem import Problem, Vector
from fcorun.methods.regularizers.regularizer import NoRegularizer

SIZES = (12, 20, 16, 30)
# Trials of the BCG vaccine (Colditz et al., JAMA 1994): cases and others among the vaccinated, and among the controls.
BCG = np.array(
    [[4, 119, 11, 128], [6, 300, 29, 274], [3, 228, 11, 209], [62, 13536, 248, 12619], [33, 5036, 47, 5761],
     [180, 1361, 372, 1079], [8, 2537, 10, 619], [505, 87886, 499, 87892], [29, 7470, 45, 7232], [17, 1699, 65, 1600],
     [186, 50448, 141, 27197], [5, 2493, 3, 2338], [27, 16886, 29, 17825]]
)  # fmt: skip


def solution(config, evaluation=-1):
    """Return the parameters of an evaluation of a run."""
    return flat({name: value[0] for name, value in snapshots(config)[evaluation].solution.items()})


def minimize_f_plus_l1(config, strength):
    """Return the LASSO of scikit-learn, whose loss is half of ours, so that its alpha is half the strength."""
    train = load_data(prepare(config)).train
    model = linear_model.Lasso(alpha=strength / 2, tol=1e-14, max_iter=1_000_000).fit(train.x, train.y)
    return np.append(model.coef_, model.intercept_)


@pytest.mark.slow
@pytest.mark.parametrize("options", [["algo=dlsa"], ["algo=dlsa", "algo.ridge=3"], ["algo=adap", "algo.client=2"]])
def test_least_squares_are_exact_for_any_number_of_clients(options, tmp_path):
    config = ragged(tmp_path, *options, "reg.strength=0.4", "rounds=2", sizes=SIZES)
    expected = minimize_f_plus_l1(config, 0.4)
    assert (expected == 0).any()
    np.testing.assert_allclose(solution(config), expected, atol=1e-7)


@pytest.mark.slow
def test_one_client_solves_the_whole_problem(tmp_path):
    """ADAP's client has the loss F; the quadratic model of DLSA is that of F, around the fit without psi."""
    overrides = ("reg.strength=0.02", "rounds=2")
    config = ragged(tmp_path, "algo=newton", "reg.strength=0.02", "rounds=12", sizes=(80,), task="binary")
    optimum = solution(config)
    adap = ragged(tmp_path, "algo=adap", *overrides, sizes=(80,), task="binary")
    for evaluation in (1, 2):
        np.testing.assert_allclose(solution(adap, evaluation), optimum, atol=1e-7)
    without_psi = ragged(tmp_path, "algo=newton", "reg=none", "rounds=12", sizes=(80,), task="binary")
    dlsa = ragged(tmp_path, "algo=dlsa", "reg=none", "rounds=1", sizes=(80,), task="binary")
    np.testing.assert_allclose(solution(dlsa), solution(without_psi), atol=1e-6)


@pytest.mark.slow
def test_adap_reaches_the_logistic_optimum_in_four_rounds(tmp_path):
    overrides = ("reg.strength=0.03", "rounds=4")
    objectives = {}
    for name in ("adap", "newton"):
        rounds = "rounds=12" if name == "newton" else "rounds=5"
        config = ragged(tmp_path, f"algo={name}", *overrides, rounds, sizes=(60, 80, 70), task="binary")
        objectives[name] = [float(evaluation.metrics["objective"][0]) for evaluation in snapshots(config)]
    gaps = np.array(objectives["adap"]) - objectives["newton"][-1]
    assert gaps[1] > 1e-4
    assert gaps[2] < gaps[1] / 50
    assert abs(gaps[-1]) < 1e-12


@pytest.mark.slow
def test_adaptive_weights_are_those_of_a_scaled_problem(tmp_path):
    """The strength of w_j is lam / |b_j|, b the fit of all rows: the LASSO of features times |b_j|."""
    config = ragged(tmp_path, "algo=dlsa", "algo.adaptive=true", "reg.strength=0.3", "rounds=1", sizes=SIZES)
    train = load_data(prepare(config)).train
    fit = linear_model.LinearRegression().fit(train.x, train.y)
    weights = np.abs(fit.coef_)
    lasso = linear_model.Lasso(alpha=0.15, tol=1e-14, max_iter=1_000_000).fit(train.x * weights, train.y)
    np.testing.assert_allclose(solution(config), np.append(weights * lasso.coef_, lasso.intercept_), atol=1e-7)


# ---------------------------------------------------------------- meta-analysis


@pytest.mark.parametrize(
    ("measure", "fixed", "q", "random", "tau2", "i2"),
    [("RR", -0.4303, 152.2330, -0.7141, 0.3088, 0.921173), ("OR", -0.4361, 163.1649, -0.7474, 0.3663, 0.926455)],
)
def test_dersimonian_and_laird_of_the_bcg_trials(measure, fixed, q, random, tau2, i2):
    """The numbers are those of Stata's metan, which the tests of the R package metafor print."""
    a, b, c, d = BCG.T.astype(float)
    if measure == "RR":
        estimates, variances = np.log(a / (a + b)) - np.log(c / (c + d)), 1 / a - 1 / (a + b) + 1 / c - 1 / (c + d)
    else:
        estimates, variances = np.log(a * d / (b * c)), 1 / a + 1 / b + 1 / c + 1 / d
    results = [combine_estimates(estimates, 1 / variances, is_random) for is_random in (False, True)]
    assert [round(float(result.estimate), 4) for result in results] == [fixed, random]
    assert [round(float(value), 4) for value in (results[0].tau2, results[0].q)] == [tau2, q]
    assert round(float(results[1].i2), 6) == i2


def test_clients_without_information_have_no_weight():
    estimates, precisions = jnp.array([1.0, 9, 2]), jnp.array([1.0, 0, 1 / 3])
    for random in (False, True):
        combined = combine_estimates(estimates, precisions, random)
        found = [combined.estimate, combined.precision, combined.q, combined.tau2]
        np.testing.assert_allclose(found, [1.25, 4 / 3, 0.25, 0], atol=1e-6)
    alone = np.random.default_rng(0).uniform(0.1, 9, (2, 100))
    of_one = combine_estimates(jnp.array([alone[0], 0 * alone[0]]), jnp.array([alone[1], 0 * alone[1]]))
    assert not of_one.tau2.any()
    assert not of_one.i2.any()


def summarize(objective, x, y, dtype="float64"):
    """Return the estimates and the precisions, (M, p) each, of M clients with rows x, (M, n, d), and y, (M, n)."""
    problem = Problem(objective, NoRegularizer(), Euclidean(), objective.shapes(x.shape[2:], 0))

    def summarize_client(x, y):
        local = LocalData(x, y, jnp.zeros((0, 1), "int32"), dtype).with_whole_data(jnp.arange(len(y)))
        return MetaAnalysis().local(problem, (), None, local)[0]

    with jax.enable_x64(dtype == "float64"):
        message = jax.jit(jax.vmap(summarize_client))(jnp.asarray(x, dtype), jnp.asarray(y, dtype))
    return [
        np.column_stack([message[name]["weights"][:, 0], message[name]["bias"][:, 0]]) for name in ("fit", "precision")
    ]


def test_a_gamma_variance_has_the_dispersion_by_pearson():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1, 40, 2))
    y = np.exp(x @ [0.5, -0.3] + 1) * rng.gamma(2, 1 / 2, (1, 40))
    estimates, precisions = summarize(Gamma(), x, y)
    glm = linear_model.GammaRegressor(alpha=0, tol=1e-12, solver="newton-cholesky").fit(x[0], y[0])
    np.testing.assert_allclose(estimates[0], [*glm.coef_, glm.intercept_], atol=1e-7)
    ratio = y[0] / glm.predict(x[0])
    design = np.column_stack([x[0], np.ones(40)])
    variance = np.diag(np.linalg.inv(design.T @ (ratio[:, None] * design))) * ((ratio - 1) ** 2).sum() / (40 - 3)
    np.testing.assert_allclose(1 / precisions[0], variance, rtol=1e-6)


def test_one_row_beyond_the_parameters_gives_a_weight_and_an_exact_fit_does_not():
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((50, 5, 3)), rng.standard_normal((50, 5))
    y[0], y[1], y[2] = 0, 5, x[2] @ [1, -2, 3] + 4
    _, precisions = summarize(LeastSquares(), x, y, "float32")
    assert (precisions[:3] == 0).all()
    assert (precisions[3:] > 0).all()


def test_without_any_weight_there_is_no_result():
    shapes = {"weights": (3,), "bias": ()}
    problem = Problem(LeastSquares(), NoRegularizer(), Euclidean(), shapes, n_clients=2)
    zero = Vector({name: jnp.zeros((2, *shape)) for name, shape in shapes.items()})
    result = MetaAnalysis().server(problem, None, {"fit": zero, "precision": zero, "weight": jnp.full(2, 0.5)})
    assert np.isnan(flat(result["w"])).all()


@pytest.mark.slow
def test_a_fit_of_a_table_is_its_log_odds_ratio(tmp_path):
    """Two clients with the same table: the mean is the log odds ratio, and half of its variance that of the mean."""
    a, b, c, d = 4, 19, 11, 28
    y = np.repeat([1, 0, 1, 0], [a, b, c, d])
    x = np.repeat([1.0, 1, 0, 0], [a, b, c, d])[:, None]
    config = ragged(tmp_path, "algo=meta_analysis", "rounds=1", sizes=(62, 62), x=np.tile(x, (2, 1)),
                    y=np.tile(y, 2) > 0, task="binary")  # fmt: skip
    expected = np.log(a * d / (b * c))
    np.testing.assert_allclose(solution(config)[0], expected, atol=1e-8)


@pytest.mark.slow
def test_random_effects_agree_with_numpy(tmp_path):
    config = ragged(tmp_path, "algo=meta_analysis", "algo.effects=random", "rounds=1", sizes=SIZES)
    train = load_data(prepare(config)).train
    fits, variances = [], []
    for start, stop in zip(train.offsets[:-1], train.offsets[1:], strict=True):
        x, y = np.column_stack([train.x[start:stop], np.ones(stop - start)]), train.y[start:stop]
        inverse = np.linalg.inv(x.T @ x)
        fit = inverse @ x.T @ y
        fits.append(fit)
        variances.append(np.diag(inverse) * ((y - x @ fit) ** 2).sum() / (len(y) - x.shape[1]))
    with jax.enable_x64(True):
        results = combine_estimates(jnp.array(fits), 1 / jnp.array(variances), random=True)
        expected, _, tau2, q, i2 = map(np.asarray, results)
    np.testing.assert_allclose(solution(config), expected, atol=1e-7)
    metrics = snapshots(config)[-1].metrics
    for name, values in {"tau2": tau2, "cochran_q": q, "i2": i2}.items():
        np.testing.assert_allclose(metrics[name][0], values[:-1].max(), rtol=1e-6)  # the intercept aside


@pytest.mark.slow
def test_equal_designs_give_the_pooled_fit(tmp_path):
    """Fixed effects of least squares; the residuals of the clients are equal, too, so that the variances are."""
    rng = np.random.default_rng(3)
    x, noise = rng.standard_normal((20, 4)), rng.standard_normal(20)
    y = [x @ rng.standard_normal(4) + noise for _ in range(3)]
    table = {"x": np.tile(x, (3, 1)), "y": np.concatenate(y)}
    config = ragged(tmp_path, "algo=meta_analysis", "rounds=1", sizes=(20,) * 3, **table)
    pooled = linear_model.LinearRegression().fit(table["x"], table["y"])
    np.testing.assert_allclose(solution(config), np.append(pooled.coef_, pooled.intercept_), atol=1e-8)


@pytest.mark.slow
def test_a_collinear_column_is_left_out(tmp_path):
    """The last feature, not the intercept: indicators of three levels, with no name of a column, add up to 1."""
    rng = np.random.default_rng(5)
    x = np.column_stack([rng.standard_normal(60), np.eye(3)[rng.integers(3, size=60)]])
    y = x @ [1.0, 2, -1, 0.5] + 0.1 * rng.standard_normal(60)
    one = ragged(tmp_path, "algo=meta_analysis", "rounds=1", sizes=(60,), x=x, y=y)
    slope, first, second, third = np.linalg.lstsq(x, y)[0]
    np.testing.assert_allclose(solution(one), [slope, first - third, second - third, 0, third], atol=1e-8)
    dlsa = ragged(tmp_path, "algo=dlsa", "reg.strength=0.1", "rounds=1", sizes=(30, 30), x=x, y=y)
    np.testing.assert_allclose(solution(dlsa), minimize_f_plus_l1(dlsa, 0.1), atol=1e-6)


# ---------------------------------------------------------------- messages and refusals


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "up", "down"),
    [
        ("meta_analysis", [0, *[3 * 2 * 7] * 2], [0, 0, 0]),
        ("dlsa", [0, *[3 * (28 + 7)] * 2], [0, 0, 0]),
        ("adap", [0, 3 * 7, 3 * 7 + 3 * (28 + 7) + 7], [0, 0, 3 * 7 + 28 + 7]),
    ],
)
def test_what_is_sent_is_counted(name, up, down, tmp_path):
    """Three clients, seven parameters, of which 28 pairs; in the second round of ADAP one client solves."""
    ridge = [] if name == "adap" else ["algo.ridge=0.1"]
    record = run(ragged(tmp_path, f"algo={name}", *ridge, "rounds=2", "reg.strength=0.1"), tmp_path / "run")
    assert [row["bytes_up"] for row in record.rows] == [8 * count for count in up]
    assert [row["bytes_down"] for row in record.rows] == [8 * count for count in down]


@pytest.mark.slow
def test_clients_with_too_few_rows_are_refused(tmp_path):
    with fails("fits 7 parameters", "client '0' has 3: give algo.ridge"):
        load_data(prepare(ragged(tmp_path, "algo=meta_analysis")))
    with fails("3 classes", "give algo.ridge"):
        load_data(prepare(ragged(tmp_path, "algo=dlsa", sizes=(30, 40), task="multiclass")))
    with fails("needs the Hessian of a linear model"):
        prepare(ragged(tmp_path, "algo=meta_analysis", "objective=quantile"))
    load_data(prepare(ragged(tmp_path, "algo=meta_analysis", "algo.ridge=0.1")))


def test_rows_of_weight_0_do_not_count(tmp_path):
    experiment = prepare(ragged(tmp_path, "algo=meta_analysis", sizes=(8, 8)))
    data = load_data(experiment)
    weighted = replace(data, train=replace(data.train, weight=np.tile([1.0, 1, 1, 0, 0, 0, 0, 0], 2)))
    with fails("client '0' has 3 of positive weight: give algo.ridge"):
        check_hessian(experiment, weighted)


@pytest.mark.slow
def test_an_inverse_by_sweeps():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((30, 6)) * np.array([1, 1e-3, 1, 1e3, 1, 1])
    inverse = np.linalg.inv(x.T @ x)
    np.testing.assert_allclose(
        invert_positive(jnp.asarray(x.T @ x)), inverse, rtol=1e-4, atol=1e-5 * np.abs(inverse).max()
    )
    x[:, 4] = 2 * x[:, 2]
    x[:, 5] = 0
    diagonal = np.diag(invert_positive(jnp.asarray(x.T @ x)))
    assert np.isinf(diagonal[[4, 5]]).all()
    assert np.isfinite(diagonal[:4]).all()
