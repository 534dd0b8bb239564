"""The oracles of boxes.py against the optimum, the closed forms of their fixed points, and each other."""

import boxes
import numpy as np
import pytest
from five_clients import COHORTS, L1, LARGEST, LOCAL_STEPS, SMALLEST, SMOOTH, SPARSE, START, STEP, C, H, P, quadratics


def gaps(points, target) -> np.ndarray:
    return np.array([np.linalg.norm(x - target) for x in points])


def solve(name, rounds=300, **options):
    return getattr(boxes, name)(H, C, P, START, rounds, **options)


def test_the_optima_are_stationary():
    np.testing.assert_allclose(np.tensordot(P, H, 1) @ SMOOTH, P @ C, atol=1e-14)
    slope = P @ C - np.tensordot(P, H, 1) @ SPARSE
    assert 0 < (SPARSE != 0).sum() < 6
    np.testing.assert_allclose(slope[SPARSE != 0], 0.8 * np.sign(SPARSE[SPARSE != 0]), atol=1e-14)
    assert (abs(slope) <= 0.8 + 1e-14).all()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedgd", {"s": 1 / LARGEST, "e": 1}),
        ("fedsplit", {"s": STEP}),
        ("feddyn", {"alpha": 3.0}),
        ("feddyn", {"alpha": 3.0, "cohorts": COHORTS}),
        ("fedpd", {"s": 0.3}),
        ("scaffold", {"client_lr": 0.3 / LARGEST, "server_lr": 1.0, "steps": 5, "option": 1}),
        ("scaffold", {"client_lr": 0.3 / LARGEST, "server_lr": 1.0, "steps": 5, "option": 2}),
        ("scaffold", {"client_lr": 0.3 / LARGEST, "server_lr": 1.0, "steps": 5, "option": 1, "cohorts": COHORTS}),
        ("scaffold", {"client_lr": 0.3 / LARGEST, "server_lr": 1.0, "steps": 5, "option": 2, "cohorts": COHORTS}),
        ("proxskip", {"gamma": 1 / LARGEST, "probability": 0.25, "steps": LOCAL_STEPS}),
        ("feddr", {"eta": STEP}),
        ("feddr", {"eta": STEP, "alpha": 1.9, "cohorts": COHORTS}),
        ("fedadmm", {"rho": 3.0}),
        ("dane", {"mu": LARGEST}),
        ("edsl", {"mu": LARGEST}),
        ("zhang", {"eta": 0.2 / LARGEST, "eta_g": 2.0, "steps": 5}),
    ],
)
def test_exact_algorithms_reach_the_smooth_optimum(name, options):
    points = solve(name, **options)
    assert len(points) == 300
    assert gaps(points, SMOOTH)[0] > 0.1
    assert gaps(points, SMOOTH)[-1] < 1e-8


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedsplit", {"s": STEP, "relaxation": 2.0}),
        ("fedsplit", {"s": STEP, "relaxation": 1.0}),
        ("feddr", {"eta": STEP}),
        ("feddr", {"eta": STEP, "alpha": 1.9}),
        ("feddr", {"eta": STEP, "cohorts": COHORTS}),
        ("feddr", {"eta": STEP, "alpha": 1.9, "cohorts": COHORTS}),
        pytest.param("dane", {"mu": LARGEST, "rounds": 100}, marks=pytest.mark.slow),
        pytest.param("dane", {"mu": LARGEST, "eta": 0.7, "rounds": 100}, marks=pytest.mark.slow),
        ("edsl", {"mu": LARGEST, "client": 3}),
        ("fedadmm", {"rho": 3.0}),
        ("fedadmm", {"rho": 3.0, "cohorts": COHORTS}),
        ("proxskip", {"gamma": 1 / LARGEST, "probability": 0.25, "steps": LOCAL_STEPS}),
        ("proxskip", {"gamma": 1 / LARGEST, "probability": 0.25, "steps": [4] * 300}),
        ("zhang", {"eta": 0.2 / LARGEST, "eta_g": 1.0, "steps": 5}),
        ("zhang", {"eta": 0.2 / LARGEST, "eta_g": 2.0, "steps": 5}),
        ("fast_fedda", {"gamma": LARGEST, "mu": SMALLEST, "steps": 1}),
    ],
)
def test_exact_algorithms_reach_the_composite_optimum(name, options):
    points = solve(name, psi_prox=L1, **options)
    assert gaps(points, SPARSE)[0] > 0.1
    assert gaps(points, SPARSE)[-1] < 1e-8


