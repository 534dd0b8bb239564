"""Sums of Cox's partial likelihood and Wald estimates against the definition, statsmodels and published formulas."""

import jax
import numpy as np
import pytest

from fcorun.methods.objectives import Cox
from fcorun.methods.problem.penalty import Penalty
from fcorun.results.inference.estimates import intervals, wald_estimates
from fcorun.results.inference.solution import solve
from fcorun.results.inference.sums import (
    ModelRows,
    PooledSums,
    model_based_scores,
    score_rows_or_clusters,
    sum_derivatives,
)

# statsmodels 0.15.0 on ``draw_patients``: PHReg(abs(y), x, status=y > 0, strata=client, ties="breslow").fit(), the same
# with fit(groups=arange(150) % 40), and with offset=0.3 * x[:, 0] ** 2; ROBUST is the sandwich of its score_residuals.
COEFFICIENTS = [0.4868221472012622, -0.4240839398337399, 0.0958793403753169, 0.23650483333915773]
MODEL = [0.12084550696333814, 0.11063257439760622, 0.11022059511373458, 0.10688340886129616]
MODEL_P = [5.614171890186039e-05, 0.00012645376614393695, 0.3843627676502005, 0.02691580882627374]
MODEL_LOW = [0.24996930585963514, -0.6409198011699961, -0.12014905640217435, 0.027017201426147996]
ROBUST = [0.10744652363219183, 0.09377259443920445, 0.09248610865658466, 0.08004342077075559]
BY_GROUP = [0.10681822579917877, 0.07911561877892037, 0.07560744383367314, 0.07427726315832897]
WITH_OFFSET = [0.5644319231468139, -0.4912214204556944, 0.006505251817065354, 0.09365941966936704]
WITH_OFFSET_MODEL = [0.09553050654582891, 0.10887435858315439, 0.11099235798253454, 0.10884380911510523]


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def draw_patients(offset=0.0):
    """Draw rows of three clients with different baseline hazards, with ties, as ``test_cox.py`` does."""
    rng = np.random.default_rng(5)
    client = np.repeat(np.arange(3), [30, 50, 70])
    x = rng.standard_normal((150, 4))
    hazard = np.exp(x @ [0.8, -0.5, 0.0, 0.3]) * np.array([0.5, 1.0, 3.0])[client]
    time = np.ceil(5 * rng.exponential(size=150) / hazard)
    y = np.where(rng.random(150) < 0.7, time, -time)
    return ModelRows(x, y, np.full(150, 1 / 150), offset * x[:, 0] ** 2, client)


def weighted_patients():
    rows = draw_patients(0.3)
    weight = np.random.default_rng(1).integers(0, 4, 150).astype(float)
    return rows._replace(weight=weight / weight.sum())


def wald(rows, cluster=None, model=False):
    sums = PooledSums(Cox(), rows, cluster)
    n_parameters = rows.x.shape[1]
    solution = solve(sums, Penalty.none(n_parameters), np.zeros(n_parameters))
    scores = model_based_scores(solution.sums, len(rows.y)) if model else sums.scores(solution.theta)
    return wald_estimates(solution.theta, solution.sums, scores, np.inf, cluster is not None)


def scores_by_definition(theta, rows):
    """Return the parts of rows in the gradient by a loop over events and rows at risk (Lin and Wei 1989)."""
    risk = rows.weight * np.exp(rows.x @ theta + rows.offset)
    scores = np.zeros_like(rows.x)
    for i in np.flatnonzero((rows.y > 0) & (rows.weight > 0)):
        at_risk = np.flatnonzero((rows.client == rows.client[i]) & (abs(rows.y) >= rows.y[i]))
        share = risk[at_risk] / risk[at_risk].sum()
        mean = share @ rows.x[at_risk]
        scores[i] -= rows.weight[i] * (rows.x[i] - mean)
        scores[at_risk] += rows.weight[i] * share[:, None] * (rows.x[at_risk] - mean)
    return scores


