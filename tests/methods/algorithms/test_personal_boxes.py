"""The oracles of personal_boxes.py against their limits, and each other."""

import boxes
import numpy as np
import personal_boxes as personal
import pytest
from five_clients import COHORTS, LARGEST, SMALLEST, START, C, H, P, max_difference, run
from scipy.optimize import minimize

ALPHAS = np.array([0.3, 0.5, 0.7, 0.9, 1.0])
LAM = 0.8 * SMALLEST  # of pFedMac, whose F_i are convex up to SMALLEST
PENALTIES = [personal.l1(0.5), personal.logcosh(0.5, 0.1), personal.huber(0.5, 0.1)]


@pytest.mark.parametrize("cohorts", [None, COHORTS])
def test_pfedmac_with_a_ridge_is_pfedme(cohorts):
    lam = 2.0  # larger than the f_i allow without the ridge
    ridged = personal.pfedmac(H + lam * np.eye(6), C, P, START, 30, lam, 0.3, 3, 0.9, cohorts=cohorts)
    pfedme = run("pfedme", 30, lam, 0.3, 3, 0.9, cohorts=cohorts)
    np.testing.assert_allclose(ridged[0], pfedme[0], atol=1e-12)
    np.testing.assert_allclose(ridged[1], pfedme[1], atol=1e-12)


def test_pfedme_and_pfedmac_are_fedgd_on_envelopes_and_correlations():
    for name, functions, lam in (("pfedme", personal.envelopes, 2.0), ("pfedmac", personal.correlations, LAM)):
        h, c = functions(H, C, lam)
        points = run(name, 20, lam, 0.4, 3, cohorts=COHORTS)[0]
        np.testing.assert_allclose(points, boxes.fedgd(h, c, P, START, 20, 0.4, 3, COHORTS), atol=1e-12)


def test_pfedme_with_a_full_step_is_fedprox():
    points = run("pfedme", 20, 2.0, 0.5, 1, cohorts=COHORTS)[0]
    np.testing.assert_allclose(points, boxes.fedprox(H, C, P, START, 20, 2.0, COHORTS), atol=1e-12)


def test_pfedmac_diverges_without_strong_convexity():
    """All F_i are finite, but not convex if the strong convexity of f_i is less than lam."""
    assert np.linalg.eigvalsh(personal.correlations(H, C, SMALLEST)[0]).min() == pytest.approx(0, abs=1e-12)
    assert np.linalg.eigvalsh(personal.correlations(H, C, 2.0)[0]).min() < 0
    assert np.linalg.eigvalsh(np.tensordot(P, personal.correlations(H, C, 2.0)[0], 1)).min() < 0
    points = run("pfedmac", 100, 2.0, 0.1, 1)[0]
    assert np.linalg.norm(points[-1]) > 1e6


def test_correlations_are_a_conjugate():
    rng = np.random.default_rng(6)
    inverse = np.linalg.inv(H[0])
    for x in rng.standard_normal((3, 6)):

        def objective(u, x=x):
            return u @ H[0] @ u / 2 - C[0] @ u - LAM * u @ x

        solution = minimize(objective, np.zeros(6), method="BFGS", options={"gtol": 1e-9})
        value = LAM / 2 * x @ x - personal.conjugate(H[0], C[0], LAM * x)
        assert solution.fun + LAM / 2 * x @ x == pytest.approx(value, abs=1e-10)
        assert (value <= np.array([objective(u) for u in rng.standard_normal((100, 6))]) + LAM / 2 * x @ x).all()
        h, c = personal.correlations(H, C, LAM)
        assert x @ h[0] @ x / 2 - c[0] @ x - C[0] @ inverse @ C[0] / 2 == pytest.approx(value, abs=1e-12)
        slope = LAM * (x - np.linalg.solve(H[0], C[0] + LAM * x))
        np.testing.assert_allclose(h[0] @ x - c[0], slope, atol=1e-12)


def test_envelopes_have_the_gradient_of_the_prox():
    h, c = personal.envelopes(H, C, 2.0)
    u = np.array([boxes.prox(H[i], C[i], 0.5, START) for i in range(5)])
    np.testing.assert_allclose(personal.gradients(h, c, np.tile(START, (5, 1))), 2 * (START - u), atol=1e-12)


@pytest.mark.parametrize("inner", PENALTIES, ids=["l1", "logcosh", "huber"])
@pytest.mark.parametrize("start", [0.0, 50.0])
def test_inner_solutions_are_stationary(inner, start):
    rng = np.random.default_rng(7)
    for h, b in zip(H, 3 * rng.standard_normal((5, 6)), strict=True):
        u = inner(h, b, np.full(6, start))
        slope = {0: np.sign(u), 1: np.tanh(u / 0.1), 2: np.clip(u / 0.1, -1, 1)}[PENALTIES.index(inner)]
        rest = b - h @ u - 0.5 * slope
        if inner is PENALTIES[0]:
            assert (abs(rest) <= np.where(u == 0, 0.5 + 1e-13, 1e-13)).all()
        else:
            assert max_difference(rest, 0) < 1e-13


def test_smoothed_l1_tends_to_l1():
    b = C[0] + LAM * START
    exact = personal.l1(0.5)(H[0], b, START)
    for smoothed in (personal.logcosh, personal.huber):
        large_rho, small_rho = (max_difference(smoothed(0.5, rho)(H[0], b, START), exact) for rho in (0.1, 1e-4))
        assert small_rho < 1e-3
        assert small_rho < large_rho


def test_apfl_has_fedgd_and_local_training_as_limits():
    s = 0.5 / LARGEST
    points, models, _ = run("apfl", 20, s, 3, np.zeros(5))
    np.testing.assert_allclose(points, boxes.fedgd(H, C, P, START, 20, s, 3), atol=1e-12)
    assert max_difference(models[-1], points[-1]) < 1e-14
    alone = run("apfl", 20, s, 3, np.ones(5))[1]
    for i in range(5):
        local = boxes.fedgd(H[i : i + 1], C[i : i + 1], np.ones(1), START, 20, s, 3)
        np.testing.assert_allclose(np.array(alone)[:, i], local, atol=1e-12)


def test_the_global_model_of_ditto_is_fedgd():
    points, models = run("ditto", 20, 0.1, 3, 1.0, 0.1, 2, cohorts=COHORTS)
    np.testing.assert_array_equal(points, boxes.fedgd(H, C, P, START, 20, 0.1, 3, COHORTS))
    absent = next(i for i in range(5) if i not in COHORTS[1])
    np.testing.assert_array_equal(models[1][absent], models[0][absent])


def test_a_cohort_of_all_clients_changes_nothing():
    for name, options in {
        "apfl": (0.1, 3, ALPHAS),
        "pfedme": (1.0, 0.5, 3, 0.9),
        "pfedmac": (LAM, 0.5, 3, 0.9),
        "ditto": (0.1, 3, 1.0, 0.1, 2),
    }.items():
        everyone = run(name, 5, *options, cohorts=[[4, 2, 0, 1, 3]] * 5)
        for one, other in zip(run(name, 5, *options), everyone, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-14)