@pytest.mark.slow
def test_fast_fedda_with_local_steps_approaches_the_optimum_slowly():
    gap = gaps(solve("fast_fedda", 800, gamma=LARGEST, mu=SMALLEST, steps=5, psi_prox=L1), SPARSE)
    np.testing.assert_allclose(gap[[199, 399]] / gap[[399, 799]], 2, rtol=0.1)
    assert gap[-1] < 2e-3


# ---------------------------------------------------------------- fixed points other than the optimum


@pytest.mark.slow
@pytest.mark.parametrize("e", [1, 2, 10, 100])
def test_fedgd_ends_at_its_closed_form(e):
    s = 0.5 / LARGEST
    closed = boxes.fedgd_fixed_point(H, C, P, s, e)
    np.testing.assert_allclose(solve("fedgd", s=s, e=e)[-1], closed, atol=1e-12)
    assert (np.linalg.norm(closed - SMOOTH) < 1e-12) == (e == 1)
    assert e <= 2 or np.linalg.norm(closed - SMOOTH) > 0.1


@pytest.mark.parametrize("mu", [0.3, 1.0, 10.0])
def test_fedprox_ends_at_its_closed_form(mu):
    closed = boxes.fedprox_fixed_point(H, C, P, 1 / mu)
    np.testing.assert_allclose(solve("fedprox", 600, mu=mu)[-1], closed, atol=1e-12)
    assert np.linalg.norm(closed - SMOOTH) > 0.05


def test_fixed_points_are_the_optimum_of_clients_with_the_same_optimum():
    common = np.einsum("mij,j->mi", H, START)
    np.testing.assert_allclose(boxes.fedgd_fixed_point(H, common, P, 0.1, 7), START)
    np.testing.assert_allclose(boxes.fedprox_fixed_point(H, common, P, 0.4), START)


# ---------------------------------------------------------------- theorems of the FedSplit paper


@pytest.mark.parametrize("condition", [10.0, 1000.0])
def test_fedsplit_converges_at_the_rate_of_theorem_1(condition):
    """The fixed point of z_i is x* + s grad f_i(x*), and p weights the distance of z from it."""
    h, c = quadratics(low=1.0, high=condition)
    low, high = np.linalg.eigvalsh(h).min(), np.linalg.eigvalsh(h).max()
    s, best = (low * high) ** -0.5, boxes.optimum(h, c, P)
    points = [START, *boxes.fedsplit(h, c, P, START, 100, s)]
    z = best + s * (h @ best - c)
    bound = (1 - 2 / (np.sqrt(high / low) + 1)) ** np.arange(101) * np.sqrt(P @ ((START - z) ** 2).sum(axis=1))
    assert (gaps(points, best) <= bound + 1e-12).all()


@pytest.mark.slow
@pytest.mark.parametrize("eps", [1e-1, 1e-3])
def test_fedsplit_with_a_ridge_approximates_the_optimum(eps):
    """Theorem 2: a ridge of eps / ||x1 - x*||^2 costs at most eps of the objective."""
    rng = np.random.default_rng(5)
    a = rng.standard_normal((5, 3, 20))  # 15 rows in all for 20 coefficients
    h, c = a.mT @ a, np.einsum("mnd,mn->md", a, rng.standard_normal((5, 3)))
    start, mean = np.zeros(20), np.tensordot(P, h, 1)
    best = np.linalg.pinv(mean) @ (P @ c)
    ridge = eps / np.linalg.norm(best) ** 2
    s = (ridge * (np.linalg.eigvalsh(h).max() + ridge)) ** -0.5
    x = boxes.fedsplit(h, c, P, start, 4000, s, ridge=ridge)[-1]
    np.testing.assert_allclose(x, np.linalg.solve(mean + ridge * np.eye(20), P @ c), atol=1e-8)
    assert 0 < (x - best) @ mean @ (x - best) / 2 < eps