def test_the_hessian_is_the_slope_of_the_gradient():
    rows, theta = weighted_patients(), np.array([0.5, -0.4, 0.1, 0.2])
    slopes = [sum_derivatives(Cox(), theta + e, rows).gradient - sum_derivatives(Cox(), theta - e, rows).gradient
              for e in 1e-6 * np.eye(4)]  # fmt: skip
    np.testing.assert_allclose(sum_derivatives(Cox(), theta, rows).hessian, np.array(slopes) / 2e-6, atol=1e-8)


def test_scores_of_rows_are_those_of_the_definition():
    rows, theta = weighted_patients(), np.array([0.5, -0.4, 0.1, 0.2])
    scores = score_rows_or_clusters(Cox(), theta, rows)
    np.testing.assert_allclose(scores, scores_by_definition(theta, rows)[rows.weight > 0], atol=1e-14)
    np.testing.assert_allclose(scores.sum(axis=0), sum_derivatives(Cox(), theta, rows).gradient, atol=1e-14)


def test_test_data_1_of_therneau_and_grambsch():
    """Closed forms for 6 rows with ties, appendix E.1 of Modeling Survival Data (2000): Breslow's estimate."""
    y, x = np.array([9.0, 1, -1, 6, 6, -8]), np.array([0.0, 1, 1, 1, 0, 0])
    rows = ModelRows(x[:, None], y, np.ones(6), np.zeros(6))
    r = (3 + np.sqrt(33)) / 2
    np.testing.assert_allclose(wald(rows._replace(weight=np.full(6, 1 / 6))).theta, np.log(r), rtol=1e-10)
    for ratio in (1.0, r):
        sums, theta = sum_derivatives(Cox(), np.log([ratio]), rows), np.log([ratio])
        assert sums.loss == pytest.approx(np.log(3 * ratio + 3) + 2 * np.log(ratio + 3) - 2 * np.log(ratio))
        assert sums.hessian[0, 0] == pytest.approx(ratio / (ratio + 1) ** 2 + 6 * ratio / (ratio + 3) ** 2)
        a, b = 3 * (ratio + 1) ** 2, (ratio + 3) ** 2
        late = ratio / a + 2 * ratio / b
        expected = [late, (2 * ratio + 3) / a, -ratio / a, -ratio / a + 3 * (3 - ratio) / b,
                    ratio / a - ratio * (ratio + 1) / b, late]  # fmt: skip
        np.testing.assert_allclose(-score_rows_or_clusters(Cox(), theta, rows)[:, 0], expected, rtol=1e-12)


def test_model_based_errors_are_those_of_statsmodels():
    estimates = wald(draw_patients(), model=True)
    np.testing.assert_allclose(estimates.theta, COEFFICIENTS, rtol=1e-9)
    np.testing.assert_allclose(estimates.standard_errors, MODEL, rtol=1e-9)
    low, _, p_values = intervals(estimates, 0.95)
    np.testing.assert_allclose(low, MODEL_LOW, rtol=1e-8)
    np.testing.assert_allclose(p_values, MODEL_P, rtol=1e-8)
    with_offset = wald(draw_patients(0.3), model=True)
    np.testing.assert_allclose(with_offset.theta, WITH_OFFSET, rtol=1e-8)
    np.testing.assert_allclose(with_offset.standard_errors, WITH_OFFSET_MODEL, rtol=1e-8)


def test_robust_errors_are_those_of_statsmodels():
    np.testing.assert_allclose(wald(draw_patients()).standard_errors, ROBUST, rtol=1e-9)
    groups = np.arange(150) % 40
    by_group = wald(draw_patients(), groups)
    np.testing.assert_allclose(by_group.standard_errors, np.sqrt(40 / 39) * np.array(BY_GROUP), rtol=1e-9)
    assert by_group.degrees == 39
    alone = wald(draw_patients(), np.arange(150))
    np.testing.assert_allclose(alone.standard_errors, np.sqrt(150 / 149) * np.array(ROBUST), rtol=1e-9)


def test_predictions_that_no_exponential_holds_have_a_finite_loss():
    sums = sum_derivatives(Cox(), np.array([1e4, 0, 0, 0]), draw_patients())
    assert np.isfinite(sums.loss)
    assert np.isfinite(sums.hessian).all()
