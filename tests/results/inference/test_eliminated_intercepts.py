"""Sums in which the intercepts of clients are eliminated are the Schur complements of those with all parameters."""

import jax
import numpy as np
import pytest

from fcorun.methods.objectives import Gamma, LeastSquares, Logistic, Poisson
from fcorun.methods.problem.penalty import Penalty
from fcorun.results.inference.estimates import wald_estimates
from fcorun.results.inference.solution import solve
from fcorun.results.inference.sums import ModelRows, PooledSums

N_CLIENTS = 3


@pytest.mark.parametrize("kind", [LeastSquares, Logistic, Poisson, Gamma])
def test_estimates_and_errors_are_those_with_all_intercepts_as_parameters(kind):
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(N_CLIENTS), [20, 30, 40])
    x = rng.normal(50, 5, (90, 2)) + client[:, None]
    y = rng.integers(0, 2, 90) + (0.0 if kind in (Logistic, Poisson) else rng.random(90) + 0.1)
    weight = rng.uniform(0.5, 1.5, 90) / 90
    offset = 0.1 * rng.normal(size=90)
    indicators = (client[:, None] == np.arange(N_CLIENTS)).astype(float)
    group = np.arange(90) // 2
    with jax.enable_x64(True):
        for cluster in (None, group):
            rows = ModelRows(x, y, weight, offset, client)
            own = PooledSums(kind(client_intercepts=True), rows, cluster)
            whole = PooledSums(kind(), rows._replace(x=np.column_stack([x, indicators])), cluster)
            profiled = solve(own, Penalty.none(2), np.zeros(2))
            solution = solve(whole, Penalty.none(5), np.zeros(5))
            estimates = []
            for fit, sums, n_eliminated in ((profiled, own, N_CLIENTS), (solution, whole, 0)):
                scores = sums.scores(fit.theta)
                fitted = wald_estimates(fit.theta, fit.sums, scores, 90, cluster is not None, n_eliminated=n_eliminated)
                estimates.append(fitted)
            np.testing.assert_allclose(estimates[0].theta, estimates[1].theta[:2], rtol=1e-9)
            np.testing.assert_allclose(estimates[0].covariance, estimates[1].covariance[:2, :2], rtol=1e-8)
            assert estimates[0].degrees == estimates[1].degrees
            assert profiled.objective == pytest.approx(solution.objective, rel=1e-12)


@pytest.mark.parametrize("first_weight", [0.0, 1.0])
def test_a_feature_with_one_value_at_each_of_large_clients_has_no_curvature(first_weight):
    """The mean of equal numbers is rounded, by far more than their rounding error where rows are added one by one."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(N_CLIENTS), [9_000, 20_000, 11_742])
    beds = np.array([117.0, 331.0, 723.0])[client]
    beds = (beds - beds.mean()) / beds.std()
    weight = np.full(len(beds), 1 / len(beds))
    weight[0] *= first_weight
    beds[0] += 1 - first_weight  # a row without a weight may have another value
    rows = ModelRows(
        np.column_stack([beds, rng.normal(size=len(beds))]),
        rng.integers(0, 2, len(beds)).astype(float),
        weight,
        np.zeros(len(beds)),
        client,
    )
    with jax.enable_x64(True):
        sums = PooledSums(Logistic(client_intercepts=True), rows)
        hessian = sums.derivatives(np.zeros(2)).hessian
        meat = sums.scores(np.zeros(2)).meat
    for matrix in (hessian, meat):
        assert matrix[0].tolist() == [0, 0]
        assert matrix[1, 1] > 0
