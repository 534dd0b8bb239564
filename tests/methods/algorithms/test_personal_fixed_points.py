"""The oracles of personal_boxes.py against the closed forms of their fixed points."""

import boxes
import numpy as np
import personal_boxes as personal
import personal_fixed_points
import pytest
from five_clients import LARGEST, SMALLEST, SMOOTH, C, H, P, max_difference, run

LOCAL = np.linalg.solve(H, C[..., None])[..., 0]
ALPHAS = np.array([0.3, 0.5, 0.7, 0.9, 1.0])
EDGES = [[0, 1, 2], [3, 4]]
LAM = 0.8 * SMALLEST  # of pFedMac, whose F_i are convex up to SMALLEST
COINS = list(np.random.default_rng(4).random(200) < 0.4)
PENALTIES = [personal.l1(0.5), personal.logcosh(0.5, 0.1), personal.huber(0.5, 0.1)]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 5])
def test_apfl_with_fixed_weights_ends_at_its_closed_form(steps):
    s = 1 / LARGEST
    points, models, weights = run("apfl", 4000 // steps, s, steps, ALPHAS)
    w, closed = personal_fixed_points.apfl_fixed_point(H, C, P, s, steps, ALPHAS)
    assert max_difference(points[-1], w) < 1e-8
    assert max_difference(models[-1], closed) < 1e-8
    assert max_difference(weights[-1], ALPHAS) == 0
    # with one local step the global model is the optimum and the personal ones are local optima, whatever alpha is
    assert (max_difference(w, SMOOTH) < 1e-12) == (steps == 1)
    assert (max_difference(closed, LOCAL) < 1e-12) == (steps == 1)
    assert max_difference(closed[-1], LOCAL[-1]) < 1e-12  # alpha = 1


@pytest.mark.slow
def test_apfl_with_adaptive_weights_ends_at_local_optima():
    points, models, weights = run("apfl", 2000, 0.5 / LARGEST, 1, np.full(5, 0.5), adaptive=True)
    assert max_difference(points[-1], SMOOTH) < 1e-8
    assert max_difference(models[-1], LOCAL) < 1e-8
    assert max_difference(weights[-1], weights[-2]) < 1e-12
    assert max_difference(weights[-1], 0.5) > 0.1
    assert (np.array(weights) >= 0).all()
    assert (np.array(weights) <= 1).all()


def test_step_of_adaptive_weights_is_a_gradient_step():
    _, _, weights = run("apfl", 3, 0.01, 1, np.full(5, 0.5), adaptive=True)
    _, _, before = run("apfl", 2, 0.01, 1, np.full(5, 0.5), adaptive=True)
    points, models, _ = run("apfl", 2, 0.01, 1, np.full(5, 0.5), adaptive=True)
    w, a = points[-1], before[-1]
    v = (models[-1] - (1 - a[:, None]) * w) / a[:, None]
    for i in range(5):

        def loss(b, i=i):
            u = b * v[i] + (1 - b) * w
            return u @ H[i] @ u / 2 - C[i] @ u

        slope = (loss(a[i] + 1e-5) - loss(a[i] - 1e-5)) / 2e-5
        assert weights[-1][i] == pytest.approx(a[i] - 0.01 * slope, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("eta", "steps", "beta"), [(1.0, 1, 1.0), (0.5, 4, 1.0), (0.5, 4, 0.7), (0.2, 20, 1.8)])
def test_pfedme_ends_at_its_closed_form(eta, steps, beta):
    points, models = run("pfedme", 300, 1.0, eta, steps, beta)
    h, c = personal.envelopes(H, C, 1.0)
    closed = boxes.fedgd_fixed_point(h, c, P, eta, steps)
    assert max_difference(points[-1], closed) < 1e-8
    minimizer = np.linalg.solve(np.tensordot(P, h, 1), P @ c)
    assert (max_difference(closed, minimizer) < 1e-8) == (steps == 1)
    if steps == 1:
        assert max_difference(closed, boxes.fedprox_fixed_point(H, C, P, 1.0)) < 1e-12
        assert max_difference(models[-1], [boxes.prox(H[i], C[i], 1.0, closed) for i in range(5)]) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize(("eta", "steps", "beta"), [(1 / LAM, 1, 1.0), (1.0, 4, 1.0), (1.0, 4, 0.7), (1.0, 20, 1.8)])
def test_pfedmac_ends_at_its_closed_form(eta, steps, beta):
    points, models = run("pfedmac", 400, LAM, eta, steps, beta)
    h, c = personal.correlations(H, C, LAM)
    closed = boxes.fedgd_fixed_point(h, c, P, eta, steps)
    assert max_difference(points[-1], closed) < 1e-8
    x, u = personal_fixed_points.pfedmac_optimum(H, C, P, LAM)
    assert (max_difference(closed, x) < 1e-8) == (steps == 1)
    if steps == 1:
        assert max_difference(models[-1], u) < 1e-8
        assert max_difference(u, [np.linalg.solve(H[i], C[i] + LAM * x) for i in range(5)]) < 1e-10
        assert max_difference(P @ (LAM * closed - LAM * u), 0) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("inner", PENALTIES, ids=["l1", "logcosh", "huber"])
def test_pfedmac_s_ends_at_its_optimum(inner):
    points, models = run("pfedmac", 250, LAM, 1 / LAM, 1, inner=inner)
    x, u = points[-1], models[-1]
    assert max_difference(x, P @ u) < 1e-8
    if inner is PENALTIES[0]:
        closed, closed_models = personal_fixed_points.pfedmac_optimum(H, C, P, LAM, boxes.soft(0.5))
        assert max_difference(x, closed) < 1e-8
        assert max_difference(u, closed_models) < 1e-8
        assert 0 < (u == 0).sum() < 30
        assert ((u == 0) == (closed_models == 0)).all()
    else:
        slope = np.tanh(u / 0.1) if inner is PENALTIES[1] else np.clip(u / 0.1, -1, 1)
        assert max_difference(personal.gradients(H, C, u) - LAM * x + 0.5 * slope, 0) < 1e-8
    several = run("pfedmac", 120, LAM, 0.5 / LAM, 4, inner=inner)[0]
    assert max_difference(several[-1], several[-2]) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize(("steps", "edge_steps"), [(1, 1), (3, 1), (1, 4), (3, 4)])
def test_pfedmac_sh_ends_at_its_closed_form(restart, steps, edge_steps):
    options = (EDGES, LAM, 0.5, 0.5 / LAM, 1.0, steps, edge_steps)
    points, _, _ = run("pfedmac_sh", 300, *options, restart=restart)
    closed = personal_fixed_points.pfedmac_sh_fixed_point(H, C, P, *options, restart=restart)
    assert max_difference(points[-1], closed) < 1e-8
    # in the box lam_2 is a step size alone: with one step of clients and of edges it is pFedMac with lam_1
    assert (max_difference(closed, personal_fixed_points.pfedmac_optimum(H, C, P, LAM)[0]) < 1e-8) == (
        steps == edge_steps == 1
    )
    if steps == edge_steps == 1:
        assert max_difference(closed, personal_fixed_points.pfedmac_sh_optimum(H, C, P, EDGES, LAM, 0.1 * LAM)) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("edge_steps", [1, 4])
def test_pfedmac_sh_with_nested_steps_ends_at_its_optimum(edge_steps):
    lam_1, lam_2 = 0.5 * SMALLEST, 0.2 * SMALLEST
    points, models = run("pfedmac_sh_nested", 400, EDGES, lam_1, lam_2, 1 / lam_2 / edge_steps, edge_steps)
    closed = personal_fixed_points.pfedmac_sh_optimum(H, C, P, EDGES, lam_1, lam_2)
    assert (max_difference(points[-1], closed) < 1e-8) == (edge_steps == 1)
    if edge_steps == 1:
        edges = [personal.edge_quadratic(H, C, P, members, lam_1) for members in EDGES]
        middle = [np.linalg.solve(h, b + lam_2 * closed) for h, b in edges]
        assert max_difference(P[:3].sum() * middle[0] + P[3:].sum() * middle[1], closed) < 1e-8
        assert max_difference(models[-1][3], np.linalg.solve(H[3], C[3] + lam_1 * middle[1])) < 1e-8


@pytest.mark.parametrize(("lam", "e"), [(0.0, 1), (1.0, 1), (5.0, 4)])
def test_ditto_ends_at_its_closed_form(lam, e):
    points, models = run("ditto", 500, 0.5 / LARGEST, e, lam, 1 / (LARGEST + lam), 3)
    w = boxes.fedgd_fixed_point(H, C, P, 0.5 / LARGEST, e)
    assert max_difference(points[-1], w) < 1e-8
    assert (
        max_difference(models[-1], [np.linalg.solve(H[i] + lam * np.eye(6), C[i] + lam * w) for i in range(5)]) < 1e-8
    )


# ---------------------------------------------------------------- the mixture: a cycle instead of a fixed point


@pytest.mark.slow
@pytest.mark.parametrize("turn", [[0, 1], [0, 0, 1, 0, 1]])
def test_the_mixture_cycles_near_its_optimum(turn):
    """The distance of the cycle is proportional to the step, and two steps extrapolate to the optimum."""
    lam, probability = 0.6, np.mean(turn)
    best, cycles = personal_fixed_points.mixture_optimum(H, C, P, lam), []
    for step in (0.1, 0.05):
        models = run("mixture", turn * 4000, step, lam, probability)[1]
        cycles.append(personal_fixed_points.mixture_cycle(H, C, P, turn, step, lam, probability))
        assert max_difference(models[-1], cycles[-1]) < 1e-8
    assert max_difference(cycles[0], best) / max_difference(cycles[1], best) == pytest.approx(2, rel=0.1)
    assert max_difference(2 * cycles[1] - cycles[0], best) < 0.1 * max_difference(cycles[1], best)


def test_the_mean_over_the_coin_is_a_gradient_step():
    lam, probability, step = 0.6, 0.3, 0.5
    x = run("mixture", COINS[:50], step, lam, probability)[1][-1]
    descend = x - step / (5 * 0.7) * personal.gradients(H, C, x)
    pull = x - step * lam / (5 * 0.3) * (x - P @ x)
    mean = 0.7 * descend + 0.3 * pull
    np.testing.assert_allclose(mean, x - step / 5 * (personal.gradients(H, C, x) + lam * (x - P @ x)), atol=1e-14)
    best = personal_fixed_points.mixture_optimum(H, C, P, lam)
    assert max_difference(personal.gradients(H, C, best) + lam * (best - P @ best), 0) < 1e-13


@pytest.mark.slow
def test_the_mixture_with_random_coins_stays_near_its_optimum():
    lam = 0.6
    probability = lam / (LARGEST + lam)
    coins = list(np.random.default_rng(0).random(20_000) < probability)
    models = run("mixture", coins, 5 * probability / (2 * lam), lam, probability)[1]  # the longest step of the rule
    best = personal_fixed_points.mixture_optimum(H, C, P, lam)
    assert max_difference(models[-1], best) < 1
    assert (
        max_difference(np.mean(models[10_000:], axis=0), best) < 0.03
    )  # the step is affine, so the mean over time is right


def test_the_mixture_has_local_training_and_consensus_as_limits():
    assert max_difference(personal_fixed_points.mixture_optimum(H, C, P, 0.0), LOCAL) < 1e-12
    assert max_difference(personal_fixed_points.mixture_optimum(H, C, P, 1e-7), LOCAL) < 1e-5
    assert max_difference(personal_fixed_points.mixture_optimum(H, C, P, 1e7), SMOOTH) < 1e-5
    pulled = run("mixture", [0, 1], 0.1, 0.5 * 5 / 0.1, 0.5)[1]  # step lam / (n p) = 1: the mean itself
    assert max_difference(pulled[1], P @ pulled[0]) < 1e-14


def test_the_mixture_communicates_at_a_pull_after_a_step():
    assert personal.communications([1, 1, 0, 0, 1, 1, 1, 0, 1, 0]) == 2
    # between two pulls the mean is constant
    points, models = run("mixture", [0, 1, 1, 1], 0.5, 0.6, 0.3)
    assert max_difference(points[1:], points[0]) < 1e-14
    assert max_difference(models[3], models[1]) > 0.01
