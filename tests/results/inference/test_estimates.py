"""Estimates and standard errors against statsmodels, and the debiased lasso against what it must equal."""

from typing import Any

import jax
import numpy as np
import pytest

from fcorun.base.errors import UserError
from fcorun.data.tables.columns import SplineColumn
from fcorun.methods.objectives import Gamma, LeastSquares, Logistic, Poisson
from fcorun.methods.problem.penalty import Penalty
from fcorun.results.inference.estimates import (
    adjust_by_holm,
    approximate_inverse,
    debiased_estimates,
    intervals,
    joint_p_value,
    small_sample,
    wald_estimates,
)
from fcorun.results.inference.solution import SingularHessian, check_regular, minimize_l1_quadratics, solve
from fcorun.results.inference.sums import DerivativeSums, ModelRows, PooledSums, SquaredScores, sum_derivatives

ROW = np.arange(40)
X = np.column_stack([np.sin(ROW), np.cos(1.7 * ROW), (ROW * 7 % 11) / 11, np.ones(40)])
PREDICTION = X @ [1.0, -0.5, 0.3, 0.2]
NOISE = np.sin(13.1 * ROW + 1) * (1 + X[:, 2])
TARGETS = {
    "ols": PREDICTION + NOISE,
    "logit": (PREDICTION + 1.5 * NOISE > 0).astype(float),
    "poisson": np.maximum(np.floor(np.exp(PREDICTION / 2) + 1 + NOISE), 0),
}
CLUSTER = ROW % 8
OBJECTIVES = {"ols": LeastSquares(), "logit": Logistic(), "poisson": Poisson()}

# statsmodels 0.15.0: OLS(y, X).fit(cov_type="HC1", use_t=True); cov_type="cluster", cov_kwds={"groups": CLUSTER};
# WLS(y, X, weights=1 + ROW % 3); GLM(y, X, family=..., offset=0.1 * X[:, 1]).fit(cov_type="HC0", tol=1e-14), and with
# cov_type="cluster" and use_correction=False. Its HC0 is ours without the factor N / (N - p).
OLS = [1.044012272423219, -0.30345131161293054, 0.9076991830179185, 0.06052692206507947]
OLS_HC1 = [0.2467936921301305, 0.25610270952232345, 0.5975378471689773, 0.28626856796091255]
OLS_P = [0.00015312268806478907, 0.24382773309143807, 0.13748048871376878, 0.8337410070001379]
OLS_LOW = [0.5434914659342852, -0.8228516804299935, -0.3041637401842575, -0.5200526432857115]
OLS_CLUSTER = [0.35607694174877974, 0.19743544834873203, 0.2904635232634427, 0.1436201439711683]
OLS_CLUSTER_P = [0.021962168555254766, 0.16818511868095842, 0.016726219219500273, 0.6860750715649032]
WLS = [1.0951467864585662, -0.27413271204435496, 0.8118460679354476, 0.10311731409820518]
WLS_HC1 = [0.2679055348027248, 0.27329869268474316, 0.65438445305577, 0.314393089154791]
GLM = {
    "logit": (
        [0.9002984177087504, -0.4821644890145961, 1.2018395531305048, 0.00771976587347685],
        [0.5077748574308916, 0.4980075935601348, 1.1401835083114182, 0.5922190102026015],
        [0.6884723156136006, 0.28935253894671303, 0.5461947418519971, 0.2728751091639992],
    ),
    "poisson": (
        [0.32022638541513654, -0.21215229007126407, 0.2985389560770936, 0.4984144635265331],
        [0.1442170569700939, 0.14149962699222346, 0.3327341149418333, 0.18036038998019918],
        [0.17234340487540004, 0.09770425077632756, 0.16099489528008418, 0.0654082574039939],
    ),
}
SEVERAL = {"rows": 40, "effective_rows": 40.0, "clusters": False, "n_intercepts": 1}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def sums_of(name="ols", cluster=None, weight=None, offset: Any = 0.0, x=X):
    weight = np.ones(40) if weight is None else weight
    rows = ModelRows(x, TARGETS[name], weight / weight.sum(), np.full(40, 0.0) + offset)
    return PooledSums(OBJECTIVES[name], rows, cluster)


def wald(sums):
    solution = solve(sums, Penalty.none(4), np.zeros(4))
    return wald_estimates(solution.theta, solution.sums, sums.scores(solution.theta), 40, sums.cluster is not None)


def test_least_squares_equals_statsmodels():
    estimates = wald(sums_of())
    np.testing.assert_allclose(estimates.theta, OLS, rtol=1e-9)
    np.testing.assert_allclose(estimates.standard_errors, OLS_HC1, rtol=1e-9)
    low, _, p_values = intervals(estimates, 0.95)
    np.testing.assert_allclose(p_values, OLS_P, rtol=1e-8)
    np.testing.assert_allclose(low, OLS_LOW, rtol=1e-8)