@pytest.mark.slow
def test_momentum_bounds_the_error_and_saves_rounds_without_strong_convexity():
    """The objective is within 2 |u_0 - u*|^2 / (s (k + 1)^2), in the metric D, where few rows leave l = 0."""
    rng = np.random.default_rng(5)
    a = rng.standard_normal((5, 3, 20)) * np.geomspace(1, 0.03, 20)
    h, c, psi_prox = a.mT @ a, np.einsum("mnd,mn->md", a, rng.standard_normal((5, 3))), boxes.soft(1e-3)
    s, start = 0.95 / np.linalg.eigvalsh(h).max(), np.zeros(20)
    best = boxes.fedsplit(h, c, P, start, 2000, 20 * s, psi_prox, relaxation=1.0)[-1]

    def objective(x):
        return x @ np.tensordot(P, h, 1) @ x / 2 - P @ c @ x + 1e-3 * np.abs(x).sum()

    end = best + s * (h @ best - c)  # u*, whose prox is the optimum, at each client
    metric = np.array([np.linalg.solve(np.eye(20) + s * each, np.eye(20) - s * each) for each in h])
    distance = sum(p * u @ d @ u for p, u, d in zip(P, end, metric, strict=True))
    runs = {"momentum": boxes.fedsplit_accelerated, "none": boxes.feddr}
    errors = {}
    for name, method in runs.items():
        points = method(h, c, P, start, 2000, s, psi_prox=psi_prox)
        errors[name] = np.array([objective(x) for x in points]) - objective(best)
    assert (errors["momentum"] <= 2 * distance / (s * np.arange(2, 2002) ** 2) + 1e-13).all()
    needed = (errors["momentum"] < 1e-8).argmax()
    assert 100 < needed < 700
    assert errors["none"][3 * needed] > 1e-8


# ---------------------------------------------------------------- identities


@pytest.mark.parametrize("psi_prox", [boxes.no_prox, L1])
@pytest.mark.parametrize("cohorts", [None, COHORTS])
def test_fedadmm_is_feddr(psi_prox, cohorts):
    one = solve("fedadmm", 20, rho=2.0, psi_prox=psi_prox, cohorts=cohorts)
    np.testing.assert_allclose(one, solve("feddr", 20, eta=0.5, psi_prox=psi_prox, cohorts=cohorts), atol=1e-12)


def test_feddyn_fedpd_and_fedadmm_with_all_clients_are_the_same():
    one = solve("fedpd", 20, s=0.5)
    np.testing.assert_allclose(one, solve("feddyn", 20, alpha=2.0), atol=1e-12)
    np.testing.assert_allclose(one, solve("fedadmm", 20, rho=2.0), atol=1e-12)


def test_one_local_step_is_gradient_descent():
    s = 0.7 / LARGEST
    one = solve("fedgd", 20, s=s, e=1)
    for option in (1, 2):
        scaffold = solve("scaffold", 20, client_lr=s, server_lr=1.0, steps=1, option=option)
        np.testing.assert_allclose(one, scaffold, atol=1e-12)
    np.testing.assert_allclose(one, solve("zhang", 20, eta=s, eta_g=1.0, steps=1), atol=1e-12)
    np.testing.assert_allclose(one, solve("proxskip", 20, gamma=s, probability=1.0, steps=[1] * 20), atol=1e-12)


def test_one_local_step_is_proximal_gradient():
    s = 0.7 / LARGEST
    x = START
    points = []
    for _ in range(20):
        x = L1(x - s * (np.tensordot(P, H, 1) @ x - P @ C), s)
        points.append(x)
    proxskip = solve("proxskip", 20, gamma=s, probability=1.0, steps=[1] * 20, psi_prox=L1)
    np.testing.assert_allclose(points, proxskip, atol=1e-12)


def test_a_cohort_of_all_clients_changes_nothing():
    for name, options in {
        "fedgd": {"s": 0.1, "e": 3},
        "fedprox": {"mu": 1.0},
        "scaffold": {"client_lr": 0.1, "server_lr": 0.5, "steps": 3},
        "feddyn": {"alpha": 1.0},
        "feddr": {"eta": 1.0},
        "fedadmm": {"rho": 1.0},
    }.items():
        everyone = solve(name, 5, cohorts=[[4, 2, 0, 1, 3]] * 5, **options)
        np.testing.assert_allclose(solve(name, 5, **options), everyone, atol=1e-14)