def test_clusters_equal_statsmodels():
    estimates = wald(sums_of(cluster=CLUSTER))
    np.testing.assert_allclose(estimates.standard_errors, OLS_CLUSTER, rtol=1e-9)
    np.testing.assert_allclose(intervals(estimates, 0.95)[2], OLS_CLUSTER_P, rtol=1e-8)


def test_weights_of_rows_equal_statsmodels():
    estimates = wald(sums_of(weight=1.0 + ROW % 3))
    np.testing.assert_allclose(estimates.theta, WLS, rtol=1e-9)
    np.testing.assert_allclose(estimates.standard_errors, WLS_HC1, rtol=1e-9)


@pytest.mark.parametrize("name", GLM)
def test_generalized_linear_models_with_offsets_equal_statsmodels(name):
    coefficients, errors, cluster_errors = GLM[name]
    estimates = wald(sums_of(name, offset=0.1 * X[:, 1]))
    np.testing.assert_allclose(estimates.theta, coefficients, rtol=1e-6)
    np.testing.assert_allclose(estimates.standard_errors / np.sqrt(40 / 36), errors, rtol=1e-6)
    clustered = wald(sums_of(name, offset=0.1 * X[:, 1], cluster=CLUSTER))
    factor = np.sqrt(8 / 7 * 39 / 36)
    np.testing.assert_allclose(clustered.standard_errors / factor, cluster_errors, rtol=1e-6)


def test_gamma_has_the_sandwich_of_its_derivatives():
    y = np.exp(PREDICTION) * (1.5 + np.sin(5 * ROW))
    sums = PooledSums(Gamma(), ModelRows(X, y, np.full(40, 1 / 40), np.zeros(40)))
    estimates = wald(sums)
    ratio = y / np.exp(X @ estimates.theta)
    np.testing.assert_allclose(X.T @ (1 - ratio), 0, atol=1e-8)
    inverse = np.linalg.inv((X.T * ratio) @ X)
    expected = 40 / 36 * inverse @ (X.T * (1 - ratio) ** 2) @ X @ inverse
    np.testing.assert_allclose(estimates.covariance, expected, rtol=1e-7)


def test_sums_over_clients_are_sums_of_clients_sums():
    rows = sums_of("logit", offset=0.1).rows
    theta = np.array([0.3, -0.2, 0.1, 0.4])
    parts = [rows.take(mask) for mask in (ROW < 13, ROW >= 13)]
    whole, split = (
        sum_derivatives(Logistic(), theta, rows),
        [sum_derivatives(Logistic(), theta, part) for part in parts],
    )
    for name in ("loss", "gradient", "hessian"):
        np.testing.assert_allclose(sum(getattr(part, name) for part in split), getattr(whole, name), rtol=1e-13)
    scores = [PooledSums(Logistic(), part).scores(theta) for part in parts]
    meat = PooledSums(Logistic(), rows).scores(theta)
    np.testing.assert_allclose(scores[0].meat + scores[1].meat, meat.meat, rtol=1e-12)
    assert scores[0].count + scores[1].count == meat.count == 40


def test_with_few_features_the_debiased_lasso_of_least_squares_is_least_squares():
    sums = sums_of()
    solution = solve(sums, Penalty(np.array([0.3, 0.3, 0.3, 0.0]), np.zeros(4)), np.zeros(4))
    scores = sums.scores(solution.theta)
    estimates = debiased_estimates(solution.theta, solution.sums, scores, nonzero=4, **SEVERAL)
    assert not np.allclose(solution.theta, OLS, atol=0.05)
    np.testing.assert_allclose(estimates.theta, OLS, rtol=1e-8)
    inverse = np.linalg.inv(solution.sums.hessian)
    np.testing.assert_allclose(estimates.covariance, 40 / 36 * inverse @ scores.meat @ inverse, rtol=1e-8)
    np.testing.assert_allclose(estimates.bread, inverse, rtol=1e-9)


def test_the_debiased_lasso_does_not_depend_on_units():
    scale = np.array([10.0, 0.01, 3.0, 1.0])
    theta = np.array([0.5, 0.0, 0.2, 0.1])
    estimates = []
    for factor in (np.ones(4), scale):
        sums = sums_of("logit", x=X * factor)
        derivatives, scores = sums.derivatives(theta / factor), sums.scores(theta / factor)
        estimates.append(debiased_estimates(theta / factor, derivatives, scores, nonzero=3, **SEVERAL))
    np.testing.assert_allclose(estimates[1].theta * scale, estimates[0].theta, rtol=1e-6)
    np.testing.assert_allclose(estimates[1].standard_errors * scale, estimates[0].standard_errors, rtol=1e-6)


def test_rows_of_the_approximate_inverse_are_bounded_with_more_features_than_rows():
    x = np.random.default_rng(1).standard_normal((30, 50))
    inverse, bias_factor = approximate_inverse(x.T @ x / 30, 30.0, n_intercepts=0)
    product = inverse @ (x.T @ x / 30)
    np.testing.assert_allclose(np.diagonal(product), 1, rtol=1e-10)
    assert np.abs(product - np.eye(50)).max() < 0.8
    assert 0 < bias_factor.max() < 3 * np.sqrt(2 * np.log(50))


def test_solutions_satisfy_the_optimality_conditions_of_the_elastic_net():
    penalty = Penalty(np.array([0.05, 0.2, 0.0, 0.0]), np.array([0.1, 0.1, 0.1, 0.0]))
    solution = solve(sums_of("logit"), penalty, np.zeros(4))
    slope = solution.sums.gradient + penalty.ridge * solution.theta
    is_zero = (solution.theta == 0) & (penalty.l1 > 0)
    assert 0 < is_zero.sum() < 4
    np.testing.assert_allclose(slope[~is_zero], -(penalty.l1 * np.sign(solution.theta))[~is_zero], atol=1e-9)
    assert (np.abs(slope[is_zero]) <= penalty.l1[is_zero]).all()


def test_columns_without_penalty_solve_a_system_and_infinite_penalties_leave_zeros():
    matrix = X.T @ X
    columns = minimize_l1_quadratics(matrix, np.eye(4), np.zeros((4, 4)), np.zeros((4, 4)))
    np.testing.assert_allclose(columns, np.linalg.inv(matrix), atol=1e-9)
    fixed = minimize_l1_quadratics(matrix, np.eye(4), np.where(np.eye(4), np.inf, 0.0), np.ones((4, 4)))
    assert not np.diagonal(fixed).any()


def test_features_that_are_combinations_of_others_are_refused():
    x = np.column_stack([X[:, :3], X[:, 0] + X[:, 1], X[:, 3]])
    with pytest.raises(SingularHessian) as caught:
        solve(sums_of(x=x), Penalty.none(5), np.zeros(5))
    assert caught.value.parameters == [0, 1, 3]
    one_penalized = Penalty(np.array([0.3, 0, 0, 0, 0]), np.zeros(5))
    with pytest.raises(SingularHessian) as caught:
        solve(sums_of(x=x[:, [4, 0, 1, 2, 3]]), one_penalized, np.zeros(5))
    assert caught.value.parameters == [1, 2, 4]
    with pytest.raises(SingularHessian) as caught:
        check_regular(np.diag([1.0, np.inf, 1.0]))
    assert caught.value.parameters == [1]


@pytest.mark.slow
def test_separated_classes_are_refused():
    rows = ModelRows(X, (X[:, 0] > 0).astype(float), np.full(40, 1 / 40), np.zeros(40))
    with pytest.raises(UserError):
        solve(PooledSums(Logistic(), rows), Penalty.none(4), np.zeros(4))


def test_a_feature_that_marks_rows_without_counts_is_refused():
    marker = (X[:, :1] > 0).astype(float)
    rows = ModelRows(marker, 2 * (1 - marker[:, 0]), np.full(40, 1 / 40), np.zeros(40))
    with pytest.raises(UserError, match="marks rows whose targets are all 0"):
        solve(PooledSums(Poisson(), rows), Penalty.none(1), np.zeros(1))


def test_holms_correction():
    np.testing.assert_allclose(adjust_by_holm(np.array([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02])


def test_a_single_cluster_measures_nothing():
    with pytest.raises(UserError, match="have one cluster"):
        small_sample(40.0, 3, 1)


@pytest.mark.parametrize(("n_clusters", "n_terms"), [(4, 3), (6, 3), (10, 6)])
def test_the_joint_test_of_a_curve_with_few_clusters_keeps_its_level(n_clusters, n_terms):
    rng = np.random.default_rng(0)
    cluster = np.repeat(np.arange(n_clusters), 50)
    rejected = []
    for _ in range(400):
        age = rng.normal(60, 10, len(cluster))
        knots = np.quantile(age, np.linspace(0.05, 0.95, n_terms + 1))
        column = SplineColumn("age", n_knots=len(knots), knots=tuple(knots.tolist()))
        x = np.column_stack([*column.encode_cells(age, None), np.ones(len(age))])
        y = rng.standard_normal(len(age)) + 0.3 * rng.standard_normal(n_clusters)[cluster]  # age has no effect
        hessian = x.T @ x / len(age)
        theta = np.linalg.solve(hessian, x.T @ y / len(age))
        scores = np.zeros((n_clusters, len(theta)))
        np.add.at(scores, cluster, x * (x @ theta - y)[:, None] / len(age))
        squares = SquaredScores(scores.T @ scores, n_clusters)
        estimates = wald_estimates(theta, DerivativeSums(0.0, 0 * theta, hessian), squares, len(age), True)
        rejected.append(joint_p_value(estimates, np.arange(n_terms), clusters=True) < 0.05)
    assert 0.025 < np.mean(rejected) < 0.085  # 5 %, and three standard errors
    too_many = np.zeros(n_clusters, int)
    assert np.isnan(joint_p_value(estimates, too_many, clusters=True))


def test_a_joint_test_of_one_parameter_is_its_own():
    for cluster in (None, CLUSTER):
        estimates = wald(sums_of(cluster=cluster))
        p = intervals(estimates, 0.95)[2][1]
        assert joint_p_value(estimates, np.array([1]), cluster is not None) == pytest.approx(p, rel=1e-9)
